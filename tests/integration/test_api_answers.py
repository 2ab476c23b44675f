"""Tests of answer URLs: a receiver POSTs its answer, once or several times, early or late."""

import pytest
from msgspec import structs

from relay.domain.answer_token import issue
from relay.domain.expression import ROUTING, Expression
from relay.domain.hop import decode_hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import BreakerPolicy
from relay.log.port import Coordinate
from relay.state.attempts import BeginRequest, Change, Go, Limits, PingDue, Settlement
from relay.state.port import Lane
from relay.state.replies import answered, of
from relay.state.rows import Mark, Result, Row, Stage, delivery_row
from tests.integration.api_rig import ANSWER_CAP, NOW, SECRET, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig
from workers.row_reconstruction import enqueued

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DELIVERY = DeliveryId("ci", "app", "m-1")
ROW = delivery_row(DELIVERY)
LANE = Lane("t-to_receiver_ci", 0, 1)
ASK = BeginRequest(ROW, 0, b"token-01", Limits(0.0, 25.0, BreakerPolicy(), 25.0))


def url(generation: int = 0, delivery: DeliveryId = DELIVERY, *, secret: bytes = SECRET, life_s: int = 60) -> str:
    return f"/v1/answers/{issue(secret, delivery, generation, int(NOW) + life_s)}"


async def row_of(rig: Rig) -> Row:
    return (await answered(rig.state.peek([ROW])))[0]


async def begin(rig: Rig, token: bytes = b"token-01") -> None:
    ask = structs.replace(ASK, token=token)
    (verdict,) = await answered(rig.state.begin(of(LANE, [ask])))
    assert isinstance(verdict, Go)


async def test_an_answer_goes_to_the_sender(rig: Rig) -> None:
    headers = {
        "ce_id": "m-1",
        "ce_type": "push",
        "ce_time": "2026-01-01T00:00:00Z",
        "traceparent": TRACE,
    }
    await rig.post("/v1/sources/app/messages?receiver=ci", b"{}", **headers)
    (first,) = rig.records(rig.topics.from_sender)
    await begin(rig)
    await answered(rig.state.settle([Settlement(ROW, 0, b"token-01", Change.ACCEPTED, result=Result("accepted", 202))]))
    await answered(rig.state.mark([Mark(ROW, 0, Stage.AWAITING)]))

    reply = await rig.post(url(), b"\x00\xff done", content_type="text/x", relay_answer_status="418")

    assert (reply.status, document(reply)) == (200, {"status": "recorded", "duplicate": False})
    (record,) = rig.records(rig.topics.to_sender)
    assert (record.key, record.value) == (b"app", b"\x00\xff done")
    hop = decode_hop(record.headers)
    assert (hop.delivery, hop.generation, hop.attempt) == (DELIVERY, 0, 1)
    assert (hop.outcome, hop.answer_status, hop.content_type) == ("answered", 418, "text/x")
    assert (hop.event_type, hop.time, hop.traceparent) == (
        "push",
        "2026-01-01T00:00:00Z",
        TRACE,
    )
    assert (hop.origin, hop.accepted_ms) == (first.coordinate, first.timestamp_ms)
    row = await row_of(rig)
    assert (row.stage, row.at) == (Stage.PUBLISHED, (record.partition, record.offset))
    (delivery,) = document(await rig.get("/v1/sources/app/messages/m-1"))["deliveries"]
    assert (delivery["status"], delivery["answer"]["status"]) == ("response_received_from_receiver", 418)


async def test_what_the_source_keeps_of_the_message_goes_along(rig: Rig) -> None:
    await rig.post("/v1/sources/app/messages?receiver=ci", b'{"after": "abc"}', ce_id="m-1")

    rig.directory.keep = None
    problem(await rig.post(url(), b"done"), 503, "unavailable")
    rig.directory.keep = {"sha": Expression("payload.after", ROUTING, "keep.sha")}
    assert (await rig.post(url(), b"done")).status == 200

    (record,) = rig.records(rig.topics.to_sender)
    assert decode_hop(record.headers).keep == '{"sha":"abc"}'


async def test_an_answer_waits_until_the_message_that_its_source_keeps_of_is_restored(rig: Rig) -> None:
    await rig.post("/v1/sources/app/messages?receiver=ci", b'{"after": "abc"}', ce_id="m-1")
    (first,) = rig.records(rig.topics.from_sender)
    rig.directory.keep = {"sha": Expression("payload.after", ROUTING, "keep.sha")}
    rig.state.lose()
    await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=60)
    problem(await rig.post(url(), b"done"), 503, "unavailable")
    assert rig.records(rig.topics.to_sender) == []

    restored = enqueued(first)
    assert restored is not None
    await answered(rig.state.enqueued([restored]))
    assert (await rig.post(url(), b"done")).status == 200

    (record,) = rig.records(rig.topics.to_sender)
    assert decode_hop(record.headers).keep == '{"sha":"abc"}'


async def test_an_answer_that_comes_before_the_response_counts(rig: Rig) -> None:
    await begin(rig)

    assert (await rig.post(url(), b"quick")).status == 200

    assert (await row_of(rig)).stage is Stage.PUBLISHED
    assert [record.value for record in rig.records(rig.topics.to_sender)] == [b"quick"]


async def test_an_answer_counts_although_every_memory_of_the_delivery_is_lost(rig: Rig) -> None:
    assert (await rig.post(url(3), b"still here")).status == 200

    (record,) = rig.records(rig.topics.to_sender)
    hop = decode_hop(record.headers)
    assert (hop.delivery, hop.generation, hop.attempt, hop.origin) == (DELIVERY, 3, 1, None)
    assert (await row_of(rig)).generation == 3


async def test_the_first_answer_wins_and_a_repeat_changes_nothing(rig: Rig) -> None:
    await rig.post(url(), b"first")

    for body in (b"first", b"second"):
        reply = await rig.post(url(), body)
        assert (reply.status, document(reply)["duplicate"]) == (200, True)
    row = await row_of(rig)
    assert row.at is not None
    await answered(rig.state.mark([Mark(ROW, 0, Stage.DONE)]))
    assert (await rig.post(url(), b"third")).status == 200

    (record,) = rig.records(rig.topics.to_sender)
    assert record.value == b"first"
    assert (await row_of(rig)).stage is Stage.DONE


@pytest.mark.parametrize("part", ["settle", "log", "mark"])
async def test_after_any_failure_the_receiver_repeats_and_nothing_is_lost(rig: Rig, part: str) -> None:
    rig.state.away = {part}
    rig.broker.available = part != "log"
    reply = await rig.post(url(), b"first")
    problem(reply, 503, "unavailable")
    assert int(reply.headers["Retry-After"]) > 0

    rig.state.away, rig.broker.available = set(), True
    assert (await rig.post(url(), b"another word")).status == 200

    records = rig.records(rig.topics.to_sender)
    assert {record.value for record in records} == {b"first"}
    row = await row_of(rig)
    assert row.stage is Stage.PUBLISHED
    assert row.at == (records[-1].partition, records[-1].offset)


async def test_an_outcome_of_a_worker_that_was_first_is_published(rig: Rig) -> None:
    await begin(rig)
    theirs = Result("delivered", 204)
    await answered(rig.state.settle([Settlement(ROW, 0, b"token-01", Change.RESULT, last_status=204, result=theirs)]))

    assert document(await rig.post(url(), b"late"))["duplicate"] is True

    (record,) = rig.records(rig.topics.to_sender)
    assert (record.value, decode_hop(record.headers).outcome) == (b"", "delivered")


async def test_while_the_state_recovers_the_receiver_has_to_repeat(rig: Rig) -> None:
    rig.state.lose()
    problem(await rig.post(url(), b"yes"), 503, "unavailable")
    assert rig.records(rig.topics.to_sender) == []


async def test_after_the_end_no_answer_is_taken(rig: Rig) -> None:
    await begin(rig)
    await answered(
        rig.state.settle([Settlement(ROW, 0, b"token-01", Change.RESULT, result=Result("dead", reason="rejected"))])
    )
    problem(await rig.post(url(), b"late"), 410, "answer-closed")  # given up, the dead letter is being written
    await answered(rig.state.mark([Mark(ROW, 0, Stage.FAILED, (0, 0), 5)]))
    problem(await rig.post(url(), b"late"), 410, "answer-closed")

    assert (await rig.post(url(1), b"of the replay")).status == 200
    problem(await rig.post(url(0), b"late"), 410, "answer-closed")
    problem(await rig.post(url(2, life_s=0), b"late"), 410, "answer-closed")
    assert [record.value for record in rig.records(rig.topics.to_sender)] == [b"of the replay"]


async def test_a_url_whose_time_is_over_counts_while_its_delivery_waits_for_the_answer(rig: Rig) -> None:
    """The first attempt may be long ago, and `answer_deadline` may have grown."""
    late = url(life_s=0)
    problem(await rig.post(late, b"without a row"), 410, "answer-closed")
    await begin(rig)
    await answered(rig.state.settle([Settlement(ROW, 0, b"token-01", Change.ACCEPTED, result=Result("accepted", 202))]))
    await answered(rig.state.mark([Mark(ROW, 0, Stage.AWAITING)]))
    problem(await rig.post(url(1, life_s=0), b"of another generation"), 410, "answer-closed")

    assert (await rig.post(late, b"late")).status == 200

    assert [record.value for record in rig.records(rig.topics.to_sender)] == [b"late"]
    problem(await rig.post(late, b"again"), 410, "answer-closed")


@pytest.mark.parametrize("life_s", [60, 0])
async def test_a_replay_that_waits_for_the_answer_again_gets_it_by_the_url_that_its_receiver_has(
    rig: Rig, life_s: int
) -> None:
    """The message is not sent again, so the receiver gets no other URL."""
    await answered(rig.state.mark([Mark(ROW, 0, Stage.FAILED, (0, 0), 5)]))
    problem(await rig.post(url(life_s=life_s), b"late"), 410, "answer-closed")
    await answered(rig.state.mark([Mark(ROW, 1, Stage.AWAITING)]))

    assert (await rig.post(url(life_s=life_s), b"done")).status == 200

    problem(await rig.post(url(life_s=life_s), b"again"), 410, "answer-closed")
    (record,) = rig.records(rig.topics.to_sender)
    assert (record.value, decode_hop(record.headers).generation) == (b"done", 1)


async def test_urls_that_are_not_ours(rig: Rig) -> None:
    good = url()
    for target in ("/v1/answers/x", good[:-1], good + "A", url(secret=b"another"), "/v1/answers/%FF"):
        found = problem(await rig.post(target, b"forged"), 404, "not-found")
        assert found["instance"] == "/v1/answers"
    assert rig.records(rig.topics.to_sender) == []


async def test_without_a_secret_there_are_no_answer_urls() -> None:
    async with running_api(answer_secrets=()) as rig:
        problem(await rig.post(url(secret=b""), b"forged"), 404, "not-found")
        assert rig.records(rig.topics.to_sender) == []


@pytest.mark.parametrize("status", ["99", "600", "0200", "2e2", "-200", "²00", "", "200,500"])
async def test_an_answer_status_that_is_none(rig: Rig, status: str) -> None:
    found = problem(await rig.post(url(), b"", relay_answer_status=status), 400, "invalid-request")
    assert found["errors"][0]["header"] == "relay-answer-status"
    assert (await row_of(rig)).stage is Stage.NONE


async def test_bodies_that_are_refused(rig: Rig) -> None:
    problem(await rig.post(url(), b"x" * (ANSWER_CAP + 1)), 413, "too-large")
    problem(await rig.post(url(), b"x", Content_Encoding="gzip"), 415, "unsupported-media-type")
    problem(await rig.post(url(), b"x", Content_Type="x/" + "y" * 1023), 400, "invalid-request")
    assert (await row_of(rig)).stage is Stage.NONE
    assert (await rig.post(url(), b"x" * ANSWER_CAP)).status == 200


async def test_an_answer_without_a_body_is_an_answer(rig: Rig) -> None:
    assert (await rig.post(url(), b"")).status == 200
    (record,) = await rig.log.read([(Coordinate(rig.topics.to_sender, *((await row_of(rig)).at or (0, -1))), None)])
    assert record is not None
    assert decode_hop(record.headers).answer_status == 200


async def test_a_receiver_that_brings_an_answer_is_not_called_offline_for_long(rig: Rig) -> None:
    for _ in range(BreakerPolicy().failures):
        await answered(rig.state.settle([Settlement(ROW, 0, b"", Change.RETRY, healthy=False)]))
    rig.state.advance(600)
    [ping] = await answered(rig.state.begin(of(LANE, [ASK])))
    assert isinstance(ping, PingDue)
    await answered(rig.state.settle([Settlement(ROW, 0, ASK.token, Change.RELEASED, healthy=False)]))
    assert (await rig.state.openings(["r:ci"]))[0].probe_in_s == 60.0

    assert (await rig.post(url(), b"done")).status == 200

    assert (await rig.state.openings(["r:ci"]))[0].probe_in_s == 0.0
