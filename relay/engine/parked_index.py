"""Parked records of a lane, as known in memory: the order keys that have some, and when they are due. Pure; times are
monotonic seconds."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import inf
from typing import Final, Generic

from relay.engine.decision import Dead
from relay.engine.parked_copy import ParkedCopy
from relay.engine.policy import BudgetShare
from relay.engine.window_shares import WindowShares
from relay.engine.work import W, Work
from relay.state.rows import Due, tag_of


@dataclass(frozen=True, slots=True)
class NotParked:
    """There is no room, for any owner (`over_all`) or for the owner of this work."""

    over_all: bool


class Stored(Enum):
    """Result for a work that had room (otherwise `NotParked`) and could be parked (otherwise `Dead`)."""

    PARKED = "parked"
    NOT_NEEDED = "an outcome is stored"


ParkResult = Stored | NotParked | Dead


ROOM_S: Final = 1.0
"""Interval at which works that found no room are tried again."""
LOOK_S: Final = 10.0
"""Interval at which works behind parked ones check whether these are over, while the endpoint is closed."""


class _Offsets:
    """Offsets of works by order key, in the order in which they were added: the lowest first, as works of a key are
    moved in their order."""

    def __init__(self) -> None:
        self.of: dict[bytes, dict[int, None]] = {}

    def add(self, work: Work) -> None:
        if work.queue is not None:
            self.of.setdefault(work.queue, {})[work.record.offset] = None

    def discard(self, work: Work) -> None:
        offsets = self.of.get(work.queue) if work.queue is not None else None
        if offsets is not None and work.queue is not None:
            offsets.pop(work.record.offset, None)
            if not offsets:
                del self.of[work.queue]

    def have_before(self, work: Work) -> bool:
        offsets = self.of.get(work.queue) if work.queue is not None else None
        return offsets is not None and next(iter(offsets)) < work.record.offset


class ParkedKeys(Generic[W]):
    """Order keys with parked records, as known here: later records of such a key must not overtake them. Also the works
    that wait in memory until they can be parked behind these, in order."""

    def __init__(self) -> None:
        self._parked: dict[bytes, str] = {}  # order key -> owner of the rows
        self._moving = _Offsets()  # of works that are being parked, or given up as there is no room
        self.leaving = _Offsets()
        """Of works that have left their order key, and are looked up before they are parked."""
        self.meanwhile: set[bytes | None] = set()
        """Those of which a record was parked during the look-up in flight, whose replies may not show that."""
        self.behind: deque[W] = deque()
        """Works that wait behind parked ones."""
        self._behind_keys: set[bytes] = set()
        self._crowded_at = inf
        self._looked_at = -inf
        self._refused_at = -inf

    def blocks(self, queue: bytes | None) -> bool:
        """Whether records of this order key have to wait behind parked ones."""
        return queue is not None and (queue in self._parked or queue in self._moving.of or queue in self._behind_keys)

    def look_up(self, work: W) -> None:
        """`work` has left its order key, to be looked up: later works of the key have to be looked up, too."""
        self.leaving.add(work)

    def looks_up_before(self, work: W) -> bool:
        """Whether an earlier work of its order key has left that, and is being looked up."""
        return self.leaving.have_before(work)

    def moves_before(self, work: W) -> bool:
        """Whether an earlier work of its order key is looked up, being parked, or without room for that."""
        if self.leaving.have_before(work) or self._moving.have_before(work):
            return True
        return self.has_behind(work.queue) and any(
            each.queue == work.queue and each.record.offset < work.record.offset for each in self.behind
        )

    def has_parked(self, queue: bytes | None) -> bool:
        """Whether a record of this order key is certainly parked."""
        return queue in self._parked

    def has_behind(self, queue: bytes | None) -> bool:
        return queue in self._behind_keys

    def parked(self, limit: int) -> list[tuple[bytes, str]]:
        """Order keys with parked records, as known here, with the owner of their rows; at most `limit`."""
        return list(islice(self._parked.items(), limit))

    def known(self, queue: bytes | None, owner: str) -> None:
        """It has parked records, of rows of `owner`."""
        if queue is not None:
            self._parked[queue] = owner

    def emptied(self, queue: bytes) -> None:
        """No record of this order key is parked any more."""
        if queue not in self._moving.of:
            self._parked.pop(queue, None)

    def going(self, work: W) -> None:
        """`work` is being parked, or given up as there is no room."""
        self._moving.add(work)

    def gone(self, work: W) -> None:
        """The attempt to park `work`, or to give it up, has ended."""
        self._moving.discard(work)

    # room

    def refused(self, now: float) -> None:
        self._refused_at = now

    def has_room(self, now: float) -> bool:
        """False for a moment after works were refused."""
        return now >= self._refused_at + ROOM_S

    # works that wait behind

    def wait_behind(self, work: W, now: float) -> None:
        """Not in the lane's order, where it would overtake the parked ones. The window fills, and intake stops."""
        if work.queue is None:
            raise AssertionError("it can wait behind nothing")
        self._behind_keys.add(work.queue)
        self.behind.append(work)
        self._crowded_at = min(self._crowded_at, now)

    def next_check(self, *, blocked: bool) -> float:
        """When to check whether works behind can go on. `blocked`: see `Lane.is_blocked`."""
        if not self.behind:
            return inf
        return max(self._crowded_at + ROOM_S, self._looked_at + LOOK_S if blocked else -inf)

    def firsts(self, now: float) -> Mapping[bytes, W]:
        """The first work behind, of each key: to be looked up, as its key may have no parked records any more."""
        self._looked_at = now
        return {work.queue: work for work in reversed(self.behind) if work.queue is not None}

    def take_behind(self, now: float) -> Iterable[W]:
        """All of them, in order: where they go is decided again."""
        waiting, self.behind = self.behind, deque()
        self._behind_keys.clear()
        self._crowded_at = inf
        return waiting


RECHECK_S: Final = 30.0
"""Interval at which the due index is read although nothing is known to be due: other processes may add references."""
FULL_S: Final = 1.0
"""How soon to look again when as many records as allowed are in memory."""


@dataclass(frozen=True, slots=True)
class DueQuery:
    """Asks when the next record of `tags` is due; if `limit` > 0, after taking so many of those that are due. `token`:
    of that take. `left`: those of an earlier take that found no room; only their copies are read."""

    tags: tuple[int, ...]
    limit: int
    token: bytes = b""
    left: Sequence[Due] = ()


@dataclass(frozen=True, slots=True)
class DueReply:
    """Reply to a DueQuery. `upcoming`: by tag, seconds until its first is due. `copies`: parked records that were
    taken. `promoted`: owners for which something has become due. `left`: references that were taken, without room for
    their copies."""

    upcoming: Mapping[int, float]
    copies: Sequence[ParkedCopy] = ()
    promoted: Sequence[str] = ()
    left: Sequence[Due] = ()


class DueIndex:
    """The due times of one lane, as known here. `most`: parked records in memory at a time. One is always allowed,
    however full the `memory` is: the records that fill it may wait for that one. Those that were taken without room are
    taken up first, as long as their lease lasts."""

    def __init__(self, tags: tuple[int, ...], most: int, lease_s: float, memory: BudgetShare | WindowShares) -> None:
        self._tags = tags
        self._most = most
        self._lease_s = lease_s
        self._memory = memory
        self._left: Sequence[Due] = ()
        self._left_until = -inf
        self._leased: dict[bytes, int] = {}
        self._next: dict[int, float] = {}
        self._news: dict[int, float] = {}  # times that were reported while the index was being read
        self._looked_at = -inf
        self.look_at = -inf
        """When to call `next_query` next."""

    @property
    def leased(self) -> int:
        """Parked records in memory."""
        return len(self._leased)

    @property
    def full(self) -> bool:
        """As many records as allowed are in memory."""
        return bool(self._leased) and (len(self._leased) >= self._most or self._memory.full)

    @property
    def room(self) -> int:
        """Bytes of parked records that may be taken up now."""
        return self._memory.room

    def _look_when_due(self) -> None:
        self.look_at = -inf if self._left else min((self._looked_at + RECHECK_S, *self._next.values()))

    def expect(self, owner: str, at: float) -> None:
        """Something of `owner` will be due then (0: is due)."""
        tag = tag_of(owner)
        if tag not in self._tags:
            return  # of another lane, as it may be when an endpoint was resumed
        self._next[tag] = min(at, self._next.get(tag, at))
        self._news[tag] = min(at, self._news.get(tag, at))
        if not self.full:
            self.look_at = min(at, self.look_at)

    def release(self, digest: bytes) -> int:
        """A work has ended, is parked again, or is left to its lease. Returns the size with which it was taken up: a
        step may have changed the headers of its record."""
        size = self._leased.pop(digest, 0)
        self._look_when_due()
        return size

    def next_query(self, token: bytes, now: float) -> DueQuery | None:
        """The call to make now, if any."""
        if self.full or (self._leased and not self.room):
            self.look_at = now + FULL_S
            return None
        if self._left:
            left, self._left = self._left, ()
            if now < self._left_until:
                return DueQuery((), 0, left=left)
            self._look_when_due()
        self._news.clear()
        if now >= self._looked_at + RECHECK_S:
            self._looked_at = now
            return DueQuery(self._tags, 0)
        tags = tuple(tag for tag, at in self._next.items() if at <= now)
        if not tags:
            return None
        return DueQuery(tags, max(1, (self._most - len(self._leased)) // len(tags)), token)

    def looked(self, asked: DueQuery, took: DueReply, now: float) -> None:
        self._left = took.left
        if took.left and asked.limit:
            self._left_until = now + self._lease_s
        for tag in asked.tags:
            at = min(now + took.upcoming.get(tag, inf), self._news.get(tag, inf))
            if at < inf:
                self._next[tag] = at
            else:
                self._next.pop(tag, None)
        self._look_when_due()

    def lease(self, digest: bytes, size: int) -> None:
        self._leased[digest] = size

    def is_new(self, due: Due) -> bool:
        return due.row.digest not in self._leased
