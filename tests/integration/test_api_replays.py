"""Tests of replay and discard over HTTP: accepted requests, their responses, and requests that start nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from relay.control.records import ControlWriter
from relay.domain.control_key import decode_value
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.errors import LogUnavailable
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_digest, message_headers
from relay.domain.reasons import REASON_CODES
from relay.domain.receiver import BreakerPolicy
from relay.domain.replay_job import ReplayOrder
from relay.domain.times import rfc3339
from relay.domain.topics import TopicSpec
from relay.log.port import Coordinate, NewRecord
from relay.state.attempts import BeginRequest, Change, Limits, Settlement
from relay.state.port import FailedEntry, Lane
from relay.state.rows import TAGS, Arrival, Mark, MessageStage, Result, Stage, delivery_row
from tests.integration.api_rig import NOW, Rig, document, problem, running_api

OF_ONE = "/v1/sources/github/messages/{}/deliveries/ci"


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with running_api() as found:
        lanes = [found.topics.to_receiver("ci"), found.topics.pending("ci")]
        await found.log.create([TopicSpec(lane, 1) for lane in lanes], {})
        yield found


async def add_dead_letter(rig: Rig, number: int, *, reason: str = "rejected", status: int | None = 422) -> Coordinate:
    """Store a dead letter of `ci`, as the relay would."""
    message = Message("github", f"m-{number}", ("ci",), "push", None, "application/json", b'{"n": %d}' % number)
    from_sender = NewRecord(rig.topics.from_sender, b"github", message.payload, message_headers(message))
    (origin,) = await rig.log.append([from_sender])
    arrival = Arrival(message.id, message_digest(message), origin.partition, origin.offset, MessageStage.ENQUEUED)
    await rig.state.enqueued([arrival])
    delivery = DeliveryId("ci", *message.id)
    stage = rig.topics.to_receiver("ci")
    letter = DeadLetter(reason, "it said no", stage, origin, 1, int(NOW * 1000) + number, status)
    headers = dead_letter_headers(encode_hop(Hop(delivery, "push", origin=origin)), letter)
    (at,) = await rig.log.append([NewRecord(rig.topics.failed_messages, b"github", message.payload, headers)])
    row = delivery_row(delivery)
    await rig.state.mark([Mark(row, 0, Stage.FAILED, (at.partition, at.offset), REASON_CODES[reason])])
    await rig.state.index_failed([FailedEntry("ci", at, NOW + number, reason, *message.id)])
    return at


def sent(rig: Rig) -> list[tuple[str, bytes]]:
    """Message ids in the lane of `ci`, and their lives."""
    records = rig.records(rig.topics.to_receiver("ci"))
    return [(dict(r.headers)["ce_id"].decode(), dict(r.headers)["relay-generation"]) for r in records]


async def post(rig: Rig, path: str, **body: Any) -> Any:
    return await rig.post(path, json.dumps(body).encode() if body else b"", Content_Type="application/json")


async def listed(rig: Rig) -> list[str]:
    return [item["message_id"] for item in document(await rig.get("/v1/failed"))["items"]]


@pytest.mark.parametrize("by_place", [False, True])
async def test_one_is_replayed_at_once_and_only_once(rig: Rig, by_place: bool) -> None:
    at = await add_dead_letter(rig, 1)
    path = f"/v1/failed/{at.partition}/{at.offset}/replay" if by_place else OF_ONE.format("m-1") + "/replay"
    [item] = document(await rig.get("/v1/failed"))["items"]
    assert item["replay"] == f"/v1/failed/{at.partition}/{at.offset}/replay"
    reply = await post(rig, path)
    assert (reply.status, document(reply)) == (
        202,
        {
            "action": "replay",
            "receiver": "ci",
            "source_id": "github",
            "message_id": "m-1",
            "generation": 1,
            "topic": rig.topics.to_receiver("ci"),
        },
    )
    assert sent(rig) == [("m-1", b"1")]
    assert await listed(rig) == []
    await rig.state.mark([Mark(delivery_row(DeliveryId("ci", "github", "m-1")), 1, Stage.DONE)])
    if by_place:
        problem(await post(rig, path), 409, "not-replayable")
    else:
        found = problem(await post(rig, path), 409, "not-failed")
        assert all(option in found["detail"] for option in ("only_failed", "--all"))
    assert sent(rig) == [("m-1", b"1")]


async def test_one_that_was_delivered_is_sent_again_if_that_is_said(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    await rig.state.mark([Mark(delivery_row(DeliveryId("ci", "github", "m-1")), 3, Stage.DONE)])
    problem(await post(rig, OF_ONE.format("m-1") + "/replay"), 409, "not-failed")
    reply = await post(rig, OF_ONE.format("m-1") + "/replay", only_failed=False)
    assert (reply.status, document(reply).get("generation")) == (202, 4), reply.text
    assert sent(rig) == [("m-1", b"4")]
    problem(await post(rig, OF_ONE.format("m-1") + "/discard"), 409, "not-failed")


async def test_one_is_discarded_with_a_letter_that_says_so(rig: Rig) -> None:
    await add_dead_letter(rig, 1)
    reply = await post(rig, OF_ONE.format("m-1") + "/discard")
    assert (reply.status, document(reply)["generation"]) == (202, 1)
    last = dict(rig.records(rig.topics.failed_messages)[-1].headers)
    assert (last["relay-reason"], last["relay-former-reason"]) == (b"discarded", b"rejected")
    assert last["relay-generation"] == b"1"
    assert await listed(rig) == []
    [view] = document(await rig.get("/v1/sources/github/messages/m-1"))["deliveries"]
    assert (view["status"], view["reason"], view["generation"]) == ("failed", "discarded", 1)
    problem(await post(rig, OF_ONE.format("m-1") + "/discard"), 409, "not-replayable")
    reply = await post(rig, OF_ONE.format("m-1") + "/replay")
    assert document(reply)["generation"] == 2, "a discard can be undone"


async def test_the_letter_of_another_in_its_place_is_neither_shown_replayed_nor_discarded(rig: Rig) -> None:
    """`failed_messages` was made anew, and the rows and the index outlived it."""
    former = await add_dead_letter(rig, 1)
    rig.broker.cut(former._replace(offset=0))
    assert await add_dead_letter(rig, 2) == former
    views = [document(await rig.get(f"/v1/sources/github/messages/m-{n}"))["deliveries"][0] for n in (1, 2)]
    shown = [(view["reason"], view["detail"], view["attempts"]) for view in views]
    assert shown == [("rejected", None, 0), ("rejected", "it said no", 1)]
    waited = await rig.get("/v1/sources/github/messages/m-1?wait=0")
    assert (waited.status, json.loads(waited.text)["attempts"]) == (502, 0)
    for action in ("replay", "discard"):
        problem(await post(rig, OF_ONE.format("m-1") + f"/{action}"), 404, "not-found")
    assert sent(rig) == []
    assert len(rig.records(rig.topics.failed_messages)) == 1


async def test_one_that_is_under_way_can_be_discarded_and_not_replayed(rig: Rig) -> None:
    message = Message("github", "m-9", ("ci",), None, None, None, b"{}")
    await rig.post("/v1/sources/github/messages?receiver=ci", b"{}", ce_id="m-9")
    assert message.id.message_id == "m-9"
    problem(await post(rig, OF_ONE.format("m-9") + "/replay"), 409, "not-failed")
    reply = await post(rig, OF_ONE.format("m-9") + "/discard")
    assert (reply.status, document(reply)["topic"]) == (202, None)
    [view] = document(await rig.get("/v1/sources/github/messages/m-9"))["deliveries"]
    assert (view["status"], view["reason"]) == ("failed", "discarded")


async def test_one_whose_dead_letter_follows_can_be_replayed_then(rig: Rig) -> None:
    await rig.post("/v1/sources/github/messages?receiver=ci", b"{}", ce_id="m-9")
    row, dead = delivery_row(DeliveryId("ci", "github", "m-9")), Result("dead", reason="exhausted")
    limits = Limits(0.0, 25.0, BreakerPolicy(), 25.0)
    await rig.state.begin([(Lane(rig.topics.to_receiver("ci"), 0, 1), BeginRequest(row, 0, b"t1", limits))])
    end = Settlement(row, 0, b"t1", Change.RESULT, reason="exhausted", result=dead, settle_s=25.0, may_arrive=True)
    await rig.state.settle([end])
    for action in ("replay", "discard"):
        found = problem(await post(rig, f"{OF_ONE.format('m-9')}/{action}"), 409, "not-failed")
        assert "in 25 s" in found["detail"]


async def test_one_that_was_not_sent_is_cancelled(rig: Rig) -> None:
    await rig.post("/v1/sources/github/messages?receiver=ci&delay=1h", b"{}", ce_id="m-9")
    for _ in range(2):
        reply = await post(rig, OF_ONE.format("m-9") + "/cancel")
        assert (reply.status, document(reply)["action"], document(reply)["topic"]) == (202, "cancel", None)
    view = document(await rig.get("/v1/sources/github/messages/m-9"))
    assert (view["state"], view["deliveries"][0]["reason"]) == ("discarded", "cancelled")
    for action in ("replay", "discard"):
        found = problem(await post(rig, f"{OF_ONE.format('m-9')}/{action}"), 409, "not-failed")
        assert found["detail"].startswith("Its dead letter is not written yet")


async def test_one_that_was_sent_is_not_cancelled(rig: Rig) -> None:
    await rig.post("/v1/sources/github/messages?receiver=ci", b"{}", ce_id="m-9")
    await rig.state.mark([Mark(delivery_row(DeliveryId("ci", "github", "m-9")), 0, Stage.DONE)])
    problem(await post(rig, OF_ONE.format("m-9") + "/cancel"), 409, "already-sent")
    problem(await post(rig, OF_ONE.format("nobody") + "/cancel"), 404, "not-found")


async def test_nothing_is_replayed_discarded_or_cancelled_while_rows_are_restored(rig: Rig) -> None:
    letter = await add_dead_letter(rig, 1)
    rig.state.lose()
    await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=60)
    of_letter = f"/v1/failed/{letter.partition}/{letter.offset}"
    await rig.post("/v1/sources/github/messages?receiver=ci", b"{}", ce_id="m-9")
    for path in (OF_ONE.format("m-1"), OF_ONE.format("m-9"), of_letter):
        for action in ("replay", "discard") if path == of_letter else ("replay", "discard", "cancel"):
            problem(await post(rig, f"{path}/{action}"), 503, "unavailable")
    assert sent(rig) == []
    assert len(rig.records(rig.topics.failed_messages)) == 1

    await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
    assert (await post(rig, of_letter + "/replay")).status == 202
    assert (await post(rig, OF_ONE.format("m-9") + "/discard")).status == 202


@pytest.mark.parametrize(
    ("path", "status", "name"),
    [
        (OF_ONE.format("nobody") + "/replay", 404, "not-found"),
        (OF_ONE.format("nobody") + "/discard", 404, "not-found"),
        ("/v1/sources/github/messages/m/deliveries/No%20Name/replay", 400, "invalid-request"),
        ("/v1/sources/github/messages/%ff/deliveries/ci/replay", 400, "invalid-request"),
        ("/v1/failed/0/99/replay", 404, "not-found"),
        ("/v1/failed/999999999/0/discard", 404, "not-found"),
        ("/v1/failed/x/0/discard", 404, "not-found"),
        ("/v1/replays/ffff/stop", 404, "not-found"),
        ("/v1/replays?x=1", 400, "invalid-request"),
    ],
)
async def test_what_is_not_there_is_said(rig: Rig, path: str, status: int, name: str) -> None:
    problem(await rig.post(path, b""), status, name)


@pytest.mark.parametrize("path", ["/v1/replays", "/v1/discards"])
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"receiver": 1}', "/receiver"),
        (b'{"receiver": ["ci", 2]}', "/receiver/1"),
        (b'{"receiver": "No Name"}', "/receiver"),
        (b'{"receiver": ["ci", "No Name"]}', "/receiver/1"),
        (b'{"receiver": []}', "/receiver"),
        (b'{"reciever": "ci"}', "/reciever"),
        (b'{"a/b~c": 1}', "/a~1b~0c"),
        (b'{"reason": "because"}', "/reason"),
        (b'{"stage": "lane"}', "/stage"),
        (b'{"status": 99}', "/status"),
        (b'{"status": [500, "x"]}', "/status/1"),
        (b'{"ids": ["", "b"]}', "/ids/0"),
        (b'{"source": "a\\u0000b"}', "/source"),
        (b'{"since": "yesterday"}', "/since"),
        (b'{"since": "2026-01-31T12:00:00"}', "/since"),
        (b'{"since": -1}', "/since"),
        (b'{"since": 1e300}', "/since"),
        (b'{"since": "1h", "until": "2h"}', "/until"),
        (b'{"rate": 0}', "/rate"),
        (b'{"rate": 1e9}', "/rate"),
        (b'{"rate": "fast"}', "/rate"),
        (b'{"dry_run": 1}', "/dry_run"),
        (b"[]", ""),
    ],
)
async def test_a_wrong_body_is_told_by_a_pointer_and_begins_nothing(
    rig: Rig, path: str, body: bytes, pointer: str
) -> None:
    found = problem(await rig.post(path, body, Content_Type="application/json"), 400, "invalid-request")
    assert [error.get("pointer") for error in found["errors"]] == [pointer]
    assert rig.records(rig.topics.receiver_config) == []


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"ids": "\xff"}', b"nonsense", b"[" * 100_000, b'{"rate": NaN}'])
async def test_what_is_no_json_is_said(rig: Rig, body: bytes) -> None:
    problem(await rig.post("/v1/replays", body, Content_Type="application/json"), 400, "invalid-request")
    reply = await rig.post(OF_ONE.format("m-1") + "/replay", body, Content_Type="application/json")
    problem(reply, 400, "invalid-request")
    assert rig.records(rig.topics.receiver_config) == []


async def test_only_failed_has_no_meaning_beside_a_reason_nor_for_a_discard(rig: Rig) -> None:
    found = problem(await post(rig, "/v1/replays", only_failed=False, reason="rejected"), 400, "invalid-request")
    assert found["errors"][0]["pointer"] == "/only_failed"
    found = problem(await post(rig, "/v1/discards", only_failed=False), 400, "invalid-request")
    assert found["errors"][0]["pointer"] == "/only_failed"


async def test_a_dry_run_counts_and_begins_nothing(rig: Rig) -> None:
    for number in range(3):
        await add_dead_letter(rig, number, status=422 if number else 400)
    rig.broker.drop_before(
        Coordinate(rig.topics.failed_messages, rig.records(rig.topics.failed_messages)[0].partition, 1)
    )
    reply = await post(rig, "/v1/replays", dry_run=True, receiver="ci", ids=["m-1", "m-2", "m-0"])
    found = document(reply)
    assert reply.status == 200
    assert (found["counted"], found["to_send"], found["skipped"], found["complete"]) == (2, 2, 0, True)
    assert found["not_found"] == ["m-0"]
    assert found["gone"]["records"] == 1
    assert found["request"]["receiver"] == ["ci"]
    assert rig.records(rig.topics.receiver_config) == []
    assert sent(rig) == []
    several = await post(rig, "/v1/replays", dry_run=True, receiver=["ci", "audit", "cii", "-"])
    assert document(several)["unknown_receivers"] == ["cii"]
    found = document(await post(rig, "/v1/replays", dry_run=True, status=400))
    assert found["counted"] == 0
    found = document(await post(rig, "/v1/replays", dry_run=True, since=NOW + 0.002, until="2096-01-31T12:00:00Z"))
    assert (found["counted"], found["gone"]) == (1, None)


async def test_a_job_whose_request_is_repeated_with_its_key_is_begun_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a 503 it is unknown whether the job was stored."""

    async def stored_without_a_reply(writer: ControlWriter, *entries: Any) -> None:
        await write(writer, *entries)
        raise LogUnavailable("the reply is lost")

    async def again(path: str, key: str | None, **body: Any) -> Any:
        headers = {"Content_Type": "application/json"} | ({"Idempotency_Key": key} if key is not None else {})
        return await rig.post(path, json.dumps(body).encode(), **headers)

    write = ControlWriter.write
    body = {"receiver": "ci", "since": "2d", "only_failed": False}
    with monkeypatch.context() as broken:
        broken.setattr(ControlWriter, "write", stored_without_a_reply)
        assert (await again("/v1/replays", "k", **body)).status == 503
    rig.clock.now += 5
    repeated = await again("/v1/replays", '"k"', **body)
    assert (repeated.status, repeated.headers["Idempotent-Replayed"]) == (202, "true")
    [job] = document(await rig.get("/v1/replays"))["items"]
    assert document(repeated) == job
    assert repeated.headers["Location"] == f"/v1/replays/{job['id']}"
    for path, key, other in (
        ("/v1/replays", "l", body),
        ("/v1/discards", "k", {"receiver": "ci"}),
        ("/v1/replays", None, body),
        ("/v1/replays", None, body),
    ):
        reply = await again(path, key, **other)
        assert (reply.status, "Idempotent-Replayed" in reply.headers) == (202, False)
    problem(await again("/v1/replays", "k", **body | {"since": "3d"}), 422, "idempotency-key-reused")
    assert len(document(await rig.get("/v1/replays"))["items"]) == 5
    assert document(await again("/v1/replays", "k", **body, dry_run=True))["dry_run"]
    found = problem(await again("/v1/replays", '"k', **body), 400, "invalid-request")
    assert "Idempotency-Key" in found["detail"]


async def test_of_two_requests_with_one_key_at_the_same_time_one_begins_the_job(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_the_same_time(writer: ControlWriter, *entries: Any) -> None:
        if next(calls) < 2:
            rig.clock.now += 5
            await both.wait()
        await write(writer, *entries)

    write, calls, both = ControlWriter.write, count(), asyncio.Barrier(2)
    monkeypatch.setattr(ControlWriter, "write", at_the_same_time)
    headers = {"Content_Type": "application/json", "Idempotency_Key": "k"}
    replies = await asyncio.gather(*(rig.post("/v1/replays", b'{"receiver": "ci"}', **headers) for _ in range(2)))

    assert [reply.status for reply in replies] == [202, 202]
    assert sorted("Idempotent-Replayed" in reply.headers for reply in replies) == [False, True]
    [job] = document(await rig.get("/v1/replays"))["items"]
    assert [document(reply) for reply in replies] == [job, job]
    topic = [record async for some in rig.log.scan(rig.topics.receiver_config, 0) for record in some]
    newest = {record.key: record for record in topic}[f"replay:{job['id']}".encode()]
    assert rfc3339(decode_value(ReplayOrder, newest.value or b"").made_at) == job["made_at"], (
        "it is what compaction leaves"
    )


async def test_jobs_are_listed_by_pages_that_stay_valid_and_stopped(rig: Rig) -> None:
    ids = []
    for number in range(5):
        rig.clock.now = NOW + number
        reply = await post(rig, "/v1/replays", receiver="ci", rate=5)
        assert reply.status == 202
        assert reply.headers["Location"] == f"/v1/replays/{document(reply)['id']}"
        ids.append(document(reply)["id"])
    first = document(await rig.get("/v1/replays?limit=2"))
    assert [job["id"] for job in first["items"]] == ids[:2:-1]
    await post(rig, "/v1/discards", reason="rejected")
    second = document(await rig.get(f"/v1/replays?limit=2&cursor={first['cursor']}"))
    assert [job["id"] for job in second["items"]] == [ids[2], ids[1]]
    last = document(await rig.get(f"/v1/replays?limit=2&cursor={second['cursor']}"))
    assert ([job["id"] for job in last["items"]], last["cursor"]) == ([ids[0]], None)
    reply = await post(rig, f"/v1/replays/{ids[0]}/stop")
    assert (reply.status, document(reply)["state"]) == (202, "stopping")
    shown = document(await rig.get(f"/v1/replays/{ids[0]}"))
    assert (shown["action"], shown["state"], shown["sent"], shown["skipped"]) == ("replay", "stopping", 0, 0)
    assert (shown["request"]["rate"], shown["eta"]) == (5, None)
    for bad in ("limit=0", "limit=1001", "limit=x", "cursor=x", "cursor=1_", "page=2"):
        problem(await rig.get(f"/v1/replays?{bad}"), 400, "invalid-request")
    problem(await rig.get("/v1/replays/nobody"), 404, "not-found")


async def test_what_nobody_can_read_is_discarded_once(rig: Rig) -> None:
    letter = DeadLetter("invalid", "no JSON", rig.topics.from_sender, None, 0, int(NOW * 1000), None)
    headers = dead_letter_headers((), letter)
    (at,) = await rig.log.append([NewRecord(rig.topics.failed_messages, None, b"rubbish", headers)])
    await rig.state.index_failed([FailedEntry("-", at, NOW, "invalid", "", "")])
    path = f"/v1/failed/{at.partition}/{at.offset}"
    problem(await post(rig, f"{path}/replay"), 409, "not-replayable")
    found = document(await post(rig, f"{path}/discard"))
    assert (found["receiver"], found["source_id"], found["message_id"]) == (None, None, None)
    assert document(await rig.get("/v1/failed"))["items"] == []
    problem(await post(rig, f"{path}/discard"), 409, "not-replayable")
    assert len(rig.records(rig.topics.failed_messages)) == 2
