"""The memory of the state's fake: all that is under each hash tag, a clock that tests turn, and how it is lost."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Any

from relay.domain.errors import StateRecovering
from relay.domain.identity import MessageId
from relay.domain.incident import Incident, Marks
from relay.log.port import Coordinate, TopicPartition
from relay.state.port import Counts, FailedEntry, Gap, HintTopic, Lane
from relay.state.read_model import LaneHeartbeat, LastResponse, RowDetails, Statistics
from relay.state.replies import Fenced, Refusal
from relay.state.rows import TAGS, MessageRow, Stage, Superseding, tag_of
from tests.fakes.state_parking import LaneIndex
from tests.fakes.state_rows import Rows


@dataclass(slots=True)
class Newest:
    """The newest message of a key. `replaced`: the last rows before it; `until`: how long it is kept; `since`: when the
    memory had lost something last."""

    message: Superseding
    replaced: tuple[bytes, ...]
    closes: float
    until: float
    since: float


@dataclass(slots=True)
class Tag:
    """Everything under one hash tag; `ready` None: its memory is missing."""

    rows: Rows
    ready: bool | None = None
    doubt_until: float = 0.0
    lost_at: float = 0.0
    recovery_pass: int = 0
    gap: Gap | None = None
    edition: int = 0
    ends: Mapping[TopicPartition, int] | None = None
    messages: dict[MessageId, tuple[MessageRow, float]] = field(default_factory=dict)
    lanes: dict[tuple[str, int], LaneIndex] = field(default_factory=dict)
    failed: dict[str, dict[Coordinate, FailedEntry]] = field(default_factory=dict)
    newest: dict[bytes, "Newest"] = field(default_factory=dict)

    def is_rebuilding(self, now: float) -> bool:
        """Whether a missing row may be read back from the log."""
        return now < self.doubt_until and self.gap is not None

    def may_have_lost(self, at_ms: float, now: float) -> bool:
        """Whether an attempt may have been lost that began after `at_ms`."""
        return self.is_rebuilding(now) or (now < self.doubt_until and at_ms < self.lost_at * 1000)

    def lane(self, lane: Lane) -> LaneIndex:
        index = self.lanes.get((lane.topic, lane.partition))
        if index is None:
            index = self.lanes[lane.topic, lane.partition] = LaneIndex()
        return index

    def watched(self, digest: bytes, now: float) -> RowDetails:
        found = self.rows.watched(digest, now)
        if found.row.stage >= Stage.ENQUEUED:
            return found
        due = [index.due.get(digest, now) for index in self.with_intent(digest)]
        return replace(found, due_in_s=max([now, *due]) - now)

    def parked(self, owner: str) -> Counts:
        retries, polls = (sum(index.counts[owner, poll] for index in self.lanes.values()) for poll in (False, True))
        return Counts(retries, polls)

    def free(self, digest: bytes, generation: int, now: float) -> None:
        for index in self.with_intent(digest):
            if not index.keeps(digest, generation + 1):
                index.free(digest, now)

    def with_intent(self, digest: bytes) -> list[LaneIndex]:
        """Of the lanes that have written, or may write, a parked copy."""
        return [self.lanes[lane] for lane in self.rows.intents.get(digest, ()) if lane in self.lanes]

    def intend(self, lane: Lane, digest: bytes) -> None:
        self.rows.intents.setdefault(digest, set()).add((lane.topic, lane.partition))

    def withdraw(self, lane: Lane, digest: bytes) -> None:
        lanes = self.rows.intents.get(digest, set())
        lanes.discard((lane.topic, lane.partition))
        if not lanes:
            self.rows.intents.pop(digest, None)

    def owners(self) -> set[str]:
        """Of references; perhaps of none by now."""
        return {owner for index in self.lanes.values() for owner, _ in index.counts}


@dataclass(slots=True)
class Taken:
    """What a lane's owner may have in hand. `epoch`: None if it has reserved nothing."""

    epoch: int | None
    before: int
    marked: dict[int, int]
    left: int | None = None
    """What its former owner had reserved."""
    first: int = -1
    """What it reserved first."""


class Memory:
    """`ready` False: empty memory, as of a server never used before.

    `clock`: seconds; None: a clock of its own that only `advance` moves.
    """

    def __init__(
        self, *, clock: Callable[[], float] | None = None, dedup_window_s: float = 604_800, ready: bool = True
    ) -> None:
        self._clock = clock or (lambda: 1_700_000_000.0)
        self._advanced_s = 0.0
        self._window_s = dedup_window_s
        self._forgotten: frozenset[int] = frozenset()
        self._outdated = False
        self._pass_numbers = count(1)
        self._listeners: dict[asyncio.Queue[bytes], HintTopic] = {}
        outside = set(vars(self))
        self.lose()
        self._names = vars(self).keys() - outside
        if ready:
            for tag in self._tags:
                tag.ready = True

    def _hint(self, about: HintTopic, what: bytes) -> None:
        for listener, topic in self._listeners.items():
            if topic == about:
                listener.put_nowait(what)

    def advance(self, seconds: float) -> None:
        """Also backwards, as when the server's clock is set."""
        self._advanced_s += seconds

    def lose(self) -> None:
        """Lose everything, as FLUSHALL does."""
        self._tags: list[Tag] = [Tag(Rows(self._window_s)) for _ in range(TAGS)]
        self._ahead_s = 0.0
        self._last = 0.0
        self._signs: dict[TopicPartition, tuple[float, float, LaneHeartbeat]] = {}
        self._key_uses: dict[str, float] = {}
        self._leases: dict[str, tuple[str, float]] = {}
        self._taken: dict[tuple[str, int], Taken] = {}
        self._statistics: dict[str, tuple[Statistics, float]] = {}
        self._responses: dict[str, tuple[LastResponse, float]] = {}
        self._told: dict[tuple[int, str], tuple[int, float]] = {}
        self._charged: dict[tuple[str, int], tuple[int, float]] = {}
        self._incidents: dict[str, Incident] = {}
        self._marks: dict[str, Marks] = {}
        self._waiting: tuple[dict[str, float], float] = ({}, 0.0)

    def copied(self) -> Mapping[str, Any]:
        """All that it can lose, as a replica has it that gets no more writes."""
        return deepcopy({name: vars(self)[name] for name in self._names})

    def fail_over(self, copied: Mapping[str, Any] = MappingProxyType({})) -> None:
        """A replica takes over, which may lack the last writes. `copied`: its memory."""
        vars(self).update(deepcopy(dict(copied)))
        for tag in self._tags:
            tag.ready = None

    @property
    def server_now(self) -> float:
        """By its clock."""
        return self._clock() + self._advanced_s

    @property
    def now(self) -> float:
        """The time of what it keeps, which never goes back."""
        self._ahead_s += max(0.0, self._last - self.server_now - self._ahead_s)
        self._last = self.server_now + self._ahead_s
        return self._last

    def _reach(self, tags: Iterable[int]) -> None:
        refused = frozenset(tag for tag in tags if not self._tags[tag].ready)
        if refused:
            raise StateRecovering(refused)

    def _of(self, owner: str) -> Tag:
        return self._tags[tag_of(owner)]

    def _reach_owners(self, owners: Iterable[str]) -> None:
        self._reach({tag_of(owner) for owner in owners})

    def _refused(self, tag: int, lane: Lane | None = None) -> Refusal | None:
        """Why nothing is done for an item of `tag`. `lane`: its owner has to be the newest one, and is from now on."""
        if not self._tags[tag].ready:
            return StateRecovering(frozenset({tag}))
        if lane is not None:
            index = self._tags[tag].lane(lane)
            _, fenced = index.fence(lane.epoch, self.now)
            if fenced:
                return Fenced()
            index.epoch = lane.epoch
        return None

    def _refused_owner(self, owner: str, lane: Lane | None = None) -> Refusal | None:
        return self._refused(tag_of(owner), lane)

    def _done(self, owner: str, work: Callable[[], None], lane: Lane | None = None) -> Refusal | None:
        refusal = self._refused_owner(owner, lane)
        if refusal is None:
            work()
        return refusal
