"""What a message's status looks like: every stage, and messages of several deliveries."""

from datetime import UTC, datetime
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from relay.api.reading import message_location, percent_decoded
from relay.api.view import FoundDelivery, KnownMessage, delivery_view, message_view, of_receivers, of_source, status_of
from relay.api.waiting import DeliveryWait
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.message import Message
from relay.domain.reasons import REASON_CODES
from relay.domain.receiver import Endpoint, Source
from relay.domain.result_delivery import Handover, to_code
from relay.domain.state import PROGRESS, Status
from relay.domain.times import rfc3339
from relay.log.port import Record
from relay.schema.messages import CallbackView, DeliveryView, MessageRef, WaitView
from relay.state.read_model import RowDetails
from relay.state.rows import Result, Row, Stage
from tests.expecting import present

DELIVERY = DeliveryId("ci", "app", "m-1")
QUIET = Source("app")
CALLED = Source("app", Endpoint("https://sender.example/results"))
NOW = 1_700_000_000.0


def view(
    row: Row,
    source: Source = QUIET,
    *,
    record: Record | None = None,
    callback: Row | None = None,
    letter: Record | None = None,
    wait: DeliveryWait | None = None,
) -> DeliveryView:
    called = None if callback is None else RowDetails(callback, detail="because")
    found = FoundDelivery(DELIVERY, RowDetails(row, detail="what happened"), record, letter, called, letter, wait)
    return delivery_view(found, source, NOW)


def letter_of(detail: str, last_status: int | None, reason: str = "exhausted") -> Record:
    letter = DeadLetter(reason, detail, "to_receiver_ci", None, 3, 0, last_status)
    return Record("failed_messages", 0, 0, b"app", b"x", dead_letter_headers((), letter), 0)


def answer_of(delivery: DeliveryId, body: bytes = b"yes") -> Record:
    hop = Hop(delivery, content_type="text/plain", outcome="answered", answer_status=200, attempt=4)
    return Record("to_sender", 0, 0, b"app", body, encode_hop(hop), 0)


@pytest.mark.parametrize(
    ("row", "status"),
    [
        (Row(), "arrived"),
        (Row(Stage.ENQUEUED), "arrived"),
        (Row(Stage.SENDING), "arrived"),
        (Row(Stage.ACCEPTED), "delivered_to_receiver"),
        (Row(Stage.AWAITING), "delivered_to_receiver"),
        (Row(Stage.RESULT, result=Result("answered", 200)), "response_received_from_receiver"),
        (Row(Stage.RESULT, result=Result("delivered", 204)), "response_received_from_receiver"),
        (Row(Stage.RESULT, result=Result("dead", 422, reason="rejected")), "failed"),
        (Row(Stage.PUBLISHED), "response_received_from_receiver"),
        (Row(Stage.DONE, code=to_code(Handover.DELIVERED, 1)), "response_delivered_to_sender"),
        (Row(Stage.DONE, code=to_code(Handover.UNWANTED, 0)), "done"),
        (Row(Stage.DONE, code=to_code(Handover.KEPT, 0)), "response_received_from_receiver"),
        (Row(Stage.DONE, code=to_code(Handover.FAILED, 20)), "response_received_from_receiver"),
        (Row(Stage.FAILED, code=REASON_CODES["gone"]), "failed"),
    ],
)
def test_the_word_for_each_stage(row: Row, status: Status) -> None:
    assert status_of(row) == status


@pytest.mark.parametrize("reason", list(REASON_CODES))
def test_a_failed_delivery_tells_its_reason(reason: str) -> None:
    failed = view(Row(Stage.FAILED, attempts=3, last_status=500, code=REASON_CODES[reason], at=(1, 2)))
    assert (failed.reason, failed.attempts, failed.last_status, failed.answer) == (reason, 3, 500, None)


def test_a_delivery_about_to_fail_tells_its_reason() -> None:
    dead = view(Row(Stage.RESULT, result=Result("dead", 422, reason="rejected", detail="no")))
    assert (dead.status, dead.reason, dead.answer) == ("failed", "rejected", None)


def test_an_answer_is_told_before_its_record_is_written() -> None:
    told = present(view(Row(Stage.RESULT, result=Result("answered", 201, "text/plain", b"\xff"))).answer)
    assert (told.status, told.content_type, told.body, told.body_base64) == (201, "text/plain", None, "/w==")


def test_an_answer_that_was_cut_says_so() -> None:
    hop = Hop(DELIVERY, outcome="answered", answer_status=200, answer_truncated=True)
    cut = [
        view(Row(Stage.RESULT, result=Result("answered", 200, None, b"ye", truncated=True))),
        view(Row(Stage.PUBLISHED, at=(0, 0)), record=Record("to_sender", 0, 0, b"app", b"ye", encode_hop(hop), 0)),
    ]
    assert [each.answer and each.answer.truncated for each in cut] == [True, True]
    whole = present(view(Row(Stage.PUBLISHED, at=(0, 0)), record=answer_of(DELIVERY)).answer)
    assert whole.truncated is UNSET


def test_a_record_without_a_hop_is_no_answer() -> None:
    row = Row(Stage.PUBLISHED, at=(0, 0))
    assert view(row, record=answer_of(DELIVERY)).answer is not None
    assert view(row, record=Record("to_sender", 0, 0, None, b"x", (), 0)).answer is None


def test_the_next_attempt_is_told_only_of_what_waits() -> None:
    waits = view(Row(Stage.ENQUEUED, due_in_s=1.5))
    assert waits.next_at == waits.next_attempt_at == "2023-11-14T22:13:21.500Z"
    for row in (Row(Stage.ENQUEUED), Row(Stage.AWAITING, due_in_s=float("inf")), Row(Stage.DONE, due_in_s=5)):
        assert view(row).next_attempt_at is None


@pytest.mark.parametrize(
    ("row", "callback", "told"),
    [
        (Row(Stage.RESULT, result=Result("answered", 200)), Row(), CallbackView("pending", 0)),
        (Row(Stage.RESULT, result=Result("dead", 422, reason="rejected")), Row(), CallbackView("pending", 0)),
        (Row(Stage.PUBLISHED), Row(), CallbackView("pending", 0)),
        (Row(Stage.PUBLISHED), Row(Stage.SENDING, attempts=1), CallbackView("pending", 1)),
        (Row(Stage.PUBLISHED), Row(Stage.ENQUEUED, attempts=1), CallbackView("retrying", 1)),
        (Row(Stage.PUBLISHED), Row(Stage.SENDING, attempts=2), CallbackView("retrying", 2)),
        (Row(Stage.FAILED), Row(Stage.SENDING, attempts=2), CallbackView("retrying", 2)),
        (Row(Stage.FAILED), Row(Stage.DONE, code=to_code(Handover.DELIVERED, 2)), CallbackView("delivered", 2)),
        (Row(Stage.FAILED), Row(Stage.DONE), None),
        (Row(Stage.PUBLISHED), None, None),
        (Row(Stage.DONE, code=to_code(Handover.DELIVERED, 2)), None, CallbackView("delivered", 2)),
        (Row(Stage.DONE, code=to_code(Handover.DELIVERED, 0)), None, None),
        (Row(Stage.DONE, code=to_code(Handover.FAILED, 20)), None, CallbackView("failed", 20)),
        (Row(Stage.DONE, code=to_code(Handover.KEPT, 0)), None, None),
        (Row(Stage.DONE, code=to_code(Handover.UNWANTED, 0)), None, None),
    ],
)
def test_how_the_callback_is_going(row: Row, callback: Row | None, told: CallbackView | None) -> None:
    found = view(row, CALLED, callback=callback).callback
    assert (found and (found.status, found.attempts)) == (told and (told.status, told.attempts))


def test_a_callback_under_way_says_what_came_of_the_last_call() -> None:
    row = Row(Stage.ENQUEUED, attempts=1, last_status=500, reason="server_error")
    told = view(Row(Stage.PUBLISHED), CALLED, callback=row).callback
    assert told == CallbackView("retrying", 1, 500, "because")


@pytest.mark.parametrize("row", [Row(Stage.DONE, code=to_code(Handover.FAILED, 20)), Row(Stage.FAILED)])
def test_one_that_was_given_up_says_why_as_its_dead_letter_does(row: Row) -> None:
    callback = Row(Stage.DONE, code=to_code(Handover.FAILED, 20), at=(0, 0))
    told = view(row, CALLED, callback=callback, letter=letter_of("refused", 422)).callback
    assert told == CallbackView("failed", 20, 422, "refused")


def test_what_went_wrong_is_told_in_words() -> None:
    assert view(Row(Stage.ENQUEUED, attempts=1, reason="refused")).detail == "what happened"
    assert view(Row(Stage.FAILED), letter=letter_of("the last: refused", None)).detail == "the last: refused"
    dead = Result("dead", 422, reason="rejected", detail="no such branch")
    assert view(Row(Stage.RESULT, result=dead)).detail == "no such branch"
    assert view(Row(Stage.DONE)).detail is None


def test_a_discarded_one_has_the_attempts_of_what_failed_before() -> None:
    """Its row begins another life, without attempts; its dead letter has those before, as lists show them."""
    told = view(Row(Stage.FAILED, generation=1), letter=letter_of("discarded by hand", 415))
    assert (told.attempts, told.last_status) == (3, 415)
    told = view(Row(Stage.FAILED, attempts=2, last_status=500), letter=letter_of("given up", None))
    assert (told.attempts, told.last_status) == (2, 500)


def test_a_discarded_callback_leaves_a_discarded_delivery_with_its_attempts() -> None:
    row = Row(Stage.DONE, generation=1, at=(0, 0), code=to_code(Handover.FAILED, 2))
    callback = Row(Stage.DONE, code=to_code(Handover.FAILED, 2), at=(0, 0))
    for reason, state, told in (("callback_rejected", "failed", None), ("discarded", "discarded", "discarded")):
        letter = letter_of("no", 400, reason)
        found = view(row, CALLED, record=answer_of(DELIVERY), callback=callback, letter=letter)
        assert (found.state, found.reason, found.attempts, found.last_status) == (state, told, 4, 200)


def test_why_it_waits_is_told_with_times() -> None:
    told = view(Row(Stage.ENQUEUED), wait=DeliveryWait("rate", NOW - 1, NOW + 2.5, "the receiver takes 1 in 5 s"))
    since, until = "2023-11-14T22:13:19.000Z", "2023-11-14T22:13:22.500Z"
    assert told.waiting_for == WaitView("rate", since, until, "the receiver takes 1 in 5 s")
    assert told.next_attempt_at == until
    assert view(Row(Stage.AWAITING), wait=DeliveryWait("answer", None, NOW, "")).next_attempt_at is None


def test_an_empty_answer_owes_no_callback_where_only_others_are_wanted() -> None:
    source = Source("app", CALLED.callback, answers="non_empty")
    row = Row(Stage.PUBLISHED, at=(0, 0))
    assert view(row, source, record=answer_of(DELIVERY, b""), callback=Row()).callback is None
    told = present(view(row, source, record=answer_of(DELIVERY), callback=Row()).callback)
    assert told.status == "pending"


@pytest.mark.parametrize("result", [Result("answered", 200, body=b"yes"), Result("delivered", 204)])
def test_a_result_is_owed_to_a_consumer_until_its_record_is_there(result: Result) -> None:
    told = view(Row(Stage.RESULT, result=result), Source("app", kafka=True), callback=Row())
    assert (told.status, present(told.callback).status) == ("response_received_from_receiver", "pending")


@pytest.mark.parametrize("stage", [Stage.RESULT, Stage.PUBLISHED])
def test_an_answer_that_nobody_wants_is_the_end(stage: Stage) -> None:
    row = Row(stage, result=Result("answered", 200, body=b"yes") if stage is Stage.RESULT else None)
    told = view(row, Source("app", CALLED.callback, answers="none"), callback=Row())
    assert (told.status, told.callback) == ("done", None)


def overall(*statuses: Status, routed: bool = True) -> Status:
    rows = {
        "arrived": Row(),
        "delivered_to_receiver": Row(Stage.AWAITING),
        "failed": Row(Stage.FAILED),
        "response_received_from_receiver": Row(Stage.PUBLISHED),
        "response_delivered_to_sender": Row(Stage.DONE),
        "done": Row(Stage.DONE, code=to_code(Handover.UNWANTED, 0)),
    }
    deliveries = [view(rows[status]) for status in statuses]
    return message_view(known(routed=routed), deliveries).status


def known(*, routed: bool = True) -> KnownMessage:
    return KnownMessage(Message("app", "m-1", None), None, routed)


def test_a_message_is_as_far_as_its_least_advanced_delivery() -> None:
    for least, other in permutations(PROGRESS, 2):
        if PROGRESS.index(least) < PROGRESS.index(other):
            assert overall(least, other) == overall(other, least, other) == least


def test_a_message_to_nobody_has_failed_unless_filters_left_it_out() -> None:
    assert (overall(routed=False), overall()) == ("arrived", "failed")
    assert message_view(known(), [], unwanted=True).status == "done"
    assert message_view(known(routed=False), [], unwanted=True).status == "arrived"


def test_a_failure_neither_hides_what_is_under_way_nor_is_hidden_by_what_is_done() -> None:
    assert overall("failed", "delivered_to_receiver") == "delivered_to_receiver"
    assert overall("response_delivered_to_sender", "failed", "done") == "failed"


@given(st.floats(allow_nan=False))
def test_any_timestamp_has_a_text_or_none(seconds: float) -> None:
    text = rfc3339(seconds)
    if text is not None:
        assert abs(datetime.fromisoformat(text).timestamp() - seconds) < 1
        assert datetime.fromisoformat(text).tzinfo == UTC


@given(st.text(min_size=1, max_size=64).filter(lambda text: text.isprintable()))
def test_an_id_comes_back_from_its_location(identity: str) -> None:
    location = message_location(MessageId(identity, identity))
    segments = location.split("/")
    assert len(segments) == 6
    assert location.isascii()
    assert [percent_decoded(segments[at]) for at in (3, 5)] == [identity, identity]


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("source", ["app", "shop"])
def test_a_reader_of_one_source_does_not_see_which_message_of_another_is_ahead(source: str, reads: bool) -> None:
    first = MessageId(source, "theirs")
    ahead = view(Row(Stage.ENQUEUED), wait=DeliveryWait("order", None, None, f"'theirs' of {source!r}", first))
    whole = message_view(KnownMessage(Message(*DELIVERY[1:], None), 0, routed=True), [ahead])
    shown = of_source(whole, lambda asked: reads and asked == "shop")
    if source == "app" or reads:
        assert shown == whole
    else:
        assert shown.deliveries[0].waiting_for == WaitView("order", None, None, "an earlier message comes first")


def test_which_message_comes_first_is_none_of_a_receivers_business_as_it_may_be_for_a_former_one_of_the_name() -> None:
    theirs = MessageRef(source_id="shop", message_id="theirs")
    order = WaitView("order", None, None, "message 'theirs' of source 'shop' comes first", theirs)
    retry = WaitView("retry", None, None, "the receiver said 500")
    for wait, shown in ((order, "an earlier message comes first"), (retry, "the receiver said 500")):
        delivery = DeliveryView("ci", "arrived", "blocked", 0, 0, None, wait, None, None, None, None, None, None)
        whole = message_view(known(), [delivery])
        [found] = of_receivers(whole).deliveries
        assert found.waiting_for is not None
        assert (found.waiting_for.kind, found.waiting_for.detail) == (wait.kind, shown)
        assert found.waiting_for.message is UNSET
