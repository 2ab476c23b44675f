"""Records of one delivery and generation never run at once: the later ones wait, and end with the first."""

from collections.abc import Iterator
from typing import Generic

from relay.engine.work import W

Identity = tuple[bytes, int]


class Twins(Generic[W]):
    """Works in this lane's memory, by delivery and generation. Works without a row are nobody's twins."""

    def __init__(self) -> None:
        self._here: dict[Identity, tuple[W, list[W]]] = {}

    def __iter__(self) -> Iterator[W]:
        """The works that others would wait for."""
        return (work for work, _ in self._here.values())

    def has(self, work: W) -> bool:
        """Whether a record of the same delivery is here."""
        return _identity(work) in self._here

    def join(self, work: W) -> bool:
        """Whether `work` has to wait for an earlier record of the same delivery, and ends when that one leaves."""
        identity = _identity(work)
        if identity is None:
            return False
        if identity in self._here:
            first, others = self._here[identity]
            if first is not work:
                others.append(work)
            return first is not work
        self._here[identity] = (work, [])
        return False

    def leave(self, work: W) -> list[W]:
        """`work` has ended, or is parked for sure: so have those that waited for it, which are returned."""
        identity = _identity(work)
        if identity is None or identity not in self._here or self._here[identity][0] is not work:
            return []
        return self._here.pop(identity)[1]


def _identity(work: W) -> Identity | None:
    return None if work.row is None else (work.row.digest, work.generation)
