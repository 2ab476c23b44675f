"""What the state's fake says to records on their way: item by item, whatever becomes of the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec import structs

from relay.domain.identity import MessageId
from relay.log.port import TopicPartition
from relay.state.attempts import BeginRequest, Settlement, Verdict
from relay.state.port import Counts, IntakeRequest, Lane
from relay.state.replies import Refusal
from relay.state.rows import (
    Arrival,
    Due,
    DueRequest,
    Mark,
    MessageRow,
    MessageStage,
    Parked,
    ParkedLife,
    Row,
    RowKey,
    Stage,
    Superseded,
    Superseding,
    tag_of,
)
from tests.fakes.state_begin import Beginning
from tests.fakes.state_memory import Memory, Newest, Tag
from tests.fakes.state_rows import finished_until, mark, settle


class Records(Memory):
    """The part of the port whose items have replies of their own."""

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[MessageRow | Refusal | None]:
        return [self._refused_owner(f"s:{one.id.source_id}") or self._arrive(one) for one in arrivals]

    def _arrive(self, arrival: Arrival) -> MessageRow | None:
        row = self._message(arrival.id)
        if row is None or (
            row.stage < arrival.stage and row.stage is MessageStage.ACCEPTED and row.digest == arrival.digest
        ):
            self._store_message(arrival, arrival.stage, None)
        else:
            self._store_message(arrival, max(arrival.stage, row.stage), row)
        return row

    def _message(self, one: MessageId) -> MessageRow | None:
        row, expires = self._of(f"s:{one.source_id}").messages.get(one, (None, 0.0))
        return row if expires > self.now else None

    def _store_message(self, arrival: Arrival, stage: MessageStage, known: MessageRow | None) -> None:
        first = known or MessageRow(stage, arrival.digest, arrival.partition, arrival.offset)
        row = structs.replace(first, stage=stage, excluded=first.excluded or arrival.excluded)
        expires = finished_until(self.now, self._window_s)
        self._of(f"s:{arrival.id.source_id}").messages[arrival.id] = (row, expires)

    async def enqueued(self, arrivals: Sequence[Arrival]) -> list[Refusal | None]:
        return [self._done(f"s:{one.id.source_id}", partial(self._enqueued, one)) for one in arrivals]

    def _enqueued(self, arrival: Arrival) -> None:
        row = self._message(arrival.id)
        if row is None or (row.stage is not MessageStage.ENQUEUED and _is_of(row, arrival)):
            self._store_message(arrival, MessageStage.ENQUEUED, row)

    async def intake(self, asks: Sequence[tuple[Lane, IntakeRequest]]) -> list[Row | Refusal]:
        return [self._refused_owner(ask.row.owner) or self._intake(lane, ask) for lane, ask in asks]

    def _intake(self, lane: Lane, ask: IntakeRequest) -> Row:
        tag, digest = self._of(ask.row.owner), ask.row.digest
        index = tag.lane(lane)
        row = tag.rows.load(digest, self.now)
        if row is not None and row.generation < ask.generation:
            row = None
        kept = index.keeps(digest, ask.generation)
        behind = None if ask.queue is None else index.first(ask.queue)
        return tag.rows.show(digest, row, self.now, kept=kept, behind=behind)

    async def peek(self, rows: Sequence[RowKey]) -> list[Row | Refusal]:
        return [self._refused_owner(row.owner) or self._peek(row) for row in rows]

    def _peek(self, row: RowKey) -> Row:
        known = self._of(row.owner).rows
        return known.show(row.digest, known.load(row.digest, self.now), self.now)

    async def begin(self, asks: Sequence[tuple[Lane, BeginRequest]]) -> list[Verdict | Refusal]:
        parts: dict[tuple[Lane, int], list[int]] = {}
        for n, (lane, ask) in enumerate(asks):
            parts.setdefault((lane, tag_of(ask.row.owner)), []).append(n)
        verdicts: dict[int, Verdict | Refusal] = {}
        for (lane, tag), numbers in parts.items():
            refusal, beginning = self._refused(tag, lane), self._beginning(lane, self._tags[tag])
            verdicts |= {n: refusal or beginning.verdict(asks[n][1]) for n in numbers}
        return [verdicts[n] for n in range(len(asks))]

    def _beginning(self, lane: Lane, tag: Tag) -> Beginning:
        index = tag.lane(lane)
        return Beginning(
            lane=f"{lane.topic}/{lane.partition}",
            rows=tag.rows,
            now=self.now,
            doubt_until=tag.doubt_until,
            lost_at=tag.lost_at,
            gap=tag.gap is not None,
            end=None if tag.ends is None else tag.ends.get(TopicPartition(lane.topic, lane.partition), 0),
            keeps=index.keeps,
            first=index.first,
            parked=tag.parked,
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | Refusal | None]:
        return [self._refused_owner(one.row.owner) or self._settle(one) for one in settlements]

    def _settle(self, one: Settlement) -> Row | None:
        tag = self._of(one.row.owner)
        with self._waking(one.row.owner):
            lost = tag.may_have_lost(one.unsent_ms or 0, self.now)
            free = partial(tag.free, now=self.now)
            lost_at = tag.lost_at if self.now < tag.doubt_until else 0.0
            rebuilding = tag.is_rebuilding(self.now)
            return settle(tag.rows, one, self.now, free, lost=lost, rebuilding=rebuilding, lost_at=lost_at)

    @contextmanager
    def _waking(self, owner: str) -> Iterator[None]:
        opening = self._of(owner).rows.endpoint(owner).opening
        yield
        if self._of(owner).rows.endpoint(owner).opening < opening:
            self._hint("endpoints", owner.encode())

    async def mark(self, marks: Sequence[Mark]) -> list[Refusal | None]:
        return [self._done(one.row.owner, partial(self._mark, one)) for one in marks]

    def _mark(self, one: Mark) -> None:
        tag = self._of(one.row.owner)
        mark(tag.rows, one, self.now, partial(tag.free, now=self.now))
        if one.awaited:
            self._hint("ends", one.row.digest)

    async def supersede(self, messages: Sequence[Superseding]) -> list[Superseded]:
        self._reach_owners(one.row.owner for one in messages)
        found: list[Superseded] = []
        chains: dict[RowKey, list[int]] = {}  # places in this call: of those that the row replaces, and its own
        for place, one in enumerate(messages):
            is_repeat = one.row in chains
            found.append(self._supersede(self._of(one.row.owner), one, chains))
            if found[-1].by is None:
                chain = chains.setdefault(one.row, [])
                if is_repeat:
                    chain.pop()
                chain.append(place)
        for *earlier, last in chains.values():
            for place in earlier:
                found[place] = Superseded(messages[last].message_id, at_ms=found[last].at_ms)
        return found

    def _supersede(self, tag: Tag, one: Superseding, chains: dict[RowKey, list[int]]) -> Superseded:
        known = tag.newest.get(one.key)
        if known is not None and known.since != tag.lost_at and tag.may_have_lost(0, self.now):
            known.replaced = ()
        if known is None or known.until <= self.now:
            known = Newest(one, (), self.now + one.window_s if one.window_s else 0.0, 0.0, tag.lost_at)
        elif known.message.row != one.row:
            former = known.message
            is_later = former.offset > one.offset
            if former.partition != one.partition:
                is_later = (former.recorded_ms, former.partition) > (one.recorded_ms, one.partition)
            if is_later:
                return Superseded(former.message_id, at_ms=round(self.now * 1000))
            is_open = not one.window_s or known.closes > self.now
            closes = (known.closes if is_open else self.now + one.window_s) if one.window_s else 0.0
            is_proved = is_open and not tag.may_have_lost(former.recorded_ms, self.now)
            if is_proved and former.row in chains:
                chains[one.row] = chains.pop(former.row)
                is_proved = False
            replaced = (*known.replaced, *((former.row.digest,) if is_proved else ()))[-3:]
            known = Newest(one, replaced, closes, known.until, tag.lost_at)
        known.until = max(known.until, self.now + one.keep_s)
        tag.newest[one.key] = known
        return Superseded(None, known.replaced, max(0.0, known.closes - self.now), round(self.now * 1000))

    async def forget(self, rows: Sequence[RowKey]) -> list[Refusal | None]:
        return [self._done(row.owner, partial(self._forget, row)) for row in rows]

    def _forget(self, row: RowKey) -> None:
        self._of(row.owner).rows.active.pop(row.digest, None)

    async def intend_to_park(self, rows: Sequence[tuple[Lane, RowKey]]) -> list[Refusal | None]:
        return [self._done(row.owner, partial(self._intend, lane, row), lane) for lane, row in rows]

    def _intend(self, lane: Lane, row: RowKey) -> None:
        self._of(row.owner).intend(lane, row.digest)

    async def park(self, parked: Sequence[tuple[Lane, Parked]]) -> list[bool | Refusal]:
        return [self._refused_owner(one.row.owner, lane) or self._park(lane, one) for lane, one in parked]

    def _park(self, lane: Lane, one: Parked) -> bool:
        tag = self._of(one.row.owner)
        row, enough = tag.rows.load(one.row.digest, self.now), Stage.RESULT if one.poll else Stage.ACCEPTED
        if row is not None and row.generation >= one.generation and row.stage >= enough:
            return False
        if tag.lane(lane).keeps(one.row.digest, one.generation + 1):
            return False
        self._put(tag, lane, one)
        return True

    def _put(self, tag: Tag, lane: Lane, one: Parked) -> None:
        tag.lane(lane).put(one, self.now)
        if one.poll:
            tag.rows.room(one.row.owner).discard(one.row.digest)

    async def next_due(self, tags: Sequence[tuple[Lane, int]]) -> list[float | Refusal | None]:
        return [self._refused(tag) or self._next_due(lane, tag) for lane, tag in tags]

    def _next_due(self, lane: Lane, tag: int) -> float | None:
        index = self._tags[tag].lane(lane)
        if not index.due:
            return None
        index.take_back(lane.epoch, self.now)
        return min(index.due.values()) - self.now

    async def take_due(self, asks: Sequence[tuple[Lane, DueRequest]], *, lease_s: float) -> list[list[Due] | Refusal]:
        return [self._refused(ask.tag, lane) or self._take_due(lane, ask, lease_s) for lane, ask in asks]

    def _take_due(self, lane: Lane, ask: DueRequest, lease_s: float) -> list[Due]:
        index = self._tags[ask.tag].lane(lane)
        index.take_back(lane.epoch, self.now)
        return index.lend(lane.epoch, self.now, ask, lease_s)

    async def unpark(self, lives: Sequence[tuple[Lane, ParkedLife]]) -> list[bool | Refusal]:
        return [self._refused_owner(life.row.owner, lane) or self._unpark(lane, life) for lane, life in lives]

    def _unpark(self, lane: Lane, life: ParkedLife) -> bool:
        tag, digest = self._of(life.row.owner), life.row.digest
        if tag.lane(lane).keeps(digest, life.generation + 1):
            return False
        tag.withdraw(lane, digest)
        return tag.lane(lane).drop(digest, life.queue, self.now)

    async def parked(self, owners: Sequence[str]) -> list[Counts | Refusal]:
        return [self._refused_owner(owner) or self._of(owner).parked(owner) for owner in owners]


def _is_of(row: MessageRow, arrival: Arrival) -> bool:
    same_place = (row.partition, row.offset) == (arrival.partition, arrival.offset)
    return row.digest == arrival.digest or same_place
