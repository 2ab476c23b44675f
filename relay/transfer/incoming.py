"""Imports what another relay has exported, before this relay's workers begin.

Records are appended in batches. Before each, a record on `parked_messages` stores how many records were acknowledged,
and the ends of the next ones' topics. After a crash the next run searches from these ends which records of the batch
were appended, and appends the others. Rows and entries are written again, which has no effect.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from relay.clock import Clock
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import check_entry
from relay.control.records import ORIGIN, decode, lane_of_entry, read_topic
from relay.domain.control_key import control_key
from relay.domain.coordinate import Coordinate
from relay.domain.errors import UserError
from relay.domain.hop import hop_of
from relay.domain.identity import MessageId
from relay.domain.receiver import Life
from relay.domain.times import rfc3339
from relay.domain.topics import SHARED, Topics
from relay.engine.slices import SLICE_BYTES
from relay.log.partitioner import partition_of
from relay.log.port import Log, NewRecord, Record, TopicPartition
from relay.state.port import State
from relay.state.replies import answered
from relay.state.rows import Arrival, Mark, MessageStage, RowKey, Stage, delivery_row
from relay.transfer.form import FORMAT, BeginLine, EndLine, EntryLine, Line, MessageLine, RecordLine, RowLine
from relay.transfer.outgoing import prefixed
from workers import row_reconstruction
from workers.records import has_arrived

BATCH: Final = 200
NOWHERE: Final = (0, 2**40)
"""Partition and offset of messages that are not on this log: no log reaches that offset."""

_TWO: Final = "are these two exports in one?"

T = TypeVar("T", bound=Line)


@dataclass(slots=True)
class ImportResult:
    """The result of an import. `before`: records that an earlier run had appended. `kept`: entries that exist here."""

    id: str = ""
    again: bool = False
    entries: int = 0
    kept: int = 0
    messages: int = 0
    rows: int = 0
    records: Counter[str] = field(default_factory=Counter)
    before: int = 0


class ImportProgress(Struct, frozen=True):
    """`records` of the export are acknowledged; the next ones may be behind `ends`: topic, partition and offset of
    each. `over`: the import is complete."""

    records: int = 0
    ends: Sequence[tuple[str, int, int]] = ()
    over: bool = False


class Import:
    """One run; no other may run at the same time. `lines`: of a whole export. `report`: takes a sentence about each
    wait."""

    def __init__(
        self, log: Log, state: State, topics: Topics, clock: Clock, lines: Iterator[Line], report: Callable[[str], None]
    ) -> None:
        self._log = log
        self._state = state
        self._topics = topics
        self._clock = clock
        self._lines = lines
        self._report = report
        self._read = 0
        self._records = 0
        self._progress = ImportProgress()
        self._lanes: _Lanes | None = None
        self._keys: set[str] | None = None
        self.taken = ImportResult()

    async def run(self) -> ImportResult:
        """Raises UserError unless the lines are a whole export."""
        begin = next(self._lines, None)
        if not isinstance(begin, BeginLine):
            raise UserError(f"not a whole export: {'its first line is missing' if begin else 'it is empty'}")
        if begin.format != FORMAT:
            raise UserError(
                f"not an export that this version reads: relay {begin.version} made it, in format {begin.format}"
            )
        self.taken.id = begin.id
        self._progress = await self._known_progress()
        if self._progress.over:
            self.taken.again = True
            return self.taken
        self._read = 1
        batch: list[Line] = []
        weight = 0
        for line in self._lines:
            added = len(line.value or b"") if isinstance(line, RecordLine) else 0
            if batch and (_kind(line) != _kind(batch[0]) or self._is_full(batch, weight + added)):
                await self._take(batch)
                batch, weight = [], 0
            weight += added
            if isinstance(line, EndLine):
                if line.lines != self._read:
                    raise UserError(f"the export has {line.lines} lines, but {self._read} were read: it is incomplete")
                await self._note(ImportProgress(self._records, over=True))
                if next(self._lines, None) is not None:
                    raise UserError(f"line {line.lines + 1} was imported, and what is behind it was not: {_TWO}")
                return self.taken
            batch.append(line)
            self._read += 1
        raise UserError("the export ends early: the part that was read is kept; run this again with the whole export")

    def _is_full(self, batch: Sequence[Line], weight: int) -> bool:
        """Whether a batch is full. It also ends where an earlier run, with other batches, had appended everything
        before."""
        done = isinstance(batch[0], RecordLine) and self._records + len(batch) == self._progress.records
        return len(batch) == BATCH or weight > SLICE_BYTES or done

    async def _take(self, batch: Sequence[Line]) -> None:
        match batch[0]:
            case EntryLine():
                await self._take_entries(_all_of(EntryLine, batch))
            case MessageLine():
                await self._take_messages(_all_of(MessageLine, batch))
            case RowLine():
                await self._take_rows(_all_of(RowLine, batch))
            case RecordLine():
                await self._take_records(_all_of(RecordLine, batch))
            case _:
                raise UserError(f"line {self._read}: a second beginning: {_TWO}")

    # entries

    async def _take_entries(self, entries: Sequence[EntryLine]) -> None:
        """Entries that this relay has already stay unchanged."""
        if self._keys is None:
            self._keys = (await self._lanes_here()).keys
        fresh = [entry for entry in entries if entry.key not in self._keys]
        self._keys.update(entry.key for entry in fresh)
        self.taken.kept += len(entries) - len(fresh)
        self.taken.entries += len(fresh)
        for entry in fresh:
            if ":" not in entry.key:
                await self._create_lane(entry)
        topic = self._topics.receiver_config
        if fresh:
            await self._log.append([NewRecord(topic, entry.key.encode(), self._value(entry)) for entry in fresh])
        self._lanes = None

    def _value(self, entry: EntryLine) -> bytes:
        """A life of a name began somewhere on the former log, and before all records of this one."""
        value = entry.value.encode()
        if ":" in entry.key or not (declared := decode(value)).life.id:
            return value
        return replace(declared, life=Life(declared.life.id, self._topics.from_sender)).encode()

    async def _create_lane(self, entry: EntryLine) -> None:
        raw = decode(entry.value.encode()).entry
        if lane_of_entry(raw) == SHARED:
            return
        wanted = check_entry(ReceiverEntry, raw, ORIGIN, ("receivers", entry.key))
        specs = self._topics.lane_specs(entry.key, wanted.partitions)
        await self._log.create(specs, self._topics.lane_groups(entry.key))

    async def _lanes_here(self) -> "_Lanes":
        if self._lanes is None:
            self._lanes = await _Lanes.read(self._log, self._topics)
        return self._lanes

    # finished messages

    async def _take_messages(self, known: Sequence[MessageLine]) -> None:
        arrivals = [
            Arrival(MessageId(one.source_id, one.message_id), one.digest, *NOWHERE, MessageStage.ENQUEUED)
            for one in known
        ]
        await answered(self._state.enqueued(arrivals))
        self.taken.messages += len(known)

    async def _take_rows(self, rows: Sequence[RowLine]) -> None:
        await self._state.remember(
            [Mark(RowKey(one.owner, one.digest), one.generation, one.stage, code=one.code) for one in rows]
        )
        self.taken.rows += len(rows)

    # unfinished records

    async def _take_records(self, moved: Sequence[RecordLine]) -> None:
        first, self._records = self._records, self._records + len(moved)
        if self._records <= self._progress.records:
            self.taken.before += len(moved)
            return
        here = await self._lanes_here()
        records = [self._record(one, here) for one in moved]
        there: dict[int, Coordinate] = {}
        if first == self._progress.records and self._progress.ends:
            there = await self._appended(records)
        else:
            await self._note(ImportProgress(first, await self._ends(records)))
        await self._wait(max(one.not_before for one in moved))
        missing = [number for number in range(len(records)) if number not in there]
        if missing:
            written = await self._log.append([records[number] for number in missing])
            there.update(zip(missing, written, strict=True))
        self.taken.before += len(records) - len(missing)
        self.taken.records.update(moved[number].topic for number in missing)
        marks = [self._proved(record, there[number]) for number, record in enumerate(records)]
        if found := [mark for mark in marks if mark is not None]:
            await self._state.remember(found)

    async def _wait(self, until: float) -> None:
        """An attempt in flight may arrive until then; a receiver asked earlier says that it never saw the message."""
        rest = until - self._clock.time()
        if rest > 0:
            self._report(f"waits until {rfc3339(until)}: an attempt of the former relay may arrive until then")
            await self._clock.sleep(rest)

    def _record(self, moved: RecordLine, here: "_Lanes") -> NewRecord:
        headers = prefixed(self._topics, moved.headers)
        if moved.topic in ("to_receiver", "pending"):
            return self._in_lane(moved, NewRecord("", moved.key, moved.value, headers), here)
        topics = {
            "from_sender": self._topics.from_sender,
            "to_sender": self._topics.to_sender,
            "failed_messages": self._topics.failed_messages,
        }
        return NewRecord(topics[moved.topic], moved.key, moved.value, headers)

    def _in_lane(self, moved: RecordLine, record: NewRecord, here: "_Lanes") -> NewRecord:
        """The record for the lane that its receiver has in this relay."""
        hop = hop_of(record.headers)
        name = hop.delivery.receiver if hop is not None else moved.lane or SHARED
        if moved.declared and name not in here.declared:
            raise UserError(
                f"receiver {name} is not declared here, and has unfinished messages: apply the receivers file of the "
                "former relay, and import again"
            )
        lane = name if name in here.own else SHARED
        topic = self._topics.to_receiver(lane) if moved.topic == "to_receiver" else self._topics.pending(lane)
        key = record.key
        if hop is not None:
            key = (name if lane == SHARED else hop.delivery.source_id).encode()
        return NewRecord(topic, key, record.value, record.headers)

    def _proved(self, record: NewRecord, at: Coordinate) -> Mark | None:
        """The rows that the record proves now that it is on this log."""
        if record.topic == self._topics.failed_messages:
            letter = Record(*at, record.key, record.value, record.headers, 0)
            return row_reconstruction.failed(letter, self._topics).mark
        hop = hop_of(record.headers)
        if hop is None or record.topic == self._topics.from_sender:
            return None
        if record.topic == self._topics.to_sender:
            if hop.outcome == "failed" or has_arrived(record):
                return None
            return Mark(delivery_row(hop.delivery), hop.generation, Stage.PUBLISHED, (at.partition, at.offset))
        if record.topic.startswith(self._topics.pending("")):
            return Mark(delivery_row(hop.delivery), hop.generation, Stage.AWAITING)
        return None

    # progress

    async def _known_progress(self) -> ImportProgress:
        topic, key = self._topics.parked_messages, self._key()
        partition = partition_of(key, self._topics.parked().partitions)
        progress = ImportProgress()
        async for records in self._log.scan(topic, partition):
            for record in records:
                if record.key == key:
                    progress = msgspec.json.decode(record.value or b"{}", type=ImportProgress)
        return progress

    async def _note(self, progress: ImportProgress) -> None:
        await self._log.append([NewRecord(self._topics.parked_messages, self._key(), msgspec.json.encode(progress))])

    def _key(self) -> bytes:
        """A key that no parked record has: readers skip it."""
        return f"import:{self.taken.id}".encode()

    async def _ends(self, records: Sequence[NewRecord]) -> list[tuple[str, int, int]]:
        there = await self._log.describe(sorted({record.topic for record in records}))
        places = [TopicPartition(name, n) for name, state in there.items() for n in range(state.spec.partitions)]
        return [(*place, end) for place, end in (await self._log.ends(places)).items()]

    async def _appended(self, records: Sequence[NewRecord]) -> dict[int, Coordinate]:
        """The records that an interrupted run has appended, by their number."""
        found: defaultdict[object, list[Coordinate]] = defaultdict(list)
        for topic, partition, end in self._progress.ends:
            async for batch in self._log.scan(topic, partition, start=end):
                for record in batch:
                    found[_content(record)].append(record.coordinate)
        return {number: found[what].pop(0) for number, one in enumerate(records) if found.get(what := _content(one))}


class _Lanes(NamedTuple):
    """The receivers with a lane of their own here, all keys of entries, and the declared receivers."""

    own: frozenset[str]
    keys: set[str]
    declared: Container[str]

    @classmethod
    async def read(cls, log: Log, topics: Topics) -> "_Lanes":
        """Raises UserError while a receiver is between two lanes."""
        there = await read_topic(log, topics)
        if moving := sorted(name for name, route in there.routes.all().items() if route.moving):
            raise UserError(f"{moving[0]} is between two lanes here: run the relay until that move has ended")
        names = [name for name in there.declared.own() if control_key(name).kind == "receiver"]
        own = (
            name
            for name in names
            if (there.routes.route(name).lane or lane_of_entry(there.declared[name].entry)) != SHARED
        )
        keys: set[str] = set()
        async for records in log.scan(topics.receiver_config, 0):
            for record in records:
                key = (record.key or b"").decode(errors="replace")
                (keys.discard if record.value is None else keys.add)(key)
        return cls(frozenset(own), keys, there.declared)


def _kind(line: Line) -> object:
    return type(line), line.topic if isinstance(line, RecordLine) else None


def _all_of(kind: type[T], batch: Sequence[Line]) -> list[T]:
    return [line for line in batch if isinstance(line, kind)]


def _content(record: NewRecord | Record) -> object:
    return record.topic, record.key, record.value, tuple(record.headers)
