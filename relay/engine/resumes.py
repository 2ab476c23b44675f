"""Resumes: an endpoint that was held is sent to again. Who heard of one tells it here, and every lane asks anew."""

from collections.abc import Callable
from typing import Final

Heard = Callable[[str], None]
"""Called with an owner: `r:<receiver>` or `s:<source_id>`."""


class Resumes:
    """Of one process: `tell` reaches all who listen."""

    def __init__(self) -> None:
        self._listening: Final[set[Heard]] = set()

    def listen(self, heard: Heard) -> None:
        self._listening.add(heard)

    def leave(self, heard: Heard) -> None:
        self._listening.discard(heard)

    def tell(self, owner: str) -> None:
        for heard in tuple(self._listening):
            heard(owner)
