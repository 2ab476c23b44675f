"""Order keys of a lane that have parked records: whoever comes later of such a key may not overtake them. Pure; times
are monotonic seconds."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from math import inf
from typing import Final, Generic

from relay.engine.work import W

ROOM_S: Final = 1.0
"""How soon those are tried again that found no room."""
LOOK_S: Final = 10.0
"""How often those that wait behind parked ones look, while the endpoint is closed, whether these are over."""


class ParkedKeys(Generic[W]):
    """What is known of them, and the works that wait in memory to queue up behind parked ones, in order."""

    def __init__(self) -> None:
        self._parked: set[bytes] = set()  # keys that have parked records, as far as known here
        self._under_way: Counter[bytes] = Counter()  # keys with works on their way to be parked
        self._behind: deque[W] = deque()
        self._behind_keys: Counter[bytes] = Counter()
        self._crowded_at = inf
        self._looked_at = -inf
        self._refused_at = -inf

    def blocks(self, queue: bytes | None) -> bool:
        """Whether records of this order key have to queue behind parked ones."""
        return queue is not None and (
            queue in self._parked or self._under_way[queue] > 0 or self._behind_keys[queue] > 0
        )

    def has_parked(self, queue: bytes | None) -> bool:
        """Whether something of it is parked for sure."""
        return queue in self._parked

    def has_behind(self, queue: bytes | None) -> bool:
        return queue is not None and self._behind_keys[queue] > 0

    def known(self, queue: bytes | None) -> None:
        """It has parked records."""
        if queue is not None:
            self._parked.add(queue)

    def emptied(self, queue: bytes) -> None:
        """Nothing of this order key is parked any more."""
        if not self._under_way[queue]:
            self._parked.discard(queue)

    def going(self, work: W) -> None:
        """`work` is on its way to be parked."""
        if work.queue is not None:
            self._under_way[work.queue] += 1

    def gone(self, work: W) -> None:
        """It is not any more, however that ended."""
        if work.queue is not None:
            self._under_way[work.queue] -= 1
            if not self._under_way[work.queue]:
                del self._under_way[work.queue]

    # room

    def refused(self, now: float) -> None:
        self._refused_at = now

    def has_room(self, now: float) -> bool:
        """False for a moment after works were refused."""
        return now >= self._refused_at + ROOM_S

    # those that wait behind

    def wait_behind(self, work: W, now: float) -> None:
        """Not in the lane's order: it would overtake the parked ones. The window fills, and intake stops."""
        if work.queue is None:
            raise AssertionError("it can wait behind nothing")
        self._behind_keys[work.queue] += 1
        self._behind.append(work)
        self._crowded_at = min(self._crowded_at, now)

    def next_look(self, *, still: bool) -> float:
        """When to look whether those behind can go on. `still`: the lane stands still."""
        if not self._behind:
            return inf
        return max(self._crowded_at + ROOM_S, self._looked_at + LOOK_S if still else -inf)

    def firsts(self, now: float) -> Mapping[bytes, W]:
        """The first that waits behind of each key: to be looked up, as nothing may be parked any more."""
        self._looked_at = now
        return {work.queue: work for work in reversed(self._behind) if work.queue is not None}

    def take_behind(self, now: float) -> Iterable[W]:
        """All of them, in order: where they go is decided anew."""
        waiting, self._behind = self._behind, deque()
        self._behind_keys.clear()
        self._crowded_at = inf
        return waiting
