"""The state in memory: every rule of the port, a clock that tests turn, and memory that they can lose."""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from relay.domain.errors import PartitionLost, StateRecovering
from relay.domain.hold import Hold
from relay.domain.identity import MessageId
from relay.log.port import Coordinate, TopicPartition
from relay.state.attempts import BeginAsk, Settlement, Verdict
from relay.state.onlooker import LineHead, Openings, ParkedHead, Served, Sign, Watched
from relay.state.port import Counts, Due, EndpointHealth, FailedEntry, Gap, IntakeAsk, Lane, Parked, Remains, Restored
from relay.state.rows import TAGS, Arrival, Mark, MessageRow, MessageStage, Row, RowKey, Stage, tag_of
from tests.fakes.state_parking import LaneIndex, count_of
from tests.fakes.state_rows import Beginning, Rows, finished_until, mark, remember, settle

_NEWEST_FAILED = 10_000
_SIGN_KEPT_S = 7 * 86_400


@dataclass(slots=True)
class _Tag:
    """Everything under one hash tag; `ready` None: its memory is missing."""

    rows: Rows
    ready: bool | None = None
    doubt_until: float = 0.0
    lost_at: float = 0.0
    gap: Gap | None = None
    messages: dict[MessageId, tuple[MessageRow, float]] = field(default_factory=dict)
    lanes: dict[tuple[str, int], LaneIndex] = field(default_factory=dict)
    failed: dict[str, dict[Coordinate, FailedEntry]] = field(default_factory=dict)

    def lane(self, lane: Lane) -> LaneIndex:
        return self.lanes.setdefault((lane.topic, lane.partition), LaneIndex())

    def parked(self, owner: str) -> Counts:
        return count_of(one for one in _references(self) if one.row.owner == owner)

    def free(self, digest: bytes, now: float) -> None:
        if digest in self.rows.intents:
            self.lanes.setdefault(self.rows.intents[digest], LaneIndex()).free(digest, now)


@dataclass(slots=True)
class _Taken:
    """What a lane's owner may have in hand."""

    epoch: int
    before: int
    marked: dict[int, int]


class MemoryState:
    """Implements `relay.state.port.State`. `ready` False: empty memory, as of a server never used before.

    `clock`: seconds; None: a clock of its own that only `advance` moves.
    """

    def __init__(
        self, *, clock: Callable[[], float] | None = None, dedup_window_s: float = 604_800, ready: bool = True
    ) -> None:
        self._clock = clock or (lambda: 1_700_000_000.0)
        self._advanced_s = 0.0
        self._window_s = dedup_window_s
        self._tags: list[_Tag] = []
        self._leases: dict[str, tuple[str, float]] = {}
        self._forgotten: frozenset[int] = frozenset()
        self.lose()
        if ready:
            for tag in self._tags:
                tag.ready = True

    def advance(self, seconds: float) -> None:
        self._advanced_s += seconds

    def lose(self) -> None:
        """Lose everything, as FLUSHALL does."""
        self._tags = [_Tag(Rows(self._window_s)) for _ in range(TAGS)]
        self._signs: dict[TopicPartition, tuple[float, tuple[LineHead, ...]]] = {}
        self._leases.clear()
        self._taken: dict[tuple[str, int], _Taken] = {}

    @property
    def now(self) -> float:
        return self._clock() + self._advanced_s

    def _reach(self, tags: Iterable[int]) -> None:
        refused = frozenset(tag for tag in tags if not self._tags[tag].ready)
        if refused:
            raise StateRecovering(refused)

    def _of(self, owner: str) -> _Tag:
        return self._tags[tag_of(owner)]

    def _reach_owners(self, owners: Iterable[str]) -> None:
        self._reach({tag_of(owner) for owner in owners})

    def _fence(self, lane: Lane, tags: Iterable[int]) -> None:
        tags = set(tags)
        self._reach(tags)
        if any(self._tags[tag].lane(lane).epoch > lane.epoch for tag in tags):
            raise PartitionLost("a newer owner has the lane")
        for tag in tags:
            self._tags[tag].lane(lane).epoch = lane.epoch

    async def start(self) -> None:
        return

    async def problems(self) -> list[str]:
        return []

    async def time(self) -> float:
        return self.now

    async def close(self) -> None:
        return

    # messages
    def _message(self, one: MessageId) -> MessageRow | None:
        row, expires = self._of(f"s:{one.source_id}").messages.get(one, (None, 0.0))
        return row if expires > self.now else None

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[MessageRow | None]:
        self._reach_owners(f"s:{arrival.id.source_id}" for arrival in arrivals)
        known = []
        for arrival in arrivals:
            row = self._message(arrival.id)
            known.append(row)
            if row is None or arrival.stage > row.stage:
                self._store_message(arrival, arrival.stage, row)
        return known

    def _store_message(self, arrival: Arrival, stage: MessageStage, known: MessageRow | None) -> None:
        first = known or MessageRow(stage, arrival.digest, arrival.partition, arrival.offset)
        row = MessageRow(stage, first.digest, first.partition, first.offset)
        expires = finished_until(self.now, self._window_s)
        self._of(f"s:{arrival.id.source_id}").messages[arrival.id] = (row, expires)

    async def enqueued(self, arrivals: Sequence[Arrival]) -> None:
        self._reach_owners(f"s:{arrival.id.source_id}" for arrival in arrivals)
        for arrival in arrivals:
            row = self._message(arrival.id)
            if row is None or (row.stage is not MessageStage.ENQUEUED and _is_of(row, arrival)):
                self._store_message(arrival, MessageStage.ENQUEUED, row)

    async def messages(self, ids: Sequence[MessageId]) -> list[MessageRow | None]:
        self._reach_owners(f"s:{one.source_id}" for one in ids)
        return [self._message(one) for one in ids]

    # rows
    async def intake(self, lane: Lane, asks: Sequence[IntakeAsk]) -> list[Row]:
        self._reach_owners(ask.row.owner for ask in asks)
        return [self._intake(self._of(ask.row.owner), lane, ask) for ask in asks]

    def _intake(self, tag: _Tag, lane: Lane, ask: IntakeAsk) -> Row:
        digest, index = ask.row.digest, tag.lane(lane)
        row = tag.rows.load(digest, self.now)
        if row is not None and row.generation < ask.generation:
            row = None
        kept = digest in index.references
        behind = not kept and ask.queue is not None and index.head(ask.queue) is not None
        return tag.rows.show(digest, row, self.now, kept=kept, behind=behind)

    async def peek(self, rows: Sequence[RowKey]) -> list[Row]:
        self._reach_owners(row.owner for row in rows)
        found = [(self._of(row.owner).rows, row.digest) for row in rows]
        return [known.show(digest, known.load(digest, self.now), self.now) for known, digest in found]

    async def begin(self, lane: Lane, asks: Sequence[BeginAsk]) -> list[Verdict]:
        self._fence(lane, (tag_of(ask.row.owner) for ask in asks))
        verdicts = []
        for ask in asks:
            tag = self._of(ask.row.owner)
            references, is_open = tag.lane(lane).references, tag.gap is not None
            beginning = Beginning(tag.rows, self.now, tag.doubt_until, tag.lost_at, is_open, references, tag.parked)
            verdicts.append(beginning.verdict(ask))
        return verdicts

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | None]:
        self._reach_owners(one.row.owner for one in settlements)
        found = [(self._of(one.row.owner), one) for one in settlements]
        return [settle(tag.rows, one, self.now, partial(tag.free, now=self.now)) for tag, one in found]

    async def mark(self, marks: Sequence[Mark]) -> None:
        self._reach_owners(one.row.owner for one in marks)
        for one in marks:
            mark(self._of(one.row.owner).rows, one, self.now)

    async def remember(self, marks: Sequence[Mark]) -> None:
        self._reach_owners(one.row.owner for one in marks)
        for one in marks:
            remember(self._of(one.row.owner).rows, one, self.now)

    async def forget(self, rows: Sequence[RowKey]) -> None:
        self._reach_owners(row.owner for row in rows)
        for row in rows:
            self._of(row.owner).rows.active.pop(row.digest, None)

    # parking
    async def intend_to_park(self, lane: Lane, rows: Sequence[tuple[RowKey, int]]) -> None:
        self._fence(lane, (tag_of(row.owner) for row, _ in rows))
        for row, _ in rows:
            self._of(row.owner).rows.intents[row.digest] = (lane.topic, lane.partition)

    async def park(self, lane: Lane, parked: Sequence[Parked]) -> list[bool]:
        self._fence(lane, (tag_of(one.row.owner) for one in parked))
        return [self._park(self._of(one.row.owner), lane, one) for one in parked]

    def _park(self, tag: _Tag, lane: Lane, one: Parked) -> bool:
        row, enough = tag.rows.load(one.row.digest, self.now), Stage.RESULT if one.poll else Stage.ACCEPTED
        if row is not None and row.generation >= one.generation and row.stage >= enough:
            return False
        self._put(tag, lane, one)
        return True

    def _put(self, tag: _Tag, lane: Lane, one: Parked) -> None:
        tag.lane(lane).put(one, self.now)
        if one.poll:
            tag.rows.room(one.row.owner).discard(one.row.digest)

    async def next_due(self, lane: Lane, tags: Sequence[int]) -> dict[int, float]:
        self._reach(tags)
        for tag in tags:
            self._tags[tag].lane(lane).take_back(lane.epoch, self.now)
        found = {tag: self._tags[tag].lane(lane).due for tag in tags}
        return {tag: min(due.values()) - self.now for tag, due in found.items() if due}

    async def take_due(self, lane: Lane, tags: Sequence[int], *, limit: int, lease_s: float) -> list[Due]:
        self._fence(lane, tags)
        taken = []
        for index in (self._tags[tag].lane(lane) for tag in tags):
            index.take_back(lane.epoch, self.now)
            ripe = sorted((at, member) for member, at in index.due.items() if at <= self.now)
            for _, member in ripe[:limit]:
                index.due[member] = self.now + lease_s
                index.hand[member] = lane.epoch
                one = index.references[member]
                taken.append(Due(one.row, one.at))
        return taken

    async def unpark(self, lane: Lane, rows: Sequence[tuple[RowKey, bytes | None]]) -> list[bool]:
        self._reach_owners(row.owner for row, _ in rows)
        promoted = []
        for row, queue in rows:
            tag = self._of(row.owner)
            if tag.rows.intents.get(row.digest) == (lane.topic, lane.partition):
                del tag.rows.intents[row.digest]
            promoted.append(tag.lane(lane).drop(row.digest, queue, self.now))
        return promoted

    async def parked(self, owners: Sequence[str]) -> list[Counts]:
        self._reach_owners(owners)
        return [self._of(owner).parked(owner) for owner in owners]

    async def parked_total(self) -> Counts:
        self._reach(range(TAGS))
        return count_of(one for tag in self._tags for one in _references(tag))

    # owners
    async def epochs(self, lane: Lane, tags: Sequence[int]) -> dict[int, int]:
        self._reach(tags)
        found = {tag: self._tags[tag].lane(lane).epoch for tag in tags}
        return {tag: epoch for tag, epoch in found.items() if epoch >= 0}

    async def begin_anew(self, lane: Lane, seen: Mapping[int, int]) -> bool:
        self._reach(seen)
        done = True
        for tag, epoch in seen.items():
            index = self._tags[tag].lane(lane)
            if index.epoch == epoch:
                index.epoch = lane.epoch
                index.take_back(sys.maxsize, self.now)
            done = done and index.epoch == lane.epoch
        return done

    # who was at what
    async def reserve(self, lane: Lane, before: int) -> Remains | None:
        key = (lane.topic, lane.partition)
        former = self._taken.get(key)
        remains = None
        if former is not None and former.epoch != lane.epoch:
            remains = Remains(former.before, dict(former.marked))
            before = max(before, former.before)
        self._taken[key] = _Taken(lane.epoch, before, former.marked if former else {})
        return remains

    async def suspect(self, lane: Lane, offset: int, times: int) -> None:
        taken = self._taken.setdefault((lane.topic, lane.partition), _Taken(lane.epoch, 0, {}))
        if times:
            taken.marked[offset] = times
        else:
            taken.marked.pop(offset, None)

    async def leave(self, lane: Lane) -> None:
        key = (lane.topic, lane.partition)
        if key in self._taken and self._taken[key].epoch == lane.epoch:
            del self._taken[key]

    # life and recovery
    async def lost(self) -> frozenset[int]:
        for tag in self._tags:
            if tag.ready is None:
                tag.ready, tag.lost_at = False, self.now
        self._forgotten = frozenset(number for number, tag in enumerate(self._tags) if not tag.ready)
        return self._forgotten

    def forgotten(self) -> frozenset[int]:
        return self._forgotten

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        return [self._restore(lane, one) for one in parked]

    def _restore(self, lane: Lane, one: Parked) -> Restored:
        tag = self._of(one.row.owner)
        row = tag.rows.load(one.row.digest, self.now)
        if row is not None and row.stage >= Stage.DONE and row.generation >= one.generation:
            return Restored.FINISHED
        tag.rows.intents[one.row.digest] = (lane.topic, lane.partition)
        if one.row.digest in tag.lane(lane).references:
            return Restored.THERE
        self._put(tag, lane, one)
        return Restored.PUT_BACK

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float) -> None:
        missing = frozenset(tag for tag in tags if self._tags[tag].ready is None)
        if missing:
            raise StateRecovering(missing)
        for tag in (self._tags[number] for number in tags):
            if not tag.ready:
                tag.ready, tag.doubt_until = True, max(tag.doubt_until, self.now + in_doubt_s)
                tag.gap = Gap(tag.lost_at, 0.0) if in_doubt_s > 0 else None

    async def gaps(self, tags: Sequence[int]) -> dict[int, Gap]:
        self._reach(tags)
        return {tag: gap for tag in tags if (gap := self._tags[tag].gap) is not None}

    async def close_gaps(self, gaps: Mapping[int, Gap]) -> None:
        self._reach(gaps)
        for number, gap in gaps.items():
            if self._tags[number].gap == gap:
                self._tags[number].gap = None

    async def lease(self, name: str, owner: str, ttl_s: float) -> bool:
        holder, until = self._leases.get(name, (owner, math.inf))
        if holder != owner and until > self.now:
            return False
        self._leases[name] = (owner, self.now + ttl_s)
        return True

    async def release(self, name: str, owner: str) -> None:
        if name in self._leases and self._leases[name][0] == owner:
            del self._leases[name]

    # endpoints
    async def endpoints(self, owners: Sequence[str]) -> list[EndpointHealth]:
        self._reach_owners(owners)
        for owner in owners:
            self._of(owner).rows.count_absence(self.now)
        return [self._of(owner).rows.endpoint(owner).health(self.now) for owner in owners]

    async def attend(self, tags: Sequence[int]) -> None:
        for tag in tags:
            rows = self._tags[tag].rows
            rows.count_absence(self.now)
            rows.there_at = self.now

    async def hold(self, owner: str, hold: Hold) -> None:
        self._of(owner).rows.endpoint(owner).keep(hold, max(self.now, hold.since))

    async def hold_again(self, holds: Mapping[str, Hold], *, tags: Collection[int] = (), before: float = 0.0) -> None:
        for owner, hold in holds.items():
            endpoint = self._of(owner).rows.endpoint(owner)
            if endpoint.decided(self.now) < hold.since:
                endpoint.keep(hold, hold.since)
        for rows in (self._tags[tag].rows for tag in tags):
            for owner, endpoint in rows.endpoints.items():
                if endpoint.hold is not None and owner not in holds and endpoint.decided(self.now) < before:
                    endpoint.resume(self.now)

    async def resume(self, owner: str) -> None:
        self._of(owner).rows.endpoint(owner).resume(self.now)

    # for those who only look
    async def watch(self, rows: Sequence[RowKey]) -> list[Watched]:
        self._reach_owners(row.owner for row in rows)
        return [self._of(row.owner).rows.watched(row.digest, self.now) for row in rows]

    async def openings(self, owners: Sequence[str]) -> list[Openings]:
        self._reach_owners(owners)
        return [self._of(owner).rows.endpoint(owner).openings(self.now) for owner in owners]

    async def sign(self, signs: Sequence[Sign]) -> None:
        self._signs |= {TopicPartition(sign.topic, sign.partition): (self.now, sign.heads) for sign in signs}

    async def signs(self, lanes: Sequence[TopicPartition]) -> list[Served | None]:
        found = [self._signs.get(lane, (-math.inf, ())) for lane in lanes]
        return [Served(self.now - at, heads) if self.now - at < _SIGN_KEPT_S else None for at, heads in found]

    async def parked_heads(self, lane: TopicPartition, queues: Sequence[tuple[str, bytes]]) -> list[ParkedHead | None]:
        self._reach_owners(owner for owner, _ in queues)
        return [self._of(owner).lane(Lane(*lane, 0)).parked_head(queue) for owner, queue in queues]

    async def forget_endpoint(self, owner: str, lanes: Sequence[Lane] = ()) -> None:
        self._reach_owners([owner])
        tag = self._of(owner)
        tag.rows.endpoints.pop(owner, None)
        for lane in lanes:
            tag.lane(lane).epoch = -1

    # failed messages
    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        self._reach_owners(f"r:{entry.receiver}" for entry in entries)
        for entry in entries:
            index = self._of(f"r:{entry.receiver}").failed.setdefault(entry.receiver, {})
            index[entry.at] = entry
            if len(index) > _NEWEST_FAILED:
                del index[min(index.values(), key=lambda one: one.failed_at).at]

    async def failed(self, receiver: str, *, limit: int) -> list[FailedEntry]:
        self._reach_owners([f"r:{receiver}"])
        entries = self._of(f"r:{receiver}").failed.get(receiver, {}).values()
        return sorted(entries, key=lambda one: (one.failed_at, one.at), reverse=True)[:limit]

    async def failed_receivers(self) -> list[str]:
        self._reach(range(TAGS))
        return sorted(receiver for tag in self._tags for receiver, entries in tag.failed.items() if entries)


def _is_of(row: MessageRow, arrival: Arrival) -> bool:
    same_place = (row.partition, row.offset) == (arrival.partition, arrival.offset)
    return row.digest == arrival.digest or same_place


def _references(tag: _Tag) -> Iterable[Parked]:
    return [one for index in tag.lanes.values() for one in index.counted()]
