"""ToSender: which results are called back, how, and what a finished delivery remembers of it."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from relay.domain.coordinate import Coordinate
from relay.domain.errors import InvalidRecord
from relay.domain.exchange import NoResponse, Response
from relay.domain.hop import NO_RECEIVER, Hop, encode_hop
from relay.domain.identity import callback_id
from relay.domain.receiver import Endpoint, RetryPolicy, Source
from relay.domain.result_delivery import Handed, Handover, from_code, to_code
from relay.domain.topics import DAY_S
from relay.engine.decision import Dead, Decision, Done, Later, Resend
from relay.engine.work import LookupResult, Outcome
from relay.state.attempts import Change
from relay.state.port import Lane
from relay.state.replies import answered
from relay.state.rows import Mark, Result, Row, Stage, callback_row, delivery_row
from tests.expecting import expect, present
from tests.fakes.state import MemoryState
from tests.fakes.steps import DELIVERY, NOW, TOPICS, Rig, headers_of, hop_record, letter_of, record, stepped
from workers.records import FOR_CONSUMER, NO_CALLBACK
from workers.to_sender import Callback, ToSender

POLICY = RetryPolicy(base=10, factor=2, cap=1000, max_attempts=4, max_age=3600)
CALLED = Source("github", Endpoint("https://sender.example/results", retry=POLICY))
ASKING = Source("github")
KAFKA = Source("github", kafka=True)
ANSWERED = Hop(
    DELIVERY,
    attempt=3,
    content_type="text/plain",
    outcome="answered",
    answer_status=201,
    accepted_ms=int((NOW - 60) * 1000),
)
DELIVERED = structs.replace(ANSWERED, outcome="delivered", content_type=None, answer_status=204)
FAILED = Hop(DELIVERY, attempt=20, generation=1, outcome="failed", answer_status=500, reason="exhausted")
LANE = Lane(TOPICS.to_sender, 3, 1)
CALL = "POST https://sender.example/results"


@pytest.fixture
def rig() -> Rig:
    return Rig()


def worker(rig: Rig, source: Source = CALLED, state: MemoryState | None = None) -> ToSender:
    rig.known.sources = {"github": source}
    return ToSender(rig.known, state or MemoryState(), rig.letters, rig.outside)


def admitted(step: ToSender, hop: Hop = ANSWERED, value: bytes = b"built", age_s: float = 0) -> Callback:
    return present(step.admit(hop_record(TOPICS.to_sender, hop, value, age_s=age_s)))


async def called(
    rig: Rig, hop: Hop = ANSWERED, value: bytes = b"built", attempt: int = 1, age_s: float = 0, **reply: Any
) -> Decision:
    """What follows this reply, or the one that was set, as that of call number `attempt`."""
    if reply:
        rig.reply(**reply)
    step = worker(rig)
    return await stepped(step, admitted(step, hop, value, age_s), attempt)


# the call


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_any_success_is_the_end(rig: Rig, status: int) -> None:
    assert await called(rig, status=status, body=b"whatever") == Done(result=Result("delivered", status), healthy=True)
    assert rig.meter.told == [("called back", "github", 0.0), ("returned", "ci", 60)]


async def test_the_sender_gets_the_answer_and_what_it_is_about(rig: Rig) -> None:
    await called(rig, attempt=2, status=204)
    (request,) = rig.http.requests
    assert (request.method, request.url, request.body) == ("POST", "https://sender.example/results", b"built")
    headers = dict(request.headers)
    assert headers["webhook-id"] == callback_id(DELIVERY, 0, failed=False)
    assert headers["content-type"] == "text/plain"
    told = {name: value for name, value in headers.items() if name.startswith("relay-")}
    assert told == {
        "relay-source": "github",
        "relay-message-id": "m-1",
        "relay-receiver": "ci",
        "relay-attempt": "2",
        "relay-outcome": "answered",
        "relay-answer-status": "201",
    }


async def test_a_failure_notice_says_why(rig: Rig) -> None:
    await called(rig, FAILED, b"", status=204)
    headers = dict(rig.http.requests[0].headers)
    assert headers["webhook-id"] == callback_id(DELIVERY, 1, failed=True)
    assert (headers["relay-outcome"], headers["relay-reason"], headers["relay-answer-status"]) == (
        "failed",
        "exhausted",
        "500",
    )
    assert [one[0] for one in rig.meter.told] == ["called back"]  # nothing came round


async def test_a_notice_about_a_message_that_never_got_a_receiver(rig: Rig) -> None:
    rig.reply(204)
    hop = Hop(DELIVERY._replace(receiver=NO_RECEIVER), outcome="failed", reason="unknown_receiver")
    assert isinstance(await called(rig, hop, b""), Done)
    assert dict(rig.http.requests[0].headers)["relay-receiver"] == "-"


@pytest.mark.parametrize("status", [400, 410, 413, 415, 422])
async def test_a_refusal_is_the_end(rig: Rig, status: int) -> None:
    decision = await called(rig, status=status)
    assert decision == Dead("callback_rejected", f"{CALL}: {status}", status, healthy=True)


@pytest.mark.parametrize(
    "reply",
    [
        NoResponse("disconnected", "", sent=True),
        NoResponse("refused", "", sent=False),
        *(Response(status, {}, b"") for status in (302, 401, 404, 408, 500, 502)),
    ],
)
async def test_no_luck_is_tried_again(rig: Rig, reply: NoResponse | Response) -> None:
    rig.http.replies = [reply]
    decision = expect(Later, await called(rig, attempt=3))
    assert (decision.due_in_s, decision.change, decision.counted, decision.pause_s) == (20, Change.RETRY, True, 0)
    assert decision.healthy is False


async def test_429_is_not_counted_and_pauses_the_callback(rig: Rig) -> None:
    decision = await called(rig, attempt=4, status=429, retry_after="120")
    assert decision == Later(120, "not now", counted=False, last_status=429, pause_s=120, detail=f"{CALL}: 429")


async def test_503_is_counted(rig: Rig) -> None:
    decision = expect(Dead, await called(rig, attempt=4, age_s=10, status=503, retry_after="120"))
    assert (decision.reason, decision.last_status, decision.pause_s) == ("callback_exhausted", 503, 120)


async def test_attempts_end_it(rig: Rig) -> None:
    decision = await called(rig, attempt=4, status=500)
    told = f"given up after 4 attempts; the last: {CALL}: 500"
    assert decision == Dead("callback_exhausted", told, 500, healthy=False)


def test_age_ends_it(rig: Rig) -> None:
    step = worker(rig)
    work = admitted(step, age_s=3599)
    assert step.overdue(work) is None
    rig.clock.now = NOW + 1
    dead = expect(Dead, step.overdue(work))
    assert dead.reason == "callback_exhausted"


async def test_what_nears_the_end_of_its_retention_ends_before_it_is_gone(rig: Rig) -> None:
    source = replace(
        CALLED, callback=Endpoint("https://sender.example/", retry=RetryPolicy(base=10, max_age=30 * DAY_S))
    )
    step = worker(rig, source)
    assert step.overdue(admitted(step, age_s=6 * DAY_S)) is None
    dead = expect(Dead, step.overdue(admitted(step, age_s=6.5 * DAY_S)))
    assert dead.reason == "callback_exhausted"


async def test_a_timestamp_of_a_clock_that_is_ahead_gives_no_longer_life(rig: Rig) -> None:
    assert admitted(worker(rig), age_s=-86_400).age_s(NOW) == 0


async def test_after_a_doubt_it_is_called_again_within_the_limit(rig: Rig) -> None:
    step = worker(rig)
    work = admitted(step)
    work.in_doubt = True
    assert await stepped(step, work, 3) == Resend()
    dead = expect(Dead, await stepped(step, work, 4))
    assert dead.reason == "callback_exhausted"
    assert rig.http.requests == []


# who wants what


@pytest.mark.parametrize("header", [NO_CALLBACK, FOR_CONSUMER])
def test_what_was_done_when_it_was_written_is_passed_over(rig: Rig, header: tuple[str, bytes]) -> None:
    written = hop_record(TOPICS.to_sender, ANSWERED)
    marked = structs.replace(written, headers=(*written.headers, header))
    assert worker(rig, CALLED).admit(marked) is None


@pytest.mark.parametrize(
    ("source", "hop", "value", "how"),
    [
        (CALLED, ANSWERED, b"built", Handover.DELIVERED),
        (CALLED, ANSWERED, b"", Handover.DELIVERED),
        (CALLED, DELIVERED, b"", Handover.DELIVERED),
        (CALLED, FAILED, b"", Handover.DELIVERED),
        (replace(CALLED, answers="non_empty"), ANSWERED, b"built", Handover.DELIVERED),
        (replace(CALLED, answers="non_empty"), ANSWERED, b"", Handover.UNWANTED),
        (replace(CALLED, answers="non_empty"), DELIVERED, b"", Handover.UNWANTED),
        (replace(CALLED, answers="non_empty"), FAILED, b"", Handover.DELIVERED),
        (replace(CALLED, answers="none"), ANSWERED, b"built", Handover.UNWANTED),
        (replace(CALLED, answers="none"), FAILED, b"", Handover.DELIVERED),
        (replace(CALLED, failures=False), FAILED, b"", Handover.UNWANTED),
        (replace(CALLED, failures=False), ANSWERED, b"built", Handover.DELIVERED),
        (ASKING, ANSWERED, b"built", Handover.KEPT),
        (ASKING, FAILED, b"", Handover.KEPT),
        (replace(ASKING, answers="none"), ANSWERED, b"built", Handover.UNWANTED),
        (KAFKA, ANSWERED, b"built", Handover.DELIVERED),
        (KAFKA, FAILED, b"", Handover.DELIVERED),
        (replace(KAFKA, answers="none"), ANSWERED, b"built", Handover.UNWANTED),
    ],
)
async def test_what_a_source_wants(rig: Rig, source: Source, hop: Hop, value: bytes, how: Handover) -> None:
    rig.reply(204)
    step = worker(rig, source)
    work = admitted(step, hop, value)
    assert work.how is how
    assert step.overdue(work) is None
    decision = expect(Done, await stepped(step, work, 1))
    a_call = how is Handover.DELIVERED and not source.kafka
    assert len(rig.http.requests) == a_call
    assert (work.rules is not None) == a_call
    assert (decision.result is not None) == a_call


async def test_a_callback_that_came_later_counts_for_what_waits_already(rig: Rig) -> None:
    step = worker(rig, ASKING)
    work = admitted(step)
    rig.known.sources["github"] = CALLED
    assert step.overdue(work) is None
    assert (work.how, work.rules is not None) == (Handover.DELIVERED, True)
    rig.known.sources["github"] = ASKING
    assert step.overdue(work) is None
    assert await stepped(step, work) == Done()


def test_a_callback_keeps_to_its_own_limits(rig: Rig) -> None:
    assert CALLED.callback is not None
    source = replace(CALLED, callback=replace(CALLED.callback, rate_limit=10, max_in_flight=5))
    rules = present(admitted(worker(rig, source)).rules)
    assert rules.limits.interval_s == pytest.approx(0.105)
    assert (rules.limits.settle_s, rules.limits.max_in_flight, rules.max_in_flight) == (0, 5, 5)
    assert not rules.ask_first


# stored outcomes


async def ended(state: MemoryState, step: ToSender, work: Callback, decision: Done | Dead) -> Row:
    """The delivery's row after the end of `work`."""
    at = (Coordinate(TOPICS.failed_messages, 2, 9),) if isinstance(decision, Dead) else ()
    await step.table.mark([(work, Outcome(decision, at))])
    return (await answered(state.peek([delivery_row(DELIVERY)])))[0]


@pytest.mark.parametrize(
    ("source", "decision", "handed"),
    [
        (CALLED, Done(), Handed(Handover.DELIVERED, 2)),
        (CALLED, Dead("callback_exhausted"), Handed(Handover.FAILED, 2)),
        (CALLED, Dead("callback_rejected"), Handed(Handover.FAILED, 2)),
        (KAFKA, Done(), Handed(Handover.DELIVERED, 2)),
        (ASKING, Done(), Handed(Handover.KEPT, 2)),
        (replace(CALLED, answers="none"), Done(), Handed(Handover.UNWANTED, 2)),
    ],
)
async def test_the_delivery_remembers_how_it_ended(
    rig: Rig, source: Source, decision: Done | Dead, handed: Handed
) -> None:
    state = MemoryState()
    step = worker(rig, source, state)
    work = admitted(step)
    work.attempts = 2
    row = await ended(state, step, work, decision)
    assert (row.stage, row.at, from_code(row.code)) == (Stage.DONE, (3, 7), handed)
    again = admitted(step)
    assert await step.table.intake(LANE, [again]) == [LookupResult.FINISHED if again.rules else LookupResult.READY]
    assert await ended(state, step, again, Done()) == row
    (own,) = await answered(state.peek([callback_row(DELIVERY, 0, failed=False)]))
    if isinstance(decision, Dead):
        assert (own.stage, own.at, own.code) == (Stage.DONE, (2, 9), row.code)  # where its dead letter is
    else:
        assert own.stage is Stage.NONE  # no second memory of the same


async def test_a_parked_answer_owes_its_tombstone_although_nobody_is_to_be_called_any_more(rig: Rig) -> None:
    state = MemoryState()
    step = worker(rig, ASKING, state)
    work = admitted(step)
    work.parked_at = Coordinate("parked_messages", 0, 1)
    assert await step.table.intake(LANE, [work]) == [LookupResult.READY]
    assert work.owes_tombstone


@pytest.mark.parametrize(
    ("decision", "how"), [(Done(), Handover.DELIVERED), (Dead("callback_exhausted"), Handover.FAILED)]
)
async def test_a_notice_remembers_its_end_by_itself(rig: Rig, decision: Done | Dead, how: Handover) -> None:
    state = MemoryState()
    step = worker(rig, state=state)
    await answered(state.mark([Mark(delivery_row(DELIVERY), 1, Stage.FAILED, (0, 4), 9)]))
    work = admitted(step, FAILED, b"")
    assert await step.table.intake(LANE, [work]) == [LookupResult.READY]
    work.attempts = 5
    row = await ended(state, step, work, decision)
    assert (row.stage, row.at, row.code) == (Stage.FAILED, (0, 4), 9)
    own = (await answered(state.peek([callback_row(DELIVERY, 1, failed=True)])))[0]
    assert (own.stage, from_code(own.code)) == (Stage.DONE, Handed(how, 5))
    assert await step.table.intake(LANE, [admitted(step, FAILED, b"")]) == [LookupResult.FINISHED]


async def test_an_answer_of_a_later_life_that_is_done_proves_nothing_of_another(rig: Rig) -> None:
    state = MemoryState()
    step = worker(rig, state=state)
    later = admitted(step, structs.replace(ANSWERED, generation=2))
    await ended(state, step, later, Done())
    lives = [admitted(step, structs.replace(ANSWERED, generation=generation)) for generation in (1, 2, 3)]
    assert await step.table.intake(LANE, lives) == [LookupResult.READY, LookupResult.FINISHED, LookupResult.READY]


def test_the_byte_of_a_finished_delivery() -> None:
    codes = {to_code(how, attempts) for how in Handover for attempts in range(64)}
    assert codes == set(range(256))
    assert from_code(to_code(Handover.FAILED, 1000)) == Handed(Handover.FAILED, 63)
    assert all(from_code(to_code(how, n)) == Handed(how, n) for how in Handover for n in (0, 1, 62))


# resume and dead letters


def test_a_stored_end_is_taken_up_again(rig: Rig) -> None:
    step = worker(rig)
    work = admitted(step)
    result = Result("delivered", 204)
    assert step.resume(work, result) == Done(result=result)
    stored = Result("dead", 400, reason="callback_rejected", detail="why")
    assert step.resume(work, stored) == Dead("callback_rejected", "why", 400)


def test_a_dead_letter_keeps_the_reason_of_a_notice(rig: Rig) -> None:
    step = worker(rig)
    work = admitted(step, FAILED, b"")
    work.attempts = 4
    buried = step.dead_letter(work.record, work, Dead("callback_exhausted", "why", 500))
    letter = letter_of(buried)
    assert (letter.reason, letter.stage, letter.attempts) == ("callback_exhausted", TOPICS.to_sender, 4)
    assert headers_of(buried)["relay-original-reason"] == b"exhausted"


@pytest.mark.parametrize("headers", [(), encode_hop(structs.replace(ANSWERED, outcome=None))])
def test_what_is_no_result_is_a_dead_letter(rig: Rig, headers: tuple[tuple[str, bytes], ...]) -> None:
    step = worker(rig)
    given = record(TOPICS.to_sender, headers)
    with pytest.raises(InvalidRecord) as caught:
        step.admit(given)
    assert letter_of(step.dead_letter(given, None, Dead(caught.value.reason))).reason == "invalid"


async def test_a_callback_that_is_offline_is_pinged(rig: Rig) -> None:
    rig.reply(204)
    step = worker(rig)
    work = admitted(step)
    work.token, work.pinging = b"\x01", True
    decision = expect(Later, await stepped(step, work))
    assert (decision.change, decision.healthy) == (Change.RELEASED, True)
    (request,) = rig.http.requests
    headers = dict(request.headers)
    assert (request.url, headers["ce-type"]) == ("https://sender.example/results", "relay.ping")
    assert "relay-message-id" not in headers
