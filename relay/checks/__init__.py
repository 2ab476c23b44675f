"""Checks a relay and all its dependencies, and reports for each whether it is right, or what to do.

`registry.py` lists the checks. Each module beside it examines one part, and judges its observations in pure functions.
`context.py` is what they examine and their connections; `runner.py` runs them all within their time.
"""
