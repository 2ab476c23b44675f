"""The reference, made of the code: `make reference` writes docs/reference/, and a test compares.

Each module has `page() -> str`, a page in Markdown. A page more: a module, and its line in `every.py`.
"""
