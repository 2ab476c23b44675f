"""FromSender: routes each message to its receivers.

1. Read the record, in either wire form. A record that cannot be read or is too large is a dead letter (`invalid`,
   `too_large`).
2. Look up the message. A known id whose hop records are all acknowledged is a duplicate and skipped; one with other
   bytes is a dead letter (`id_conflict`).
3. Find its receivers: those it names, or those that subscribe and whose filters accept it. A receiver that is switched
   off, or whose settings this process cannot use, gets it later. A message that no filter accepts is finished. The
   relay's own events go to the receivers that may see them.
4. Work out what the source keeps of it for the callback. If that fails, or its times are not valid, the message is a
   dead letter (`invalid`) for each receiver. One that was erased meanwhile is `discarded` likewise.
5. Store the end of each delivery that fails here. One that was begun, after an earlier routing, ends in its lane.
6. Append one hop record per receiver, and a dead letter for each delivery that failed. One whose topic does not take
   its record fails now (`too_large`): step 5 for it, then this one again.
7. Once these are acknowledged, mark the deliveries that failed, and remember the message as enqueued.

Among the messages are markers, at which a receiver's move to another lane takes effect (`relay/domain/route.py`). Each
is published on `receiver_config` in its turn.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from msgspec import structs

from relay.domain.control_key import encode_value
from relay.domain.directory import Directory, Moves
from relay.domain.errors import ExpressionError, InvalidRecord
from relay.domain.filters import UNDECIDED, FilterInput
from relay.domain.hop import KEEP_HEADER, decode_hop, encode_hop
from relay.domain.identity import OWN_SOURCE, DeliveryId
from relay.domain.message import Message, fault_of_times, message_digest, parse_message, sender_headers
from relay.domain.reasons import REASON_CODES
from relay.domain.receiver import NO_TOPIC, Receiver, SeenTopic, Source
from relay.domain.recipients import may_have_none, may_name, recipients
from relay.domain.route import Cut, Marker, lane_at, marker_in
from relay.domain.topics import DAY_S, Topics
from relay.domain.variables import kept_of
from relay.engine.decision import Dead, Done, Later
from relay.engine.work import LookupResult, Outcome, Work
from relay.log.port import Coordinate, Headers, NewRecord, Record
from relay.state.attempts import Change, Settlement
from relay.state.port import Lane, State
from relay.state.replies import answered
from relay.state.rows import Arrival, Mark, MessageRow, MessageStage, Result, Row, Stage, delivery_row
from workers.dependencies import ERASED, Dependencies
from workers.records import Letters, first_hop, lane_record
from workers.tables import LookedUpFirst, WithoutRows

UNROUTABLE: Final = Later(5.0, "the entry of a receiver cannot be read here: its lane, or what it subscribes to")
UNREADABLE_KEEP: Final = Later(5.0, "the entry of its source cannot be read here: what it keeps of each message")
_KEPT_MS: Final = 7 * DAY_S * 1000
"""Retention of `from_sender`: no older record can exist, whatever its sender says."""


class Incoming(Work):
    """A message on its way to its receivers."""

    __slots__ = ("arrival", "conflict", "failed", "keep", "message", "origin", "stored")

    def __init__(self, record: Record, message: Message) -> None:
        super().__init__(record, None, 0, None, "from_sender")
        self.message = message
        self.arrival = Arrival(message.id, message_digest(message), record.partition, record.offset)
        self.conflict = False
        self.origin = record.coordinate
        """Its first record, if it was sent more than once."""
        self.failed: dict[str, Dead] = {}
        """Receivers that get a dead letter instead of it: those that do not exist or whose topic does not take it, or
        all. Their letters come last, in this order."""
        self.stored = 0
        """The ends of how many of these, of the first ones, are stored."""
        self.keep: str | None = None
        """JSON of what its source keeps of it."""


class MoveMarker(Work):
    """A marker of a move among the messages."""

    __slots__ = ("marker",)

    def __init__(self, record: Record, marker: Marker) -> None:
        super().__init__(record, None, 0, None, "from_sender")
        self.marker = marker


class MessageTable(LookedUpFirst):
    """The known messages, the first guard against duplicates; and the moves that must be known before any is routed."""

    def __init__(self, state: State, moves: Moves, letter: Callable[[Incoming, str, Dead], NewRecord]) -> None:
        self._state = state
        self._moves = moves
        self._letter = letter
        self._epochs: dict[tuple[str, int], int] = {}
        self._topics: dict[tuple[str, int], SeenTopic] = {}
        """By lane, as of its first record: a topic that is created again is read in other lanes."""

    async def intake(self, lane: Lane, works: Sequence[Incoming | MoveMarker]) -> list[LookupResult]:
        markers = [work for work in works if isinstance(work, MoveMarker)]
        # A former owner may have read markers before our first record, and this process may not know of a move yet.
        is_first = self._epochs.get(lane[:2]) != lane.epoch
        if is_first or not all(self._moves.announced(work.marker) for work in markers):
            await self._moves.catch_up()
        if is_first:
            self._topics[lane[:2]] = await self._moves.present_topic(lane.topic)
            self._epochs[lane[:2]] = lane.epoch
        arrived = await self._arrive([work for work in works if isinstance(work, Incoming)])
        if not markers:
            return arrived
        seen = iter(arrived)
        return [next(seen) if isinstance(work, Incoming) else LookupResult.READY for work in works]

    def topic_of(self, record: Record) -> SeenTopic:
        return self._topics.get((record.topic, record.partition), NO_TOPIC)

    async def _arrive(self, works: Sequence[Incoming]) -> list[LookupResult]:
        rows = await answered(self._state.arrive([work.arrival for work in works]))
        return [_seen(work, row) for work, row in zip(works, rows, strict=True)]

    def letters_instead(
        self, work: Incoming | MoveMarker, records: Sequence[NewRecord], dead: Dead
    ) -> Sequence[NewRecord]:
        if isinstance(work, MoveMarker):
            return ()
        names = [decode_hop(record.headers).delivery.receiver for record in records]
        work.failed |= dict.fromkeys(names, dead)
        return [self._letter(work, name, dead) for name in names]

    async def settle(self, works: Sequence[Incoming | MoveMarker]) -> None:
        """An earlier owner may have routed the same message before its receivers changed. So an end counts only if no
        attempt has begun, and none begins after it."""
        ending = [work for work in works if isinstance(work, Incoming) and len(work.failed) > work.stored]
        if not ending:
            return
        rows = iter(await answered(self._state.settle([each for work in ending for each in _ends(work)])))
        for work in ending:
            failed = list(work.failed.items())
            new = failed[work.stored :]
            kept = [
                (name, end, letter if end == dead else self._letter(work, name, end))
                for (name, dead), letter in zip(new, work.out[-len(new) :], strict=True)
                if (end := _end_in(next(rows), dead)) is not None
            ]
            work.failed = dict([*failed[: work.stored], *((name, end) for name, end, _ in kept)])
            work.out = (*work.out[: -len(new)], *(letter for _, _, letter in kept))
            work.stored = len(work.failed)

    async def mark(self, outcomes: Sequence[tuple[Incoming | MoveMarker, Outcome]]) -> None:
        works = [(work, outcome) for work, outcome in outcomes if isinstance(work, Incoming)]
        failed = [mark for work, outcome in works for mark in _failed_deliveries(work, outcome)]
        if failed:  # first: the next owner skips enqueued messages
            await answered(self._state.mark(failed))
        enqueued = [work.arrival for work, _ in works if not work.conflict]
        if enqueued:
            await answered(self._state.enqueued(enqueued))


def _seen(work: Incoming, row: MessageRow | None) -> LookupResult:
    if row is None:
        return LookupResult.READY
    ours = (row.partition, row.offset) == (work.record.partition, work.record.offset)
    if row.digest != work.arrival.digest and not ours:
        work.conflict = True
        return LookupResult.READY
    if row.stage is not MessageStage.ACCEPTED:
        work.origin = Coordinate(work.record.topic, row.partition, row.offset)
    return LookupResult.FINISHED if row.stage is MessageStage.ENQUEUED else LookupResult.READY


def _ends(work: Incoming) -> list[Settlement]:
    """The ends of the deliveries that fail here, for their rows: of those that are not stored."""
    return [
        Settlement(
            delivery_row(DeliveryId(name, *work.message.id)),
            0,
            b"",
            Change.RESULT,
            reason=dead.reason,
            result=Result("dead", reason=dead.reason, detail=dead.detail),
            unsent_ms=work.record.timestamp_ms,
        )
        for name, dead in list(work.failed.items())[work.stored :]
    ]


def _end_in(row: Row | None, dead: Dead) -> Dead | None:
    """The end that a delivery's row has: `dead`, or an earlier one, as of one that was cancelled. None if it was begun,
    or its letter is on the log. After a loss of the state the row may be unknown."""
    if row is None or row.stage is Stage.NONE:
        return dead
    result = row.result if row.stage is Stage.RESULT and not row.generation else None
    if result is None or result.reason is None:
        return None
    return dead if result.reason == dead.reason else Dead(result.reason, result.detail or "")


def _failed_deliveries(work: Incoming, outcome: Outcome) -> list[Mark]:
    """Rows of the deliveries that failed here."""
    if not work.failed or isinstance(outcome.decision, Dead):
        return []
    letters = outcome.at[-len(work.failed) :]
    return [
        Mark(
            delivery_row(DeliveryId(name, *work.message.id)),
            0,
            Stage.FAILED,
            (at.partition, at.offset),
            REASON_CODES[dead.reason],
        )
        for (name, dead), at in zip(work.failed.items(), letters, strict=True)
    ]


@dataclass(eq=False, repr=False)
class FromSender(WithoutRows):
    """The step; see the module's docstring. `max_payload_bytes`: the largest value of a record."""

    stage = "from_sender"

    topics: Topics
    directory: Directory
    state: State
    letters: Letters
    dependencies: Dependencies
    _: KW_ONLY
    max_payload_bytes: int
    moves: Moves

    def __post_init__(self) -> None:
        self.table = MessageTable(self.state, self.moves, self._letter)

    def admit(self, record: Record) -> Incoming | MoveMarker:
        size = len(record.value or b"")
        if not size and (marker := marker_in(record.headers)) is not None:
            return MoveMarker(record, marker)
        if size > self.max_payload_bytes:
            raise InvalidRecord("too_large", f"the record has {size} bytes; {self.max_payload_bytes} are allowed")
        message = parse_message(record.value, record.headers)
        self.dependencies.meter.received(foreign_key=record.key != message.source_id.encode())
        return Incoming(record, message)

    def step(self, work: Incoming | MoveMarker) -> Done | Dead | Later:
        if isinstance(work, MoveMarker):
            return self._switched_lane(work)
        message = work.message
        if work.conflict:
            return Dead("id_conflict", "this id was used before with another payload, type or receivers")
        source, erasures = self.directory.source(message.source_id), self.dependencies.erasures
        is_erased = erasures.known and erasures.has(message.id, (), work.record.timestamp_ms / 1000)
        if source.keep is None and not is_erased:
            return UNREADABLE_KEEP
        try:
            names = self._names(message)
        except InvalidRecord as error:
            return Dead(error.reason, error.detail)
        if names and (end := ERASED if is_erased else self._fault(work, source)) is not None:
            work.failed = dict.fromkeys(names, end)
            return Done(tuple(self._letters(work)))
        if not names:
            work.arrival = structs.replace(work.arrival, excluded=True)
        return self._routed(work, names)

    def _fault(self, work: Incoming, source: Source) -> Dead | None:
        """Why the message can be sent to no receiver. Without a fault, `work` has what its source keeps of it."""
        message = work.message
        has_times = message.time is not None or message.timing is not None  # most have none
        if has_times and (fault := fault_of_times(message, self._accepted_ms(work) / 1000)) is not None:
            return Dead("invalid", fault)
        try:
            work.keep = kept_of(source, message)
        except ExpressionError as error:
            return Dead("invalid", str(error))
        return None

    def _names(self, message: Message) -> Sequence[str]:
        """The message's receivers. One of the relay's own events may have none any more, and filters may exclude
        all. Raises InvalidRecord."""
        names = recipients(self.directory, message)
        if names or message.source_id == OWN_SOURCE:
            return names
        if not may_have_none(self.directory, message):
            raise InvalidRecord("unknown_receiver", "the message names no receiver, and none subscribes to it")
        self.dependencies.meter.filtered()
        return names

    def _routed(self, work: Incoming, names: Sequence[str]) -> Done | Later:
        if len(names) == 1 and (only := self._receiver(work, names[0])) is not None and only.unusable is None:
            return Done((self._hop(work, FilterInput(work.message), only, work.message.wait_s),))
        event = FilterInput(work.message)
        found = [(name, self._receiver(work, name)) for name in names]
        missing = [name for name, receiver in found if receiver is None]
        failed = {name: Dead("unknown_receiver", f"there is no receiver {name}") for name in missing}
        if any(self.directory.refusal(name) is not None for name in failed):
            return UNROUTABLE
        if work.message.receivers is None and any(one is not None and one.filter is UNDECIDED for _, one in found):
            return UNROUTABLE
        work.failed = failed
        # a request waits for only one delivery
        hops = [self._hop(work, event, receiver, 0) for _, receiver in found if receiver is not None]
        return Done((*hops, *self._letters(work)))

    def _receiver(self, work: Incoming, name: str) -> Receiver | None:
        """The receiver of a name; None if there is none that the message may name, or if the name belonged to another
        owner when the message arrived."""
        receiver = self.directory.receiver(name)
        if receiver is None or work.message.receivers is None:
            return receiver
        if not may_name(receiver, work.message):
            return None
        if receiver.owner is None:
            return receiver
        record = work.record
        return receiver if receiver.life.began_before(record.coordinate, self.table.topic_of(record)) else None

    def _switched_lane(self, work: MoveMarker) -> Done | Dead:
        """Switch the receiver's messages to its new lane from here on. This process knows at once, others before the
        commit."""
        marker, record = work.marker, work.record
        if not self.moves.announced(marker):
            return Dead("invalid", "an empty record claims to be a marker of a move that was never announced")
        known = self.moves.cut(marker.name, marker.version, record.partition)
        if not self.moves.is_in_progress(marker) or known not in (None, record.offset):
            return Done()
        cut = Cut(marker.name, marker.version, record.partition, record.offset)
        self.moves.note(cut)
        return Done((NewRecord(self.topics.receiver_config, cut.key.encode(), encode_value(cut)),))

    def dead_letter(self, record: Record, work: Incoming | MoveMarker | None, dead: Dead) -> NewRecord:
        return self.letters.dead_letter(_as_sent(record), dead)

    def _hop(self, work: Incoming, event: FilterInput, receiver: Receiver, wait_s: int) -> NewRecord:
        message, record = work.message, work.record
        cut = self.moves.cut(receiver.name, receiver.move, record.partition) if receiver.moving else None
        lane, move = lane_at(receiver, cut, record.offset)
        accepted_ms = self._accepted_ms(work)
        hop = first_hop(event, receiver, work.origin, accepted_ms, move=move, wait_s=wait_s, keep=work.keep)
        topic = self.topics.to_receiver(lane)
        return lane_record(topic, lane, receiver, message.source_id, message.payload, encode_hop(hop))

    def _accepted_ms(self, work: Incoming) -> int:
        """When the log took the message. If the topic uses the sender's clock, an impossible time is replaced by now: a
        wrong unit would let every message expire at once."""
        now_ms, recorded_ms = int(self.dependencies.clock.time() * 1000), work.record.timestamp_ms
        return recorded_ms if 0 <= now_ms - recorded_ms <= _KEPT_MS else now_ms

    def _letters(self, work: Incoming) -> Iterator[NewRecord]:
        return (self._letter(work, name, dead) for name, dead in work.failed.items())

    def _letter(self, work: Incoming, name: str, dead: Dead) -> NewRecord:
        """The dead letter of the message's delivery to `name`."""
        self.dependencies.meter.unrouted(DeliveryId(name, *work.message.id), dead.reason, dead.detail)
        extra: Headers = (("relay-receiver", name.encode()),)
        if work.keep is not None:
            extra += ((KEEP_HEADER, work.keep.encode()),)
        return self.letters.dead_letter(_as_sent(work.record), dead, extra=extra)


class TracedFromSender(FromSender):
    """The same step with spans. It is a class of its own, so that the other one does not even check for tracing."""

    def step(self, work: Incoming | MoveMarker) -> Done | Dead | Later:
        decision = super().step(work)
        tracing = self.dependencies.tracing
        if tracing is not None and isinstance(work, Incoming) and not isinstance(decision, Later):
            tracing.routed(work.message, self._accepted_ms(work), decision)
        return decision


def _as_sent(record: Record) -> Record:
    """Without hop metadata: a sender must not be able to have its failure listed under another receiver."""
    return record.changed(headers=sender_headers(record.headers))
