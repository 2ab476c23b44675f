"""Plans the replay or discard of one dead letter, or one delivery, from its rows. Pure.

A replay begins the generation after the letter's, and a discard ends that one at once. Neither does anything if a later
one is known: so each letter is replayed or discarded only once, however often it is tried.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.directory import Directory
from relay.domain.errors import ExpressionError
from relay.domain.filters import FilterInput
from relay.domain.hop import LIFE_HEADER, NO_RECEIVER, Hop, encode_hop
from relay.domain.identity import DeliveryId, callback_id
from relay.domain.message import Message, message_of
from relay.domain.reasons import DISCARDED, ON_PURPOSE, REASON_CODES
from relay.domain.receiver import Receiver
from relay.domain.recipients import may_name, valid_recipients
from relay.domain.result_delivery import Handover, to_code
from relay.domain.status_chain import first_position
from relay.domain.topics import Topics, lane_of
from relay.domain.variables import UnreadableKeep, kept_of
from relay.log.port import Coordinate, Headers, NewRecord, Record
from relay.replay.cancel import UnsentLife
from relay.replay.letter import Letter, is_named
from relay.replay.life import REPLAYED, Claim, next_life
from relay.state.rows import Mark, Row, Stage, callback_row, delivery_row
from workers.delivery import can_be_asked, own_status_url
from workers.records import first_hop, lane_record

HERE: Final = (-1, -1)
"""In a mark, stands for the coordinate of the record that proves it."""
IN_DOUBT: Final = frozenset({"ambiguous", "expired", "unknown_receiver", DISCARDED})
"""Reasons of letters whose last attempt may have reached the receiver, or one that was removed meanwhile.
`exhausted` is not among them: its attempts were followed by a status request where the receiver allows that."""
_OF_ONE_LIFE: Final = frozenset(
    {"relay-generation", "relay-attempt", "relay-move", "relay-reason", "relay-ask-first", "relay-wait"}
)
_OF_A_WAIT: Final = frozenset({"relay-status-url", "relay-ask-after", "relay-not-asked", "relay-status-chain"})
_NOT_ASKED: Final = frozenset({"relay-not-asked"})
_OF_A_NAME: Final = frozenset({LIFE_HEADER})
_AT_REST: Final = frozenset({Stage.NONE, Stage.PUBLISHED, Stage.DONE})
_NOWHERE: Final = Row()


@dataclass(frozen=True, slots=True)
class Out:
    """A record to append. `marks`: what it proves. `generation`: the one that it begins, or ends."""

    record: NewRecord
    delivery: DeliveryId
    generation: int
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The plan for one letter or delivery: `out`, or what it `cancels`, or neither: `skip` is the reason.
    `claim`: to be made before `out` is appended. `is_copy`: another one begins the same generation."""

    out: tuple[Out, ...] = ()
    skip: str | None = None
    claim: Claim | None = None
    cancels: UnsentLife | None = None
    is_copy: bool = False

    @property
    def acts(self) -> bool:
        return bool(self.out) or self.cancels is not None

    @property
    def generations(self) -> set[tuple[DeliveryId, int]]:
        """The generations that it begins or cancels."""
        return {(out.delivery, out.generation) for out in self.out} | ({self.cancels[:2]} if self.cancels else set())


class Original(NamedTuple):
    """The message of a delivery. `origin`: its place on `from_sender`. `accepted_ms`: when it was accepted, Unix ms."""

    message: Message
    origin: Coordinate | None
    accepted_ms: int


Rows = Mapping[DeliveryId, Row]


class Planner:
    """Plans the records to send for a dead letter. `max_payload_bytes`: the largest payload that is accepted now.

    `same_life`: only to the receiver for which the message was routed. Otherwise a replay goes to the one that has its
    name now.
    """

    def __init__(self, topics: Topics, directory: Directory, *, max_payload_bytes: int) -> None:
        self._topics = topics
        self._directory = directory
        self._max_bytes = max_payload_bytes

    # replay

    def deliveries(self, letter: Letter) -> list[DeliveryId]:
        """The deliveries whose rows `replay` needs."""
        message = self._message(letter)
        names = () if message is None else valid_recipients(self._directory, message)
        return [letter.delivery, *(DeliveryId(name, *message.id) for name in names if message is not None)]

    def replay(self, letter: Letter, rows: Rows, *, same_life: bool) -> ReplayPlan:
        if letter.dead.omitted is not None:
            return ReplayPlan(skip="incomplete")
        if letter.stage is None:
            return ReplayPlan(skip="unknown_stage")
        if letter.stage == "from_sender":
            try:
                return self._routed_anew(letter, rows, same_life=same_life)
            except ExpressionError as error:
                return _without_keep(error)
        hop = letter.hop
        if hop is None or letter.record.value is None:
            return ReplayPlan(skip="invalid")
        row = rows.get(hop.delivery, _NOWHERE)
        generation = next_life(letter, row)
        if isinstance(generation, str):
            return ReplayPlan(skip=generation)
        if letter.stage == "to_sender":
            return ReplayPlan(skip="invalid") if hop.progress else self._returned(letter, hop, generation, row)
        return self._sent_again(letter, hop, generation, same_life=same_life)

    def _receiver(self, name: str, life: str, origin: Coordinate | None, *, same_life: bool) -> Receiver | None:
        """`life`, `origin`: those of the record (see `Life.has`)."""
        receiver = self._directory.receiver(name)
        return None if receiver is None or (same_life and not receiver.life.has(life, origin)) else receiver

    def _sent_again(self, letter: Letter, hop: Hop, generation: int, *, same_life: bool) -> ReplayPlan:
        """Sends the message to the receiver's current lane. The receiver is not asked about a message that it said it
        never saw."""
        receiver = self._receiver(hop.delivery.receiver, hop.life, hop.origin, same_life=same_life)
        if receiver is None:
            return ReplayPlan(skip="unknown_receiver")
        value, dead = letter.record.value or b"", letter.dead
        if letter.stage == "pending" and letter.reason != "receiver_forgot":
            where = _where_to_ask(hop, receiver, value)
            drop = _OF_A_NAME | (_NOT_ASKED if hop.status_url is not None else _OF_A_WAIT if where else frozenset())
            headers = _headers(letter.headers, generation, attempt=hop.attempt, drop=drop) + _of_name(receiver) + where
            lane = lane_of(receiver)
            topic = self._topics.pending(lane)
            record = lane_record(topic, lane, receiver, hop.delivery.source_id, value, headers)
            row = delivery_row(hop.delivery)
            return ReplayPlan((Out(record, hop.delivery, generation, (Mark(row, generation, Stage.AWAITING),)),))
        ask_first = letter.reason in IN_DOUBT and dead.attempts > 0
        return ReplayPlan(
            (self._to_receiver(receiver, hop.delivery, value, letter.headers, generation, ask_first=ask_first),)
        )

    def _to_receiver(
        self,
        receiver: Receiver,
        delivery: DeliveryId,
        value: bytes,
        former: Headers,
        generation: int,
        *,
        ask_first: bool,
    ) -> Out:
        headers = _headers(former, generation, drop=_OF_A_WAIT | _OF_A_NAME) + _of_name(receiver)
        if receiver.move:
            headers += (("relay-move", b"%d" % receiver.move),)
        if ask_first:
            headers += (("relay-ask-first", b"true"),)
        lane = lane_of(receiver)
        topic = self._topics.to_receiver(lane)
        return Out(lane_record(topic, lane, receiver, delivery.source_id, value, headers), delivery, generation)

    def _returned(self, letter: Letter, hop: Hop, generation: int, row: Row) -> ReplayPlan:
        """To the sender. A failed notice changes nothing about its delivery: the new generation has failed, too, at the
        same place and for the same reason."""
        failed = hop.outcome == "failed"
        named = ("webhook-id", callback_id(hop.delivery, generation, failed=failed).encode())
        reason = tuple(pair for pair in letter.headers if pair[0] == "relay-reason")
        headers = _headers(letter.headers, generation, attempt=hop.attempt, drop=frozenset({"webhook-id"})) + reason
        record = NewRecord(
            self._topics.to_sender, hop.delivery.source_id.encode(), letter.record.value, (*headers, named)
        )
        mark = _still_failed(hop, generation, row) or Mark(
            delivery_row(hop.delivery), generation, Stage.PUBLISHED, HERE
        )
        return ReplayPlan((Out(record, hop.delivery, generation, (mark,)),))

    # routing failures

    def _message(self, letter: Letter) -> Message | None:
        if letter.stage != "from_sender" or letter.reason == "id_conflict" or letter.dead.omitted is not None:
            return None
        if is_named(letter.record.headers) or len(letter.record.value or b"") > self._max_bytes:
            return None
        return message_of(letter.record.value, letter.headers)

    def _routed_anew(self, letter: Letter, rows: Rows, *, same_life: bool) -> ReplayPlan:
        own = letter.delivery
        if letter.reason == "id_conflict":
            return ReplayPlan(skip="id_conflict")
        generation = next_life(letter, rows.get(own, _NOWHERE))
        if isinstance(generation, str):
            return ReplayPlan(skip=generation)
        if own.receiver != NO_RECEIVER:
            return self._routed_to_one(letter, own, generation, same_life=same_life)
        if len(letter.record.value or b"") > self._max_bytes:
            return ReplayPlan(skip="too_large")
        message = self._message(letter)
        if message is None:
            return ReplayPlan(skip="invalid")
        return self._routed_to_all(letter, message, own, generation, rows)

    def _routed_to_one(self, letter: Letter, delivery: DeliveryId, generation: int, *, same_life: bool) -> ReplayPlan:
        receiver = self._receiver(delivery.receiver, letter.life, letter.dead.origin, same_life=same_life)
        if receiver is None:
            return ReplayPlan(skip="unknown_receiver")
        message = message_of(letter.record.value, letter.headers)
        if message is None:
            return ReplayPlan(skip="invalid")
        if message.receivers is not None and not may_name(receiver, message):
            return ReplayPlan(skip="unknown_receiver")
        return ReplayPlan((self._first(letter, message, receiver, generation),))

    def _routed_to_all(
        self, letter: Letter, message: Message, own: DeliveryId, generation: int, rows: Rows
    ) -> ReplayPlan:
        """A delivery to each receiver without one yet. `own`: the message's delivery without a receiver, whose row says
        afterwards that this is done."""
        found = [(name, self._directory.receiver(name)) for name in valid_recipients(self._directory, message)]
        known = [
            receiver
            for _, receiver in found
            if receiver is not None and (message.receivers is None or may_name(receiver, message))
        ]
        if not known:
            return ReplayPlan(skip="unknown_receiver")
        fresh = [one for one in known if rows.get(DeliveryId(one.name, *message.id), _NOWHERE).stage is Stage.NONE]
        out = [self._first(letter, message, receiver, generation) for receiver in fresh]
        if not out:
            return ReplayPlan(skip="replayed")
        row = delivery_row(own)
        last = replace(out[-1], marks=(Mark(row, generation, Stage.DONE),))
        return ReplayPlan((*out[:-1], last), claim=Claim(own, row, generation, REPLAYED))

    def _first(self, letter: Letter, message: Message, receiver: Receiver, generation: int) -> Out:
        return self._fresh(Original(message, letter.dead.origin, letter.record.timestamp_ms), receiver, generation)

    def _fresh(self, original: Original, receiver: Receiver, generation: int) -> Out:
        """Raises ExpressionError if what its source keeps of it cannot be worked out."""
        message, origin, accepted_ms = original
        keep = kept_of(self._directory.source(message.source_id), message)
        hop = first_hop(
            FilterInput(message), receiver, origin, accepted_ms, move=receiver.move, generation=generation, keep=keep
        )
        lane = lane_of(receiver)
        topic, headers = self._topics.to_receiver(lane), encode_hop(hop)
        record = lane_record(topic, lane, receiver, message.source_id, message.payload, headers)
        return Out(record, hop.delivery, generation)

    # deliveries that did not fail

    def delivered(self, record: Record, hop: Hop, newest: int, row: Row, *, over: bool, same_life: bool) -> ReplayPlan:
        """Send a delivery again that its receiver has. `record`: of its lane. `newest`: its last generation when the
        job was made. `over`: the lane has finished or parked the record."""
        if row.generation > newest and row.stage is not Stage.NONE:
            return ReplayPlan(skip="replayed")
        if row.stage is Stage.FAILED:
            return ReplayPlan(skip="failed")
        unsent = row.stage is Stage.NONE and (row.park_intent or not over)
        if unsent or row.stage not in _AT_REST or row.generation < newest:
            return ReplayPlan(skip="under_way")
        receiver = self._receiver(hop.delivery.receiver, hop.life, hop.origin, same_life=same_life)
        if receiver is None:
            return ReplayPlan(skip="unknown_receiver")
        value = record.value or b""
        return ReplayPlan(
            (self._to_receiver(receiver, hop.delivery, value, record.headers, newest + 1, ask_first=False),)
        )

    def once_more(self, original: Original, delivery: DeliveryId, row: Row, *, same_life: bool) -> ReplayPlan:
        """Send a delivery again, built from the original message."""
        if row.stage not in _AT_REST:
            return ReplayPlan(skip="failed" if row.stage is Stage.FAILED else "under_way")
        receiver = self._receiver(delivery.receiver, "", original.origin, same_life=same_life)
        if receiver is None:
            return ReplayPlan(skip="unknown_receiver")
        try:
            return ReplayPlan((self._fresh(original, receiver, row.generation + 1),))
        except ExpressionError as error:
            return _without_keep(error)

    # discard

    def discard(self, letter: Letter, rows: Rows, *, now: float) -> ReplayPlan:
        """A dead letter with the reason `discarded`, of a generation that ended as it began. `now`: Unix seconds."""
        own = letter.delivery
        row = rows.get(own, _NOWHERE)
        generation = next_life(letter, row)
        if isinstance(generation, str):
            return ReplayPlan(skip=generation)
        if letter.dead.reason in ON_PURPOSE:
            return ReplayPlan(skip="discarded")
        if letter.stage == "to_sender" and letter.hop is not None:
            marks = _callback_marks(letter.hop, generation, row, letter.dead.attempts)
        else:
            marks = (Mark(delivery_row(own), generation, Stage.FAILED, HERE, REASON_CODES[DISCARDED]),)
        said = f": {letter.dead.detail}" if letter.dead.detail else ""
        detail = f"discarded by hand, after it had failed ({letter.reason}){said}"
        out = Out(self._discarded(letter, generation, now, detail), own, generation, marks)
        return ReplayPlan((out,), claim=Claim(own, marks[0].row, generation, DISCARDED, detail))

    def _discarded(self, letter: Letter, generation: int, now: float, detail: str) -> NewRecord:
        dead, record = letter.dead, letter.record
        discarded = DeadLetter(
            reason=DISCARDED,
            detail=detail,
            stage=dead.stage,
            origin=dead.origin,
            attempts=dead.attempts,
            first_failed_ms=int(now * 1000),
            last_status=dead.last_status,
            omitted=dead.omitted,
            former_reason=letter.reason,
        )
        headers = (*_without(letter.headers, {"relay-generation"}), ("relay-generation", b"%d" % generation))
        return NewRecord(
            self._topics.failed_messages, record.key, record.value, dead_letter_headers(headers, discarded)
        )


def _without_keep(error: ExpressionError) -> ReplayPlan:
    return ReplayPlan(skip="configuration" if isinstance(error, UnreadableKeep) else "invalid")


def _callback_marks(hop: Hop, generation: int, row: Row, attempts: int) -> tuple[Mark, ...]:
    """The same marks as of a callback that is given up: the callback's own row names the letter."""
    code = to_code(Handover.FAILED, attempts)
    own = callback_row(hop.delivery, generation, failed=hop.outcome == "failed")
    end = _still_failed(hop, generation, row) or Mark(delivery_row(hop.delivery), generation, Stage.DONE, row.at, code)
    return Mark(own, generation, Stage.DONE, HERE, code), end


def _of_name(receiver: Receiver) -> Headers:
    """A replay goes to the receiver that has the name now."""
    return ((LIFE_HEADER, receiver.life.id.encode()),) if receiver.life.id else ()


def _where_to_ask(hop: Hop, receiver: Receiver, payload: bytes) -> Headers:
    """The headers with the status URL, for a receiver that can be asked now, but could not at its 202."""
    if hop.status_url is not None:
        return ()
    if receiver.status_steps and can_be_asked(receiver):
        try:
            position = first_position(receiver, hop, payload)
        except ExpressionError:
            return ()
        return ("relay-status-url", position.url.encode()), ("relay-status-chain", position.text.encode())
    url = own_status_url(receiver, hop.delivery)
    return () if url is None else (("relay-status-url", url.encode(errors="replace")),)


def _still_failed(hop: Hop, generation: int, row: Row) -> Mark | None:
    """The mark that keeps a delivery failed, if its failure notice is replayed; None for a result."""
    if hop.outcome != "failed":
        return None
    code = row.code if row.stage is Stage.FAILED else REASON_CODES.get(hop.reason or "", 0)
    return Mark(delivery_row(hop.delivery), generation, Stage.FAILED, row.at, code)


def _headers(former: Headers, generation: int, *, attempt: int = 0, drop: frozenset[str] = frozenset()) -> Headers:
    """The headers of a former generation, with those that differ in this one."""
    kept = _without(former, _OF_ONE_LIFE | drop)
    return (*kept, ("relay-attempt", b"%d" % attempt), ("relay-generation", b"%d" % generation))


def _without(headers: Headers, names: AbstractSet[str]) -> Headers:
    return tuple(pair for pair in headers if pair[0] not in names)
