"""Views of a message and its deliveries: pure functions of rows and records. The API and all other displays of a
message have exactly the fields of `MessageView`, in this order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import UNSET

from relay.api.responses import text_or_base64
from relay.api.waiting import DeliveryWait, next_attempt
from relay.domain.advice import advice_on_end, advice_on_wait
from relay.domain.coordinate import Coordinate
from relay.domain.dead_letter import parse_dead_letter
from relay.domain.hop import hop_of
from relay.domain.identity import DeliveryId, webhook_id
from relay.domain.message import Message, copy_of
from relay.domain.reasons import ON_PURPOSE, REASON_OF_CODE, replaced_by
from relay.domain.receiver import Source
from relay.domain.result_delivery import Handover, from_code, handover
from relay.domain.state import CallbackStatus, State, Status, delivery_state, least_advanced, message_state
from relay.domain.times import rfc3339
from relay.log.port import Record
from relay.schema.messages import AnswerView, CallbackView, DeliveryView, MessageRef, MessageView, PlaceView, WaitView
from relay.state.read_model import RowDetails
from relay.state.rows import Result, Row, Stage

_GONE: Final = "the log deleted the result before it was sent; a replay of the delivery sends its message again"
ON_THE_WAY: Final[frozenset[Status]] = frozenset({"arrived", "delivered_to_receiver"})


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message that is on the log. `received_ms`: Unix ms; None: not known any more. `routed`: all its deliveries
    are on their way. `recipients`: where they may be others than the present ones of `message`. `excluded`: it was
    routed to no receiver without being a failure."""

    message: Message
    received_ms: int | None
    routed: bool
    at: Coordinate | None = None
    recipients: tuple[str, ...] | None = None
    excluded: bool = False

    @property
    def received_at(self) -> float | None:
        """Unix seconds."""
        return None if self.received_ms is None else self.received_ms / 1000


@dataclass(frozen=True, slots=True)
class FoundDelivery:
    """A delivery with its records. `record`: the one on `to_sender` that its row points at, `letter`: the dead letter.
    `callback`: the row of the callback that its result is owed, if it is (`is_owed`), or was given up;
    `callback_letter`: the dead letter of that. `wait`: why it waits."""

    delivery: DeliveryId
    seen: RowDetails
    record: Record | None = None
    letter: Record | None = None
    callback: RowDetails | None = None
    callback_letter: Record | None = None
    wait: DeliveryWait | None = None

    @property
    def row(self) -> Row:
        return self.seen.row

    @property
    def is_result_gone(self) -> bool:
        """Whether the log has deleted the result before it was sent to the sender, so that nothing will send it."""
        callback, is_published = self.callback, self.row.stage is Stage.PUBLISHED and self.row.at is not None
        if callback is None or not is_published or self.record is not None:
            return False
        return callback.row.stage <= Stage.ENQUEUED and not callback.row.park_intent


def message_view(
    known: KnownMessage, deliveries: Sequence[DeliveryView], *, unwanted: bool = False, duplicate: bool = False
) -> MessageView:
    """The status of the message, from its deliveries. Without any: `arrived`; once it was routed without a receiver,
    `done` if it was `unwanted`, otherwise `failed`."""
    message, identity = known.message, known.message.id
    without: Status = "arrived" if not known.routed else "done" if unwanted else "failed"
    statuses = [delivery.status for delivery in deliveries] or [without]
    return MessageView(
        source_id=identity.source_id,
        message_id=identity.message_id,
        webhook_id=webhook_id(*identity),
        type=message.event_type,
        status=least_advanced(statuses),
        state=message_state((delivery.state for delivery in deliveries), without),
        received_at=rfc3339(known.received_at),
        at=None if known.at is None else PlaceView(*known.at),
        duplicate=duplicate,
        copy_of=copy_of(message) or UNSET,
        deliveries=tuple(deliveries),
    )


def of_source(view: MessageView, may_read: Callable[[str], bool]) -> MessageView:
    """The view for callers with rights on its source. If a delivery waits for an earlier message of another source,
    which they may not read, it lacks that message's ids."""

    def shown(one: DeliveryView) -> DeliveryView:
        ahead = UNSET if one.waiting_for is None else one.waiting_for.message
        if ahead is UNSET or ahead["source_id"] == view.source_id or may_read(ahead["source_id"]):
            return one
        return replace(one, waiting_for=_of_itself(one.waiting_for))

    deliveries = tuple(map(shown, view.deliveries))
    return view if deliveries == view.deliveries else replace(view, deliveries=deliveries)  # each 202 comes here


def of_receivers(view: MessageView) -> MessageView:
    """The view for callers with rights on its receivers only: of the callback, just whether it is in progress or has
    failed."""
    own = tuple(map(_of_receiver, view.deliveries))
    state = message_state((each.state for each in own), view.status)
    return replace(view, deliveries=own, state=state, copy_of=UNSET)


def _of_receiver(view: DeliveryView) -> DeliveryView:
    on_the_way = view.status in ON_THE_WAY
    wait = _of_itself(view.waiting_for) if on_the_way else None
    return replace(
        view,
        state=_state(view.status, view.attempts, view.reason, wait, view.callback),
        callback=None if view.callback is None else CallbackView(view.callback.status, None),
        waiting_for=wait,
        advice=view.advice if on_the_way else advice_on_end(view.reason, view.last_status) or None,
    )


def _of_itself(wait: WaitView | None) -> WaitView | None:
    """The wait without the message ahead, which may be of another source, or for a former receiver of the name."""
    if wait is None or wait.kind != "order":
        return wait
    return replace(wait, detail="an earlier message comes first", message=UNSET)


def delivery_view(found: FoundDelivery, source: Source, now: float) -> DeliveryView:
    """`now`: Unix seconds."""
    row, wait = found.row, found.wait
    answer = _answer(found)
    attempts, last_status = _attempts(found)
    unwanted = _has_answer(row) and _handover(found, source) is Handover.UNWANTED
    status, reason = "done" if unwanted else status_of(row), reason_of(row) or _discarded(found.callback_letter)
    callback = _callback(found, source)
    waiting_for, detail = None if wait is None else wait_view(wait), detail_of(found)
    next_at = rfc3339(next_attempt(row, wait, now)) if row.stage < Stage.RESULT else None
    return DeliveryView(
        receiver=found.delivery.receiver,
        status=status,
        state=_state(status, attempts, reason, waiting_for, callback),
        generation=row.generation,
        attempts=attempts,
        next_attempt_at=next_at,
        waiting_for=waiting_for,
        last_status=answer.status if last_status is None and answer is not None else last_status,
        reason=reason,
        detail=detail,
        advice=_advice(found) or None,
        answer=answer,
        callback=callback,
        replaced_by=replaced_by(reason, detail) or UNSET,
        next_at=next_at,
    )


def _state(
    status: Status, attempts: int, reason: str | None, wait: WaitView | None, callback: CallbackView | None
) -> State:
    return delivery_state(
        status,
        attempts=attempts,
        reason=reason,
        wait=None if wait is None else wait.kind,
        callback=None if callback is None else callback.status,
    )


def wait_view(wait: DeliveryWait) -> WaitView:
    first = wait.message
    message = UNSET if first is None else MessageRef(source_id=first.source_id, message_id=first.message_id)
    return WaitView(wait.kind, rfc3339(wait.since), rfc3339(wait.until), wait.detail, message)


def status_of(row: Row) -> Status:
    """The word for a delivery's stage."""
    match row.stage:
        case Stage.NONE | Stage.ENQUEUED | Stage.SENDING:
            return "arrived"
        case Stage.ACCEPTED | Stage.AWAITING:
            return "delivered_to_receiver"
        case Stage.RESULT:
            return "failed" if _is_dead(row.result) else "response_received_from_receiver"
        case Stage.PUBLISHED:
            return "response_received_from_receiver"
        case Stage.FAILED:
            return "failed"
        case Stage.DONE:
            return _handed(from_code(row.code).how)


def reason_of(row: Row) -> str | None:
    """Why it failed; of an unfinished delivery, why it waits."""
    if row.stage is Stage.FAILED:
        return REASON_OF_CODE.get(row.code, row.reason)
    if row.stage is Stage.RESULT and row.result is not None:
        return row.result.reason
    return row.reason if row.stage < Stage.RESULT else None


def _discarded(letter: Record | None) -> str | None:
    """The reason of a callback that was given up and then ended on purpose."""
    reason = None if letter is None else parse_dead_letter(letter.headers).reason
    return reason if reason in ON_PURPOSE else None


def _attempts(found: FoundDelivery) -> tuple[int, int | None]:
    """Number of attempts, and the last status. After a discard, only the dead letter or the answer has those of what
    failed before."""
    row, letter = found.row, found.letter
    if row.stage is Stage.FAILED and not row.attempts and letter is not None:
        dead = parse_dead_letter(letter.headers)
        return dead.attempts, dead.last_status
    hop = None if row.attempts or found.record is None else hop_of(found.record.headers)
    return row.attempts if hop is None else hop.attempt, row.last_status


def detail_of(found: FoundDelivery) -> str | None:
    """The failure, or the last one if it is retried."""
    row = found.row
    if row.stage is Stage.FAILED:
        return letter_detail(found.letter)
    if has_failed(row):
        return (row.result and row.result.detail) or None
    return found.seen.detail if row.stage < Stage.RESULT else None


def _advice(found: FoundDelivery) -> str:
    """On what keeps it from its receiver, or gave it up; else on what keeps its result from the sender."""
    row, wait = found.row, found.wait
    if has_failed(row):
        last_status = parse_dead_letter(found.letter.headers).last_status if found.letter is not None else None
        return advice_on_end(reason_of(row), row.last_status or last_status)
    if wait is not None:
        last = row if found.callback is None else found.callback.row
        return advice_on_wait(wait.kind, reason=last.reason, last_status=last.last_status)
    if found.callback_letter is not None:
        given_up = parse_dead_letter(found.callback_letter.headers)
        return advice_on_end(given_up.reason, given_up.last_status)
    return ""


def letter_detail(record: Record | None) -> str | None:
    return None if record is None else parse_dead_letter(record.headers).detail or None


def is_owed(found: FoundDelivery, source: Source) -> bool:
    """Whether the result of this delivery is, or was, on its way to the sender according to its row: from the moment
    that it is stored, long before its record is on `to_sender`."""
    row = found.row
    if has_failed(row):  # a notice that is only left for a consumer changes nothing that is seen here
        return source.callback is not None and handover(source, failed=True, empty=False) is Handover.DELIVERED
    return _has_answer(row) and _handover(found, source) is Handover.DELIVERED


def has_failed(row: Row) -> bool:
    """Whether the delivery was given up, or is about to be."""
    return row.stage is Stage.FAILED or (row.stage is Stage.RESULT and _is_dead(row.result))


def _has_answer(row: Row) -> bool:
    """Whether there is a result that is not at its end yet."""
    return row.stage in (Stage.RESULT, Stage.PUBLISHED) and not has_failed(row)


def _handover(found: FoundDelivery, source: Source) -> Handover:
    row, record = found.row, found.record
    body = row.result.body if row.result is not None else (record.value if record is not None else b"?")
    return handover(source, failed=False, empty=not body)


def _handed(how: Handover) -> Status:
    match how:
        case Handover.DELIVERED:
            return "response_delivered_to_sender"
        case Handover.UNWANTED:
            return "done"
        case Handover.KEPT | Handover.FAILED:
            return "response_received_from_receiver"


def _is_dead(result: Result | None) -> bool:
    return result is not None and result.outcome == "dead"


def _answer(found: FoundDelivery) -> AnswerView | None:
    row, record = found.row, found.record
    if row.stage is Stage.RESULT and row.result is not None and not _is_dead(row.result):
        result = row.result
        answer = AnswerView(result.status, result.content_type, *text_or_base64(result.body))
        return replace(answer, truncated=True) if result.truncated else answer
    if record is None:
        return None
    hop = hop_of(record.headers)
    if hop is None:
        return None
    at = rfc3339(record.timestamp_ms / 1000)
    answer = AnswerView(hop.answer_status, hop.content_type, *text_or_base64(record.value or b""), received_at=at)
    return replace(answer, truncated=True) if hop.answer_truncated or record.flaw is not None else answer


def _callback(found: FoundDelivery, source: Source) -> CallbackView | None:
    callback = found.callback
    if found.row.stage is Stage.DONE:
        return _ended(found.row.code, found.callback_letter)
    if callback is None or not is_owed(found, source):
        return None
    row = callback.row
    if row.stage is Stage.DONE:
        return _ended(row.code, found.callback_letter)
    if found.is_result_gone:
        return CallbackView("failed", row.attempts, row.last_status, _GONE)
    under_way = row.stage in (Stage.SENDING, Stage.RESULT)
    status: CallbackStatus = "retrying" if row.attempts > under_way else "pending"
    return CallbackView(status, row.attempts, row.last_status, callback.detail or row.reason)


def is_given_up(row: Row) -> bool:
    """Whether a finished row, of a delivery or of a callback, says that the sender's callback was given up."""
    return row.stage is Stage.DONE and from_code(row.code).how is Handover.FAILED


def _ended(code: int, letter: Record | None) -> CallbackView | None:
    """A result that needs no call (left for a consumer, or unwanted) has no callback."""
    how, attempts = from_code(code)
    match how:
        case Handover.DELIVERED:
            return CallbackView("delivered", attempts) if attempts else None
        case Handover.FAILED:
            last_status = None if letter is None else parse_dead_letter(letter.headers).last_status
            return CallbackView("failed", attempts, last_status, letter_detail(letter))
        case Handover.UNWANTED | Handover.KEPT:
            return None
