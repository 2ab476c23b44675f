"""Checks a relay and all its dependencies, and reports for each whether it is right, or what to do.

`context.py` has the form in which a check is declared, and what checks examine with their connections. Each module
beside it declares the checks of one part, and judges its observations in pure functions. `runner.py` collects the
checks, and runs them all within their time.
"""
