"""Markdown building blocks of the reference pages."""

from collections.abc import Iterable, Sequence


def paragraphs(*parts: str) -> str:
    """Parts of a page, without empty ones."""
    return "\n\n".join(part.strip("\n") for part in parts if part)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head), f"|{'---|' * len(head)}", *(_row([cell(text) for text in row]) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def cell(text: str) -> str:
    """Text for a table cell: on one line, with `|` escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Empty where it is."""
    return f"`{text}`" if text else ""


def codes(texts: Iterable[str]) -> str:
    return ", ".join(code(text) for text in texts)


def described(text: str | None) -> str:
    """A docstring as prose: its paragraphs, without the indentation."""
    paragraphs = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
