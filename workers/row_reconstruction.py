"""Rebuilds lost rows of the state from records on the log: pure functions.

A row may be written only if the log shows that the output which it stands for is acknowledged (rule 2). So each
function returns None if a record leaves that open: work without a row is at worst done again.
"""

from typing import Final, NamedTuple

from msgspec import structs

from relay.domain.dead_letter import DeadLetter, original_headers, parse_dead_letter
from relay.domain.hop import NO_RECEIVER, Hop, hop_of
from relay.domain.identity import DeliveryId
from relay.domain.message import message_digest, message_of
from relay.domain.reasons import DISCARDED, REASON_CODES
from relay.domain.receiver import Source
from relay.domain.result_delivery import Handover, handover, to_code
from relay.domain.topics import Topics
from relay.log.port import Record
from relay.state.port import FailedEntry
from relay.state.rows import Arrival, Mark, RowKey, Stage, callback_row, delivery_row
from workers.failed_messages import Failure, entry_of, generation_of, is_listed
from workers.records import FOR_CONSUMER, has_arrived

_NEVER_ROUTED: Final = frozenset({"id_conflict", "too_large", "invalid", "poison"})
"""Reasons of dead letters whose messages can be read, and yet never became deliveries."""


def enqueued(record: Record) -> Arrival | None:
    """The arrival that a record of `from_sender` proves, if it lies before its group's committed offset and was not
    rejected."""
    message = message_of(record.value, record.headers)
    return None if message is None else Arrival(message.id, message_digest(message), record.partition, record.offset)


class ProvenFailure(NamedTuple):
    """What a dead letter proves. `listed`: whether `entry` belongs in the index. `mark`: the row that it ended;
    None: it certainly ended none. `turned_away`: partition and offset of the rejected message on `from_sender` that
    it replaces."""

    entry: FailedEntry
    mark: Mark | None
    turned_away: tuple[int, int] | None
    listed: bool = True


def failed(record: Record, topics: Topics) -> ProvenFailure:
    """The facts that a record of `failed_messages` proves."""
    letter = parse_dead_letter(record.headers)
    work = Failure(record, letter)
    entry, listed = entry_of(work), is_listed(work)
    if letter.stage == topics.from_sender:
        mark = _unrouted(work)
        return ProvenFailure(entry, mark, _turned_away(letter) if mark is None else None, listed)
    hop = _hop_of(record, letter)
    return ProvenFailure(entry, None if hop is None else _ended(record, letter, hop, topics), None, listed)


def _unrouted(work: Failure) -> Mark | None:
    """The row of a delivery that failed before it was routed. The stage itself adds the header that names it. A message
    without one has a stand-in once it is discarded."""
    letter, receiver, source_id, message_id = work.letter, work.receiver, work.source_id, work.message_id
    if not any(name == "relay-receiver" for name, _ in work.record.headers):
        is_stand_in = letter.reason == DISCARDED and letter.former_reason != "id_conflict"
        receiver = NO_RECEIVER if is_stand_in else None
    if letter.reason not in ("unknown_receiver", "invalid", DISCARDED) or not (receiver and source_id and message_id):
        return None
    return _failed(DeliveryId(receiver, source_id, message_id), generation_of(work.record), work.record, letter)


def _turned_away(letter: DeadLetter) -> tuple[int, int] | None:
    if letter.reason not in _NEVER_ROUTED or letter.origin is None:
        return None
    return letter.origin.partition, letter.origin.offset


def _hop_of(record: Record, letter: DeadLetter) -> Hop | None:
    """The hop of a record that a step gave up. An unreadable record names itself as its origin, so its delivery is
    uncertain."""
    if letter.reason not in REASON_CODES or letter.origin is None or letter.origin.topic == letter.stage:
        return None
    return hop_of(original_headers(record.headers))


def _ended(record: Record, letter: DeadLetter, hop: Hop, topics: Topics) -> Mark | None:
    if letter.stage == topics.to_sender and hop.progress is None:
        row = callback_row(hop.delivery, hop.generation, failed=hop.outcome == "failed")
        at = (record.partition, record.offset)
        return Mark(row, hop.generation, Stage.DONE, at, to_code(Handover.FAILED, letter.attempts))
    if letter.stage.startswith((topics.to_receiver(""), topics.pending(""))):
        return _failed(hop.delivery, hop.generation, record, letter)
    return None


def _failed(delivery: DeliveryId, generation: int, record: Record, letter: DeadLetter) -> Mark:
    at = (record.partition, record.offset)
    return Mark(delivery_row(delivery), generation, Stage.FAILED, at, REASON_CODES[letter.reason])


def awaited(record: Record) -> Mark | None:
    """What a record of `pending_from_receiver_*` proves: the receiver has the message."""
    hop = hop_of(record.headers)
    return None if hop is None else Mark(delivery_row(hop.delivery), hop.generation, Stage.AWAITING)


class Returned(NamedTuple):
    """A record of `to_sender`. `callback`: the row of its callback; None: no callback was due. `consumed`: it was
    left for the source's own consumer."""

    hop: Hop
    at: tuple[int, int]
    empty: bool
    callback: RowKey | None
    consumed: bool = False


def returned(record: Record) -> Returned | None:
    """The row that a record of `to_sender` proves; None if it belongs to no delivery, or ends none."""
    hop = hop_of(record.headers)
    if hop is None or hop.outcome is None or hop.progress is not None:
        return None
    at, empty = (record.partition, record.offset), not record.value
    if has_arrived(record):
        return Returned(hop, at, empty, None, FOR_CONSUMER in record.headers)
    return Returned(hop, at, empty, callback_row(hop.delivery, hop.generation, failed=hop.outcome == "failed"))


def next_life(record: Returned) -> Returned:
    """The result in the life after that of `record`. A discard ends that one without a record of its own."""
    hop = structs.replace(record.hop, generation=record.hop.generation + 1)
    return record._replace(hop=hop, callback=callback_row(hop.delivery, hop.generation, failed=hop.outcome == "failed"))


def handed_over(record: Returned, source: Source, *, over: bool, given_up: int | None) -> Mark | None:
    """The mark that `record` proves: of the delivery or, for a notice of failure, of the callback.

    `over`: its own stage is finished with it. `given_up`: the code in the callback's row if a dead letter says that the
    callback failed. `source`: with its current settings, which say how an answer without a callback was left.
    """
    hop, is_notice = record.hop, record.hop.outcome == "failed"
    if is_notice and not over:
        return None
    code = given_up if given_up is not None else _code(record, source, is_notice=is_notice)
    if is_notice:
        return None if record.callback is None else Mark(record.callback, hop.generation, Stage.DONE, code=code)
    if over or record.callback is None:
        return Mark(delivery_row(hop.delivery), hop.generation, Stage.DONE, record.at, code)
    return Mark(delivery_row(hop.delivery), hop.generation, Stage.PUBLISHED, record.at)


def _code(record: Returned, source: Source, *, is_notice: bool) -> int:
    """The log does not say how often the callback was called; at least once."""
    if record.consumed:
        return to_code(Handover.DELIVERED, 0)
    how = handover(source, failed=is_notice, empty=record.empty)
    if how is not Handover.DELIVERED or source.callback is None:
        return to_code(how, 0)
    return to_code(Handover.KEPT, 0) if record.callback is None else to_code(how, 1)


def is_over(record: Returned, committed: int, *, parked: bool) -> bool:
    """Whether the stage behind `to_sender` is finished with `record`: its group has committed beyond it
    (`committed`: the next offset), and no parked copy can be left (`parked`: the row, read after `committed`, allows
    one)."""
    below = record.at[1] < committed
    return below and (record.callback is None or not parked)
