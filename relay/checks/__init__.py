"""Checks a relay and all its dependencies, and reports for each whether it is right, or what to do.

`registry.py` has the form in which a check is declared. Each module beside it declares the checks of one part, and
judges its observations in pure functions. `context.py` is what they examine and their connections; `runner.py` collects
the checks, and runs them all within their time.
"""
