"""Exports the work of a stopped relay: entries, open dead letters, rows of finished messages, and unfinished records
with their bytes unchanged.

Rows are what `relay recover --dedup` would rebuild from the log; they are exported in place of the log. Nothing is
changed, except that a loss of the state is recorded. Memory holds one batch, and the places of parked records.
"""

import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from relay.clock import Clock
from relay.config.encryption import KeyRing, has_encrypted
from relay.control.apply import FILE
from relay.control.records import EntryRecord, decode, read_topic
from relay.control.resolve import last_settings, read_declared
from relay.domain.control_key import ENTRIES, JOBS, ROUTES, decode_key
from relay.domain.coordinate import Coordinate, Headers
from relay.domain.dead_letter import MOVED
from relay.domain.errors import RelayError, UserError
from relay.domain.hop import Hop, hop_of
from relay.domain.message import message_digest, message_of
from relay.domain.route import MARKER_HEADER
from relay.domain.sliced import sliced
from relay.domain.topics import Topics
from relay.engine.decision import Dead
from relay.engine.parked_copy import unwrap, unwrap_ours
from relay.log.port import Backlog, Log, NewRecord, Record, TopicPartition
from relay.recovery.rebuild import Rebuild
from relay.replay.letter import read_dead_letter, stage_of
from relay.replay.life import is_open, marked_place
from relay.state.port import FailedEntry, State
from relay.state.replies import Refusal, answered
from relay.state.rows import TAGS, Arrival, Mark, MessageStage, Row, RowKey, Stage, callback_row, delivery_row, tag_of
from relay.transfer.form import FORMAT, BeginLine, EndLine, EntryLine, Kind, Line, MessageLine, RecordLine, RowLine
from workers.delivery import can_be_asked
from workers.records import Letters, has_arrived

BATCH: Final = 16
"""Records that are read one by one: each may be as large as the log allows."""
LISTED: Final = 10_000
ASK_FIRST: Final = ("relay-ask-first", b"true")
_OF_ONE_LOG: Final = frozenset({"relay-move"})
"""Headers with a meaning for the moves of one relay only."""
_NAMES_A_TOPIC: Final = frozenset({"relay-origin", "relay-original-origin", "relay-stage"})

_ENDED: Final = frozenset({Stage.PUBLISHED, Stage.DONE, Stage.FAILED})
_POSTED: Final = _ENDED | {Stage.AWAITING}
_NOT_PUBLISHED: Final = frozenset({Stage.ACCEPTED, Stage.RESULT})


class Left(Enum):
    """OVER: nothing left. ALL: its step. IN_DOUBT: an attempt was started, and its outcome is unknown.
    NOT_PUBLISHED: an outcome is stored, and not on the log: only the relay itself publishes it."""

    OVER = "over"
    ALL = "all"
    IN_DOUBT = "in doubt"
    NOT_PUBLISHED = "not published"


class RowCollector:
    """Collects the rows of a `Rebuild` in place of the state, from which it reads."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.lines: list[Line] = []

    async def enqueued(self, arrivals: Sequence[Arrival]) -> list[Refusal | None]:
        self.lines += [MessageLine(*arrival.id, arrival.digest) for arrival in arrivals]
        return [None] * len(arrivals)

    async def remember(self, marks: Sequence[Mark]) -> None:
        self.lines += [RowLine(*mark.row, mark.generation, mark.stage, mark.code) for mark in marks]

    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        return

    async def peek(self, rows: Sequence[RowKey]) -> list[Row | Refusal]:
        return await self._state.peek(rows)


@dataclass(eq=False, repr=False)
class Export:
    """One run. `since_ms`: older rows would have expired by now (Unix ms). `variables`: all variables that entries
    may refer to. `write`: takes each line. `with_secrets`: also export entries with secrets, still encrypted."""

    log: Log
    state: State
    topics: Topics
    clock: Clock
    _: KW_ONLY
    since_ms: int
    variables: Mapping[str, str]
    ring: KeyRing
    with_secrets: bool
    version: str
    write: Callable[[Line], None]
    _declared: Mapping[str, EntryRecord] = field(default_factory=dict)
    _gaps: frozenset[int] = frozenset()
    _lines: int = 0

    def __post_init__(self) -> None:
        self._now = self.clock.time()
        self._letters = Letters(self.topics, self.clock)

    async def run(self) -> None:
        """Raises UserError if the relay has a move to finish, or secrets were not requested, and RelayError if the
        log changed meanwhile."""
        there = await read_topic(self.log, self.topics)
        self._declared = there.declared
        if moving := sorted(name for name, route in there.routes.all().items() if route.moving):
            raise UserError(f"{moving[0]} is between two lanes: run the relay until that move has ended, and stop it")
        declared = await read_declared(self.log, self.topics)
        backlogs = await self._backlogs(declared.lanes)
        self._gaps = frozenset(await self.state.gaps(range(TAGS)))
        self._write([BeginLine(FORMAT, _id_of(backlogs), self._now, self.version)])
        await self._entries()
        await self._open_letters(backlogs)
        memory = RowCollector(self.state)
        await Rebuild(
            self.log,
            memory,
            self.topics,
            lanes=declared.lanes,
            source=declared.sources.source,
            since_ms=self.since_ms,
            report=lambda _read: self._write_all(memory),
        ).run()
        self._write_all(memory)
        await self._unfinished(backlogs)
        if await self._backlogs(declared.lanes) != backlogs:
            raise RelayError("the log changed during the export: is the relay, or its API, still running?")
        self._write([EndLine(self._lines)])

    def _write(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.write(line)
            self._lines += 1

    def _write_all(self, memory: RowCollector) -> None:
        self._write(memory.lines)
        memory.lines.clear()

    async def _backlogs(self, lanes: Iterable[str]) -> list[Backlog]:
        return sorted(await self.log.backlogs(self.topics.groups(lanes)), key=lambda each: each.partition)

    # entries

    async def _entries(self) -> None:
        topic = self.topics.receiver_config
        newest: dict[bytes, int] = {}
        async for records in self.log.scan(topic, 0):
            newest.update((record.key or b"", record.offset) for record in records)
        async for records in self.log.scan(topic, 0):
            alive = [record for record in records if newest.get(record.key or b"") == record.offset]
            self._write(entry for record in alive if (entry := self._entry(record)) is not None)

    def _entry(self, record: Record) -> EntryLine | None:
        """Moves and jobs belong to one log only; entries of a receivers file are declared where that file is."""
        key = decode_key(record.key)
        if key is None or record.value is None or key.kind in ROUTES | JOBS:
            return None
        if key.kind in ENTRIES and decode(record.value).by == FILE:
            return None
        text = record.value.decode()
        if has_encrypted(text) and not self.with_secrets:
            raise UserError(
                f"{key.text} has secrets that are encrypted in the log: --with-secrets exports them as they are, for a "
                "relay that has the key, too; or replace them with references first"
            )
        return EntryLine(key.text, text)

    async def _open_letters(self, backlogs: Sequence[Backlog]) -> None:
        """The dead letters that are listed. If the list of their receiver is full, also others that a replay would
        send."""
        listed, full = set[Coordinate](), set[str]()
        for receiver in await self.state.failed_receivers():
            entries = sorted(await self.state.failed(receiver, limit=LISTED), key=lambda entry: entry.at)
            if len(entries) == LISTED:
                full.add(receiver)
                listed.update(entry.at for entry in entries)
            for some in sliced(entries, BATCH):
                for record in await self.log.read([(entry.at, None) for entry in some]):
                    if record is not None:
                        self._write([self._moved("failed_messages", record, (MOVED,))])
        if full:
            for each in backlogs:
                if each.partition.topic == self.topics.failed_messages:
                    await self._letters_beyond(each, full, listed)

    async def _letters_beyond(self, backlog: Backlog, full: Container[str], listed: Container[Coordinate]) -> None:
        """The open dead letters of these receivers that are not listed. Those that are not read yet are exported as
        unfinished."""
        async for batch in self.log.scan(*backlog.partition, end=backlog.finished):
            for some in sliced([record for record in batch if record.coordinate not in listed], BATCH):
                letters = [read_dead_letter(record, self.topics) for record in some]
                wanted = [letter for letter in letters if letter.entry.receiver in full]
                rows = await answered(self.state.peek([delivery_row(letter.delivery) for letter in wanted]))
                for letter, row in zip(wanted, rows, strict=True):
                    if is_open(letter, row) and marked_place(letter, row) is None:
                        self._write([self._moved("failed_messages", letter.record, (MOVED,))])

    # unfinished records

    async def _unfinished(self, backlogs: Sequence[Backlog]) -> None:
        """The most advanced records come first: if a message is in two places, the one nearer to its end counts.
        Parked records are exported as part of their original partition."""
        parked = await self._parked()
        kinds = {each.partition: stage_of(each.partition.topic, self.topics) or "failed_messages" for each in backlogs}
        for kind in ("to_sender", "pending", "to_receiver", "failed_messages", "from_sender"):
            for each in backlogs:
                if kinds[each.partition] != kind:
                    continue
                async for records in self._in_order(each, each.position, parked.get(each.partition, [])):
                    self._write(await self._left(kind, records))

    async def _in_order(
        self, backlog: Backlog, start: int, parked: Sequence["_Place"]
    ) -> AsyncIterator[Sequence[Record]]:
        before = sorted(place for place in parked if place.offset < start)
        for some in sliced(before, BATCH):
            copies = await self.log.read([(place.at, place.key) for place in some])
            yield [unwrap(copy).record for copy in copies if copy is not None]
        async for records in self.log.scan(*backlog.partition, start=start, end=backlog.end):
            yield records

    async def _parked(self) -> Mapping[TopicPartition, Sequence["_Place"]]:
        found: dict[TopicPartition, list[_Place]] = defaultdict(list)
        for partition in range(self.topics.parked().partitions):
            alive: dict[bytes, tuple[TopicPartition, _Place]] = {}
            async for records in self.log.scan(self.topics.parked_messages, partition):
                for record in records:
                    copy = None if record.value is None else unwrap_ours(record)
                    alive.pop(record.key or b"", None)
                    if copy is not None:
                        of = TopicPartition(copy.record.topic, copy.record.partition)
                        alive[record.key or b""] = of, _Place(copy.record.offset, copy.at, copy.key)
            for of, place in alive.values():
                found[of].append(place)
        return found

    async def _left(self, kind: Kind, records: Sequence[Record]) -> list[RecordLine]:
        if kind == "failed_messages":
            return [self._moved(kind, record) for record in records]
        if kind == "from_sender":
            return [self._moved(kind, record) for record in await self._unrouted(records)]
        hops = [hop_of(record.headers) for record in records]
        keys = [key for hop in hops if hop is not None for key in _rows_of(hop)]
        rows = dict(zip(keys, await answered(self.state.peek(keys)), strict=True)) if keys else {}
        lines = [self._line(kind, record, hop, rows) for record, hop in zip(records, hops, strict=True)]
        return [line for line in lines if line is not None]

    async def _unrouted(self, records: Sequence[Record]) -> list[Record]:
        own = [record for record in records if all(name != MARKER_HEADER for name, _ in record.headers)]
        found = {number: message_of(record.value, record.headers) for number, record in enumerate(own)}
        # of one that cannot be read, the other relay writes the dead letter
        read = {number: message for number, message in found.items() if message is not None}
        rows = dict(zip(read, await self.state.messages([message.id for message in read.values()]), strict=True))
        return [
            record
            for number, record in enumerate(own)
            if (row := rows.get(number)) is None
            or row.stage is not MessageStage.ENQUEUED
            or row.digest != message_digest(read[number])
        ]

    def _line(self, kind: Kind, record: Record, hop: Hop | None, rows: Mapping[RowKey, Row]) -> RecordLine | None:
        if hop is None:
            return self._moved(kind, record)
        row = rows[delivery_row(hop.delivery)]
        if kind == "to_sender":
            if has_arrived(record):
                return None
            left = left_of_result(hop, row, rows[_callback(hop)])
        else:
            left = left_of_delivery(kind, hop, row)
            if left is Left.ALL and row.stage is Stage.NONE and kind == "to_receiver" and self._has_gap(hop):
                left = Left.IN_DOUBT
        match left:
            case Left.OVER:
                return None
            case Left.ALL:
                return self._moved(kind, record)
            case Left.IN_DOUBT:
                return self._in_doubt(record, hop, row)
            case Left.NOT_PUBLISHED:
                who = f"{hop.delivery.source_id} {hop.delivery.message_id}"
                raise UserError(
                    f"an outcome of {who} is stored but not yet published: run the relay for a moment, and "
                    "stop it with SIGTERM"
                )

    def _has_gap(self, hop: Hop) -> bool:
        return tag_of(f"r:{hop.delivery.receiver}") in self._gaps

    def _in_doubt(self, record: Record, hop: Hop, row: Row) -> RecordLine:
        """Handles an ambiguous attempt as the relay would: asked about first, sent again, or dead-lettered."""
        name = hop.delivery.receiver
        if (declared := self._declared.get(name)) is None:
            return self._moved("to_receiver", record)  # it was removed: nothing is sent
        receiver = last_settings(name, declared.encode(), self.variables, self.ring)
        later = self._now + receiver.post.settle_s
        if can_be_asked(receiver):
            return self._moved("to_receiver", record, (ASK_FIRST,), not_before=later)
        if receiver.on_ambiguous == "resend":
            return self._moved("to_receiver", record, not_before=later)
        dead = Dead("ambiguous", "an attempt was started before the relay moved, and its outcome is unknown")
        return self._moved("failed_messages", self._letters.dead_letter(record, dead, hop, attempts=row.attempts))

    # lines of the export

    def _moved(
        self, kind: Kind, record: Record | NewRecord, more: Headers = (), *, not_before: float = 0.0
    ) -> RecordLine:
        lane, declared = None, False
        if kind in ("to_receiver", "pending"):
            lane = self.topics.lane_of(record.topic)
            hop = hop_of(record.headers)
            declared = hop is not None and hop.delivery.receiver in self._declared
        dropped = _OF_ONE_LOG | {name for name, _ in more}
        headers = tuple((name, self._unprefixed(name, value)) for name, value in record.headers if name not in dropped)
        return RecordLine(kind, record.key, record.value, headers + more, lane, not_before, declared)

    def _unprefixed(self, name: str, value: bytes) -> bytes:
        return value.removeprefix(self.topics.prefix.encode()) if name in _NAMES_A_TOPIC else value


class _Place(NamedTuple):
    """A parked record: the offset of its original, and the coordinate of its copy."""

    offset: int
    at: Coordinate
    key: bytes


def prefixed(topics: Topics, headers: Headers) -> Headers:
    """The headers, with names of topics as they are here."""
    prefix = topics.prefix.encode()
    return tuple((name, prefix + value if name in _NAMES_A_TOPIC else value) for name, value in headers)


def left_of_delivery(kind: Kind, hop: Hop, row: Row) -> Left:
    """What a record on `to_receiver_*` or `pending_from_receiver_*` still needs, by its row."""
    if row.generation > hop.generation:
        return Left.OVER
    stage = row.stage if row.generation == hop.generation else Stage.NONE
    if stage in (_POSTED if kind == "to_receiver" else _ENDED):
        return Left.OVER
    if stage in _NOT_PUBLISHED:
        return Left.NOT_PUBLISHED
    return Left.IN_DOUBT if kind == "to_receiver" and stage is Stage.SENDING else Left.ALL


def left_of_result(hop: Hop, delivery: Row, callback: Row) -> Left:
    """What a record on `to_sender` with a callback still needs, by its row. A callback in flight is repeated, as in the
    relay itself. The delivery's row counts first: of a process that died behind it, the callback's stays unfinished."""
    over = delivery.generation > hop.generation or delivery.stage is Stage.DONE
    if callback.stage is Stage.DONE or (over and hop.outcome != "failed"):
        return Left.OVER
    return Left.NOT_PUBLISHED if callback.stage in _NOT_PUBLISHED else Left.ALL


def _callback(hop: Hop) -> RowKey:
    return callback_row(hop.delivery, hop.generation, failed=hop.outcome == "failed")


def _rows_of(hop: Hop) -> tuple[RowKey, ...]:
    return (delivery_row(hop.delivery), _callback(hop))


def _id_of(backlogs: Sequence[Backlog]) -> str:
    """Two exports of an unchanged relay have one id."""
    spans = [(*each.partition, each.first, each.end, each.committed) for each in backlogs]
    return hashlib.sha256(repr(spans).encode()).hexdigest()[:32]
