"""FromSender: routes each message to its receivers.

1. read the record, in either wire form; what cannot be read, or is too large, is a dead letter (`invalid`,
   `too_large`);
2. look up the message: a known id with all hop records acknowledged is a duplicate and skipped, one with other bytes
   is a dead letter (`id_conflict`);
3. find its receivers: those it names, or those that subscribe and whose filters take it; one that is switched off, or
   whose settings this process cannot use, gets it later. What nobody's filter takes has come to its end. What the relay
   says itself goes to those that may hear it;
4. append one hop record per receiver, and a dead letter for each receiver nobody knows;
5. acknowledged: remember the message as enqueued.

Among the messages are markers, where a receiver's move to another lane takes effect (`relay/domain/route.py`): each is
told on `receiver_config`, in its turn.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from relay.domain.directory import Directory, Moves, NoMoves
from relay.domain.errors import InvalidRecord
from relay.domain.filters import UNDECIDED, FilterInput
from relay.domain.hop import encode_hop
from relay.domain.identity import OWN_SOURCE, DeliveryId
from relay.domain.message import Message, message_digest, parse_message, sender_headers
from relay.domain.reasons import REASON_CODES
from relay.domain.receiver import Receiver
from relay.domain.recipients import may_have_none, may_name, recipients
from relay.domain.route import Cut, Marker, lane_at, marker_in
from relay.domain.topics import DAY_S, Topics
from relay.engine.work import Dead, Done, Later, Outcome, Seen, Work
from relay.log.port import NewRecord, Record
from relay.state.attempts import CallKind
from relay.state.port import Lane, State
from relay.state.replies import answered
from relay.state.rows import Arrival, Mark, MessageRow, MessageStage, Result, Stage, delivery_row
from workers.dependencies import Outside
from workers.letters import Letters
from workers.routing import first_hop, lane_record
from workers.tables import LookedUpFirst

NOBODY_MOVES: Final = NoMoves()
UNROUTABLE: Final = Later(5.0, "the entry of a receiver cannot be read here: its lane, or what it subscribes to")
_KEPT_MS: Final = 7 * DAY_S * 1000
"""Retention of `from_sender`: no older record can be there, whatever its sender says."""


class Incoming(Work):
    """A message on its way to its receivers."""

    __slots__ = ("arrival", "conflict", "message", "unknown")

    def __init__(self, record: Record, message: Message) -> None:
        super().__init__(record, None, 0, None, "from_sender")
        self.message = message
        self.arrival = Arrival(message.id, message_digest(message), record.partition, record.offset)
        self.conflict = False
        self.unknown: tuple[str, ...] = ()
        """Receivers it names that do not exist."""


class Turn(Work):
    """A marker on its way: nobody's message."""

    __slots__ = ("marker",)

    def __init__(self, record: Record, marker: Marker) -> None:
        super().__init__(record, None, 0, None, "from_sender")
        self.marker = marker


class MessageTable(LookedUpFirst):
    """What is known of messages: the first memory against duplicates. And what has to be known before any is routed."""

    def __init__(self, state: State, moves: Moves) -> None:
        self._state = state
        self._moves = moves
        self._epochs: dict[tuple[str, int], int] = {}

    async def intake(self, lane: Lane, works: Sequence[Incoming | Turn]) -> list[Seen]:
        turns = [work for work in works if isinstance(work, Turn)]
        # A former owner may have met markers before our first record; and this process may not have heard of a move.
        if self._epochs.get(lane[:2]) != lane.epoch or not all(self._moves.announced(turn.marker) for turn in turns):
            await self._moves.catch_up()
            self._epochs[lane[:2]] = lane.epoch
        if not turns:
            return await self._arrive([work for work in works if isinstance(work, Incoming)])
        seen = iter(await self._arrive([work for work in works if isinstance(work, Incoming)]))
        return [next(seen) if isinstance(work, Incoming) else Seen.READY for work in works]

    async def _arrive(self, works: Sequence[Incoming]) -> list[Seen]:
        rows = await answered(self._state.arrive([work.arrival for work in works]))
        return [_seen(work, row) for work, row in zip(works, rows, strict=True)]

    async def mark(self, outcomes: Sequence[tuple[Incoming | Turn, Outcome]]) -> None:
        works = [(work, outcome) for work, outcome in outcomes if isinstance(work, Incoming)]
        enqueued = [work.arrival for work, _ in works if not work.conflict]
        if enqueued:
            await answered(self._state.enqueued(enqueued))
        failed = [mark for work, outcome in works for mark in _failed_deliveries(work, outcome)]
        if failed:
            await answered(self._state.mark(failed))


def _seen(work: Incoming, row: MessageRow | None) -> Seen:
    if row is None:
        return Seen.READY
    ours = (row.partition, row.offset) == (work.record.partition, work.record.offset)
    if row.digest != work.arrival.digest and not ours:
        work.conflict = True
        return Seen.READY
    return Seen.FINISHED if row.stage is MessageStage.ENQUEUED else Seen.READY


def _failed_deliveries(work: Incoming, outcome: Outcome) -> list[Mark]:
    """Rows of the deliveries to unknown receivers, whose dead letters come last among the work's records."""
    if not work.unknown or isinstance(outcome.decision, Dead):
        return []
    letters = outcome.at[-len(work.unknown) :]
    return [
        Mark(
            delivery_row(DeliveryId(name, *work.message.id)),
            0,
            Stage.FAILED,
            (at.partition, at.offset),
            REASON_CODES["unknown_receiver"],
        )
        for name, at in zip(work.unknown, letters, strict=True)
    ]


class FromSender:
    """The step; see the module's first lines. `max_payload_bytes`: the largest value of a record."""

    stage = "from_sender"
    kind = CallKind.POST
    parks = False
    capped = False

    def __init__(
        self,
        topics: Topics,
        directory: Directory,
        state: State,
        letters: Letters,
        outside: Outside,
        *,
        max_payload_bytes: int,
        moves: Moves = NOBODY_MOVES,
    ) -> None:
        self._topics = topics
        self._directory = directory
        self._letters = letters
        self._outside = outside
        self._max_bytes = max_payload_bytes
        self._moves = moves
        self.table = MessageTable(state, moves)

    def admit(self, record: Record) -> Incoming | Turn:
        size = len(record.value or b"")
        if not size and (marker := marker_in(record.headers)) is not None:
            return Turn(record, marker)
        if size > self._max_bytes:
            raise InvalidRecord("too_large", f"the record has {size} bytes; {self._max_bytes} are allowed")
        message = parse_message(record.value, record.headers)
        self._outside.meter.received(foreign_key=record.key != message.source_id.encode())
        return Incoming(record, message)

    def overdue(self, work: Incoming | Turn) -> None:
        return None

    def step(self, work: Incoming | Turn) -> Done | Dead | Later:
        if isinstance(work, Turn):
            return self._turned(work)
        message = work.message
        if work.conflict:
            return Dead("id_conflict", "this id came before with another payload, type or receivers")
        try:
            names = self._names(message)
        except InvalidRecord as error:
            return Dead(error.reason, error.detail)
        return self._routed(work, names)

    def _names(self, message: Message) -> Sequence[str]:
        """The receivers that it goes to; of an event of our own there may be none any more, and filters may leave none.
        Raises InvalidRecord."""
        names = recipients(self._directory, message)
        if names or message.source_id == OWN_SOURCE:
            return names
        if not may_have_none(self._directory, message):
            raise InvalidRecord("unknown_receiver", "the message names no receiver, and none subscribes to it")
        self._outside.meter.filtered()
        return names

    def _routed(self, work: Incoming, names: Sequence[str]) -> Done | Later:
        if len(names) == 1 and (only := self._receiver(work, names[0])) is not None and only.unusable is None:
            return Done((self._hop(work, FilterInput(work.message), only, work.message.wait_s),))
        event = FilterInput(work.message)
        found = [(name, self._receiver(work, name)) for name in names]
        work.unknown = tuple(name for name, receiver in found if receiver is None)
        if any(self._directory.refusal(name) is not None for name in work.unknown):
            return UNROUTABLE
        if work.message.receivers is None and any(one is not None and one.filter is UNDECIDED for _, one in found):
            return UNROUTABLE
        # a request waits for one delivery only
        hops = [self._hop(work, event, receiver, 0) for _, receiver in found if receiver is not None]
        return Done((*hops, *(self._unknown(work, name) for name in work.unknown)))

    def _receiver(self, work: Incoming, name: str) -> Receiver | None:
        """None: there is none that the message may name, or its name was another owner's when that came."""
        receiver = self._directory.receiver(name)
        if receiver is None or work.message.receivers is None:
            return receiver
        if not may_name(receiver, work.message.source_id):
            return None
        if receiver.owner is None:
            return receiver
        return receiver if receiver.life.began_before(work.record.coordinate) else None

    def _turned(self, work: Turn) -> Done | Dead:
        """From here on the receiver's messages take its new lane: known here at once, to others before the commit."""
        marker, record = work.marker, work.record
        if not self._moves.announced(marker):
            return Dead("invalid", "an empty record that claims to be a marker of a move, which nobody announced")
        known = self._moves.cut(marker.name, marker.version, record.partition)
        if not self._moves.is_under_way(marker) or known not in (None, record.offset):
            return Done()
        cut = Cut(marker.name, marker.version, record.partition, record.offset)
        self._moves.note(cut)
        return Done((NewRecord(self._topics.receiver_config, cut.key.encode(), cut.encode()),))

    def resume(self, work: Incoming | Turn, result: Result) -> Done | Dead:
        raise AssertionError("a message has no stored result")

    def bury(self, record: Record, work: Incoming | Turn | None, dead: Dead) -> NewRecord:
        return self._letters.bury(_as_sent(record), dead)

    def _hop(self, work: Incoming, event: FilterInput, receiver: Receiver, wait_s: int) -> NewRecord:
        message, record = work.message, work.record
        cut = self._moves.cut(receiver.name, receiver.move, record.partition) if receiver.moving else None
        lane, move = lane_at(receiver, cut, record.offset)
        accepted_ms = _accepted_ms(record, int(self._outside.clock.time() * 1000))
        hop = first_hop(event, receiver, record.coordinate, accepted_ms, move=move, wait_s=wait_s)
        topic = self._topics.to_receiver(lane)
        return lane_record(topic, lane, receiver, message.source_id, message.payload, encode_hop(hop))

    def _unknown(self, work: Incoming, name: str) -> NewRecord:
        dead = Dead("unknown_receiver", f"there is no receiver {name}")
        self._outside.meter.unrouted(DeliveryId(name, *work.message.id), dead.detail)
        return self._letters.bury(_as_sent(work.record), dead, extra=(("relay-receiver", name.encode()),))


class TracedFromSender(FromSender):
    """The same, told as spans. A step of its own, as the other must not even ask whether it is."""

    def step(self, work: Incoming | Turn) -> Done | Dead | Later:
        decision = super().step(work)
        tracing = self._outside.tracing
        if tracing is not None and isinstance(work, Incoming) and not isinstance(decision, Later):
            now_ms = int(self._outside.clock.time() * 1000)
            tracing.routed(work.message, _accepted_ms(work.record, now_ms), decision)
        return decision


def _as_sent(record: Record) -> Record:
    """Without hop metadata: a sender must not be able to have its failure listed under another receiver."""
    return structs.replace(record, headers=sender_headers(record.headers))


def _accepted_ms(record: Record, now_ms: int) -> int:
    """When the log took the message. Where the topic leaves that to the sender's clock, what cannot be is not believed,
    or a wrong unit would let every message expire at once."""
    return record.timestamp_ms if 0 <= now_ms - record.timestamp_ms <= _KEPT_MS else now_ms
