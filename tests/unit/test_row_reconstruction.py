"""What records prove about lost rows, and what they leave open."""

import pytest

from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import Hop, Outcome, encode_hop
from relay.domain.message import Message, message_digest, message_headers
from relay.domain.reasons import REASON_CODES
from relay.domain.receiver import Endpoint, Source
from relay.domain.result_delivery import Handover, to_code
from relay.engine.decision import Dead
from relay.log.port import Coordinate, Headers, NewRecord, Record
from relay.state.rows import Arrival, Mark, Stage, callback_row, delivery_row
from tests.fakes.steps import DELIVERY, TOPICS, StandingClock
from workers import row_reconstruction
from workers.records import FOR_CONSUMER, NO_CALLBACK, Letters

ORIGIN = Coordinate(TOPICS.from_sender, 4, 99)
HOP = Hop(DELIVERY, origin=ORIGIN, generation=2, attempt=3)
ROW = delivery_row(DELIVERY)
CALLED = Source("github", Endpoint("http://sender/callback"))


def record(topic: str, headers: Headers = (), value: bytes | None = b"payload") -> Record:
    return Record(topic, 3, 17, b"github", value, headers, 1_700_000_000_000)


def buried(given: Record, reason: str, hop: Hop | None = HOP, **extra: bytes) -> Record:
    """The dead letter of `given`, as it lies on the log."""
    more = tuple((name.replace("_", "-"), value) for name, value in extra.items())
    new: NewRecord = Letters(TOPICS, StandingClock()).dead_letter(given, Dead(reason), hop, attempts=5, extra=more)
    return record(new.topic, new.headers, new.value)


# --- from_sender ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("envelope", [False, True])
def test_a_message_is_known_by_its_digest_and_place(envelope: bool) -> None:
    message = Message("github", "m-1", ("ci",), "push", payload=b"{}")
    text = b'{"source_id": "github", "message_id": "m-1", "receiver": "ci", "event_type": "push", "payload": {}}'
    sent = record(TOPICS.from_sender, *(((), text) if envelope else (message_headers(message), b"{}")))
    assert row_reconstruction.enqueued(sent) == Arrival(message.id, message_digest(message), 3, 17)


def test_what_cannot_be_read_proves_nothing() -> None:
    assert row_reconstruction.enqueued(record(TOPICS.from_sender, (), b"rubbish")) is None
    assert row_reconstruction.enqueued(record(TOPICS.from_sender, (), None)) is None
    assert row_reconstruction.awaited(record(TOPICS.pending("ci"))) is None
    assert row_reconstruction.returned(record(TOPICS.to_sender)) is None
    assert row_reconstruction.returned(record(TOPICS.to_sender, encode_hop(HOP))) is None  # no answer, and no notice


# --- pending_from_receiver_* ------------------------------------------------------------------------------------


def test_a_pending_record_shows_that_the_receiver_has_the_message() -> None:
    assert row_reconstruction.awaited(record(TOPICS.pending("ci"), encode_hop(HOP))) == Mark(ROW, 2, Stage.AWAITING)


# --- to_sender --------------------------------------------------------------------------------------------------


def answer(outcome: Outcome = "answered", value: bytes = b"answer", more: Headers = ()) -> row_reconstruction.Returned:
    hop = Hop(DELIVERY, generation=2, outcome=outcome, reason="gone" if outcome == "failed" else None)
    found = row_reconstruction.returned(record(TOPICS.to_sender, encode_hop(hop) + more, value))
    assert found is not None
    return found


def proved(
    found: row_reconstruction.Returned, source: Source, *, over: bool, given_up: int | None = None
) -> Mark | None:
    return row_reconstruction.handed_over(found, source, over=over, given_up=given_up)


def test_an_answer_on_its_way_is_published() -> None:
    assert proved(answer(), CALLED, over=False) == Mark(ROW, 2, Stage.PUBLISHED, (3, 17))


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (CALLED, to_code(Handover.DELIVERED, 1)),
        (Source("github", kafka=True), to_code(Handover.DELIVERED, 0)),
        (Source("github"), to_code(Handover.KEPT, 0)),
        (Source("github", Endpoint("http://sender/callback"), answers="none"), to_code(Handover.UNWANTED, 0)),
    ],
)
def test_an_answer_that_its_stage_is_finished_with_is_done(source: Source, code: int) -> None:
    assert proved(answer(), source, over=True) == Mark(ROW, 2, Stage.DONE, (3, 17), code)


def test_one_whose_callback_was_given_up_says_so() -> None:
    given_up = to_code(Handover.FAILED, 5)
    assert proved(answer(), CALLED, over=True, given_up=given_up) == Mark(ROW, 2, Stage.DONE, (3, 17), given_up)


@pytest.mark.parametrize(
    ("source", "how"),
    [(Source("github"), Handover.KEPT), (CALLED, Handover.KEPT), (Source("github", kafka=True), Handover.DELIVERED)],
)
def test_an_answer_with_nobody_to_call_is_done_where_it_is(source: Source, how: Handover) -> None:
    """Also where the source has got a callback since."""
    found = answer(more=(NO_CALLBACK,))
    assert proved(found, source, over=False) == Mark(ROW, 2, Stage.DONE, (3, 17), to_code(how, 0))


@pytest.mark.parametrize("source", [Source("github", kafka=True), Source("github"), CALLED])
def test_an_answer_left_for_a_consumer_is_delivered_whatever_the_source_wants_now(source: Source) -> None:
    found = answer(more=(FOR_CONSUMER,))
    assert proved(found, source, over=False) == Mark(ROW, 2, Stage.DONE, (3, 17), to_code(Handover.DELIVERED, 0))


def test_a_notice_says_how_its_own_way_ended_and_nothing_of_the_delivery() -> None:
    row = callback_row(DELIVERY, 2, failed=True)
    assert proved(answer("failed"), CALLED, over=False) is None
    code = to_code(Handover.DELIVERED, 1)
    assert proved(answer("failed"), CALLED, over=True) == Mark(row, 2, Stage.DONE, code=code)


def test_over_is_what_lies_before_the_commit_and_is_not_parked() -> None:
    found = answer()
    assert row_reconstruction.is_over(found, 18, parked=False)
    assert not row_reconstruction.is_over(found, 17, parked=False)
    assert not row_reconstruction.is_over(found, 0, parked=False)
    assert not row_reconstruction.is_over(found, 18, parked=True)


# --- failed_messages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [TOPICS.to_receiver("ci"), TOPICS.to_receiver("shared"), TOPICS.pending("ci")])
@pytest.mark.parametrize("reason", ["exhausted", "expired", "gone", "backlog_full", "poison"])
def test_a_dead_letter_of_a_delivery_is_its_end(topic: str, reason: str) -> None:
    found = row_reconstruction.failed(buried(record(topic, encode_hop(HOP)), reason), TOPICS)
    assert found.mark == Mark(ROW, 2, Stage.FAILED, (3, 17), REASON_CODES[reason])
    assert found.turned_away is None
    entry = found.entry
    assert (entry.receiver, entry.source_id, entry.message_id, entry.reason) == (*DELIVERY, reason)
    assert entry.at == Coordinate(TOPICS.failed_messages, 3, 17)


@pytest.mark.parametrize("failed", [False, True])
def test_a_dead_letter_of_a_callback_ends_only_the_callback(failed: bool) -> None:
    hop = Hop(DELIVERY, origin=ORIGIN, generation=2, outcome="failed" if failed else "answered", reason="expired")
    found = row_reconstruction.failed(
        buried(record(TOPICS.to_sender, encode_hop(hop)), "callback_exhausted", hop), TOPICS
    )
    code = to_code(Handover.FAILED, 5)
    assert found.mark == Mark(callback_row(DELIVERY, 2, failed=failed), 2, Stage.DONE, (3, 17), code)


@pytest.mark.parametrize("topic", [TOPICS.to_receiver("ci"), TOPICS.pending("ci"), TOPICS.to_sender])
def test_a_record_that_could_not_be_read_ends_nothing(topic: str) -> None:
    """Its writer may have named any delivery; one of that name may still be in flight."""
    found = row_reconstruction.failed(buried(record(topic, encode_hop(HOP), None), "invalid", None), TOPICS)
    assert found.mark is None
    assert found.entry.reason == "invalid"


@pytest.mark.parametrize("reason", ["unknown_receiver", "invalid"])
def test_a_dead_letter_of_one_receiver_fails_its_delivery_only(reason: str) -> None:
    sent = record(TOPICS.from_sender, message_headers(Message("github", "m-1", ("ci", "other"), payload=b"{}")))
    found = row_reconstruction.failed(buried(sent, reason, None, relay_receiver=b"other"), TOPICS)
    row = delivery_row(DELIVERY._replace(receiver="other"))
    assert found.mark == Mark(row, 0, Stage.FAILED, (3, 17), REASON_CODES[reason])
    assert found.turned_away is None
    nobody = row_reconstruction.failed(buried(sent, reason, None), TOPICS)
    assert nobody.mark is None


@pytest.mark.parametrize("reason", ["id_conflict", "too_large"])
def test_a_message_that_was_turned_away_never_was_a_delivery(reason: str) -> None:
    sent = record(TOPICS.from_sender, message_headers(Message("github", "m-1", ("ci",), payload=b"{}")))
    found = row_reconstruction.failed(buried(sent, reason, None), TOPICS)
    assert found.mark is None
    assert found.turned_away == (3, 17)
    assert found.entry.receiver == "ci"


@pytest.mark.parametrize(
    "letter",
    [
        DeadLetter("gone", "", "elsewhere", ORIGIN, 1, 0, None),
        DeadLetter("gone", "", TOPICS.failed_messages, ORIGIN, 1, 0, None),
        DeadLetter("never-heard-of", "", TOPICS.to_receiver("ci"), ORIGIN, 1, 0, None),
        DeadLetter("gone", "", TOPICS.to_receiver("ci"), None, 1, 0, None),
    ],
)
def test_a_dead_letter_that_says_too_little_proves_nothing(letter: DeadLetter) -> None:
    found = row_reconstruction.failed(
        record(TOPICS.failed_messages, dead_letter_headers(encode_hop(HOP), letter)), TOPICS
    )
    assert found.mark is None


def test_rubbish_on_failed_messages_is_listed_and_proves_nothing() -> None:
    found = row_reconstruction.failed(record(TOPICS.failed_messages, (), None), TOPICS)
    assert (found.mark, found.turned_away) == (None, None)
    assert found.entry.receiver == "-"


@pytest.mark.parametrize("named", [False, True])
def test_who_was_discarded_has_failed_and_is_not_listed(named: bool) -> None:
    if named:
        sent = record(TOPICS.from_sender, message_headers(Message("github", "m-1", ("ci",), payload=b"{}")))
        letter = buried(sent, "discarded", None, relay_receiver=b"ci", relay_generation=b"2")
    else:
        hop = Hop(DELIVERY, origin=ORIGIN, generation=2)
        letter = buried(record(TOPICS.to_receiver("ci"), encode_hop(hop)), "discarded", hop)
    found = row_reconstruction.failed(letter, TOPICS)
    assert not found.listed
    assert found.mark == Mark(delivery_row(DELIVERY), 2, Stage.FAILED, (3, 17), REASON_CODES["discarded"])
