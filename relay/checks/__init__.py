"""Looks at a relay and all that it depends on, and says of each thing whether it is right, or what to do.

`registry.py` says which checks there are. Each module beside it looks at one part, and judges what it saw in functions
that are pure; `context.py` is what they look at and through, `runner.py` runs them all within their time.
"""
