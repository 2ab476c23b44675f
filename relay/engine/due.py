"""When to look for parked records that are due, and how many to take up. Pure; times are monotonic seconds."""

from collections.abc import Mapping
from math import inf
from typing import Final

from relay.engine.asks import TakeUp
from relay.state.port import Due
from relay.state.rows import tag_of

RECHECK_S: Final = 30.0
"""How often the due index is looked at although nothing is known to be due: references that others put there."""
FULL_S: Final = 1.0
"""How soon to look again when as many are in hand as may be."""


class DueIndex:
    """What is known here of one lane's part of the due index. `most`: parked records in hand at a time."""

    def __init__(self, tags: tuple[int, ...], most: int) -> None:
        self._tags = tags
        self._most = most
        self._in_hand: set[bytes] = set()
        self._next: dict[int, float] = {}
        self._news: dict[int, float] = {}  # what was heard about tags while the index was being asked
        self._looked_at = -inf
        self._full_at = -inf

    @property
    def full(self) -> bool:
        """As many are in hand as may be."""
        return len(self._in_hand) >= self._most

    def next_look(self) -> float:
        """When to call `take_up` next."""
        if self.full:
            return self._full_at + FULL_S
        return min((self._looked_at + RECHECK_S, *self._next.values()))

    def expect(self, owner: str, at: float) -> None:
        """Something of `owner` will be due then (0: is due)."""
        tag = tag_of(owner)
        if tag not in self._tags:
            return  # it is not ours, as it may be when an endpoint was resumed
        self._next[tag] = min(at, self._next.get(tag, at))
        self._news[tag] = min(at, self._news.get(tag, at))

    def put_down(self, digest: bytes) -> None:
        """A work has ended, is parked again, or is left to its lease."""
        if self.full:
            self._full_at = -inf
        self._in_hand.discard(digest)

    def take_up(self, now: float) -> TakeUp | None:
        """What to ask for now."""
        if self.full:
            self._full_at = now
            return None
        self._news.clear()
        if now >= self._looked_at + RECHECK_S:
            self._looked_at = now
            return TakeUp(self._tags, 0)
        tags = tuple(tag for tag, at in self._next.items() if at <= now)
        if not tags:
            return None
        return TakeUp(tags, max(1, (self._most - len(self._in_hand)) // len(tags)))

    def looked(self, asked: TakeUp, upcoming: Mapping[int, float], now: float) -> None:
        """`upcoming`: seconds until the first of each tag is due."""
        for tag in asked.tags:
            at = min(now + upcoming.get(tag, inf), self._news.get(tag, inf))
            if at < inf:
                self._next[tag] = at
            else:
                self._next.pop(tag, None)

    def take_in_hand(self, digest: bytes) -> None:
        self._in_hand.add(digest)

    def is_new(self, due: Due) -> bool:
        return due.row.digest not in self._in_hand
