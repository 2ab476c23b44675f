"""Records of one delivery in a lane's memory. Pure."""

from collections.abc import Iterator
from typing import Generic

from relay.engine.work import W

Identity = tuple[bytes, int]


class Twins(Generic[W]):
    """Works in this lane's memory, by delivery and generation. Two of one delivery never run at once: later ones wait,
    and end with the first. Works without a row have no twins."""

    def __init__(self) -> None:
        self._here: dict[Identity, tuple[W, list[W]]] = {}

    def __iter__(self) -> Iterator[W]:
        """The works that later ones of their delivery would wait for."""
        return (work for work, _ in self._here.values())

    def has(self, work: W) -> bool:
        """Whether a record of the same delivery is in memory."""
        return work.row is not None and (work.row.digest, work.generation) in self._here

    def join(self, work: W) -> bool:
        """Whether `work` has to wait for an earlier record of the same delivery; it ends when that one leaves."""
        if work.row is None:
            return False
        here = self._here.setdefault((work.row.digest, work.generation), (work, []))
        if here[0] is work:
            return False
        here[1].append(work)
        return True

    def leave(self, work: W) -> list[W]:
        """`work` has ended, or is certainly parked. Returns the works that waited for it, which end, too."""
        identity = None if work.row is None else (work.row.digest, work.generation)
        if identity is None or identity not in self._here or self._here[identity][0] is not work:
            return []
        return self._here.pop(identity)[1]
