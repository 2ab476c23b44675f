"""How many processes of a `relay run` have been started, in a file that they share.

It has no imports of ours, as the supervisor reads it and has to stay small.
"""

import os
from typing import Final

_FILE: Final = "processes"


def begin(directory: str | os.PathLike[str], count: int) -> None:
    """Record in the group's `directory` that its first `count` processes run, or are about to."""
    file = os.path.join(directory, _FILE)
    with open(f"{file}.new", "w") as fresh:
        fresh.write(str(count))
    os.replace(f"{file}.new", file)


def begun(directory: str | os.PathLike[str]) -> int:
    with open(os.path.join(directory, _FILE)) as file:
        return int(file.read())
