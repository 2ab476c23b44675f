"""Tests of the route that accepts a message, over a real socket: accepted, refused and repeated ones."""

import asyncio
import json
from dataclasses import replace
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs

from relay.domain.coordinate import Coordinate
from relay.domain.identity import DeliveryId, MessageId, webhook_id
from relay.domain.message import Message, message_digest, parse_message
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.timing import Timing
from relay.log.partitioner import partition_of
from relay.log.port import Record, TopicPartition
from relay.state.attempts import Change, Settlement
from relay.state.read_model import LaneHeartbeat
from relay.state.replies import answered
from relay.state.rows import Arrival, MessageStage, Result, delivery_row
from tests.integration.api_rig import PAYLOAD_CAP, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig
from workers.dependencies import Meter

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CI = "/v1/sources/app/messages?receiver=ci"
BINARY = bytes(range(256)) * 4
FIELDS = [
    *("source_id", "message_id", "webhook_id", "type", "status", "state"),
    *("received_at", "at", "duplicate", "deliveries"),
]
DELIVERY_FIELDS = [
    "receiver",
    "status",
    "state",
    "generation",
    "attempts",
    "next_attempt_at",
    "waiting_for",
    "last_status",
    "reason",
    "detail",
    "advice",
    "answer",
    "callback",
    "next_at",
]


# --- POST -------------------------------------------------------------------------------------------------------


async def test_a_message_is_accepted_verbatim(rig: Rig) -> None:
    response = await rig.post(f"{CI}&type=push", BINARY, ce_id="m-1", content_type="application/x-thing; v=1")

    assert response.status == 202
    assert response.headers["Location"] == "/v1/sources/app/messages/m-1"
    (record,) = rig.records(rig.topics.from_sender)
    assert record.key == b"app"
    message = parse_message(record.value, record.headers)
    assert (message.id, message.receivers, message.event_type) == (("app", "m-1"), ("ci",), "push")
    assert (message.payload, message.content_type) == (BINARY, "application/x-thing; v=1")


@pytest.mark.parametrize(
    ("content_type", "payload", "is_warned"),
    [
        ("application/json", b'{"ref": "main"}', False),
        ("application/json; charset=utf-8", b'{"ref": }', True),
        ("application/vnd.acme+json", b"not json", True),
        ("application/json", b'"\xff"', True),
        ("application/json", b"", True),
        ("application/json", b"[" * 10_000, False),  # nested too deeply to be checked
        ("application/x-www-form-urlencoded", b"payload=%7B", False),
        ("text/plain", b"not json", False),
    ],
)
async def test_a_payload_that_is_not_the_json_it_says_is_accepted_with_a_warning(
    rig: Rig, content_type: str, payload: bytes, is_warned: bool
) -> None:
    accepted = document(await rig.post(CI, payload, ce_id="m-1", content_type=content_type))
    assert ("warnings" in accepted) == is_warned
    if is_warned:
        assert content_type in accepted["warnings"][0]
    (record,) = rig.records(rig.topics.from_sender)
    assert record.value == payload
    assert "warnings" not in document(await rig.get("/v1/sources/app/messages/m-1"))


async def test_strict_json_refuses_it() -> None:
    async with running_api(strict_json=True) as rig:
        refused = await rig.post(CI, b'{"ref": }', ce_id="m-1", content_type="application/json")
        assert "invalid character" in problem(refused, 400, "invalid-json")["detail"]
        assert rig.records(rig.topics.from_sender) == []
        assert (await rig.post(CI, b"{}", ce_id="m-1", content_type="application/json")).status == 202


async def test_what_is_remembered_of_a_message_does_not_stop_from_sender(rig: Rig) -> None:
    await rig.post(CI, ce_id="m-1")

    (record,) = rig.records(rig.topics.from_sender)
    (row,) = await rig.state.messages([MessageId("app", "m-1")])
    assert row is not None
    assert (row.stage, row.partition, row.offset) == (MessageStage.ACCEPTED, record.partition, record.offset)
    assert row.digest == message_digest(parse_message(record.value, record.headers))


async def test_the_response_has_the_documented_fields_and_equals_the_get(rig: Rig) -> None:
    accepted = document(await rig.post(f"{CI}&receiver=cd", ce_id="m-1", ce_type="push"))

    assert list(accepted) == FIELDS
    assert list(accepted["deliveries"][0]) == DELIVERY_FIELDS
    assert accepted["webhook_id"] == webhook_id("app", "m-1")
    assert (accepted["type"], accepted["status"], accepted["duplicate"]) == ("push", "arrived", False)
    assert accepted["received_at"] == "2023-11-14T22:13:20.000Z"
    assert [delivery["receiver"] for delivery in accepted["deliveries"]] == ["ci", "cd"]
    await rig.state.keep_heartbeats([LaneHeartbeat(rig.topics.from_sender, partition) for partition in range(10)])
    assert document(await rig.get("/v1/sources/app/messages/m-1")) == accepted


@pytest.mark.parametrize(
    "awkward", ["a/b", "100%", "%2F", "ü/☃", "{x}", "a b?c#d", "..", "'\"\\", "x" * 256, "=1+1;&", "\u2028"]
)
async def test_ids_survive_path_and_header(rig: Rig, awkward: str) -> None:
    path = f"/v1/sources/{quote(awkward, safe='')}/messages"

    response = await rig.post(f"{path}?receiver=ci", ce_id=quote(awkward, safe=""))

    view = document(response)
    assert (response.status, view["source_id"], view["message_id"]) == (202, awkward, awkward)
    assert response.headers["Location"] == f"{path}/{quote(awkward, safe='')}"
    (record,) = rig.records(rig.topics.from_sender)
    assert parse_message(record.value, record.headers).id == (awkward, awkward)
    assert (await rig.get(response.headers["Location"])).status == 200


@pytest.mark.parametrize("bad", ["%0d%0aSet-Cookie:x", "%00", "%FF", "%C2%85", "x" * 257])
async def test_ids_that_cannot_be_are_refused_wherever_they_stand(rig: Rig, bad: str) -> None:
    for response in (
        await rig.post(f"/v1/sources/{bad}/messages?receiver=ci"),
        await rig.get(f"/v1/sources/app/messages/{bad}"),
        await rig.post(CI, ce_id=bad),
        await rig.post(CI, Idempotency_Key=f'"{bad}"'),
    ):
        found = problem(response, 400, "invalid-request")
        assert len(found["errors"]) == 1
        assert not {"Set-Cookie", "set-cookie"} & set(response.headers)
    assert rig.records(rig.topics.from_sender) == []


@pytest.mark.parametrize(
    ("headers", "message_id"),
    [
        ({"webhook_id": "w"}, "w"),
        ({"Idempotency_Key": "bare-key"}, "bare-key"),
        ({"Idempotency_Key": '"quoted \\"key\\" \\\\"'}, 'quoted "key" \\'),
        ({"ce_id": "a%20b", "webhook_id": "a b", "Idempotency_Key": '"a b"'}, "a b"),
        ({}, "new-0"),
    ],
)
async def test_where_the_message_id_comes_from(rig: Rig, headers: dict[str, str], message_id: str) -> None:
    assert (document(await rig.post(CI, b"{}", **headers)))["message_id"] == message_id


@pytest.mark.parametrize(
    ("headers", "header"),
    [
        ({"ce_id": "a", "webhook_id": "b"}, "webhook-id"),
        ({"ce_id": "a", "Idempotency_Key": "b"}, "Idempotency-Key"),
        ({"Idempotency_Key": '"unended'}, "Idempotency-Key"),
        ({"Idempotency_Key": '"a"; b"'}, "Idempotency-Key"),
        ({"ce_id": ""}, "ce-id"),
        ({"ce_source": "other"}, "ce-source"),
        ({"ce_specversion": "0.3"}, "ce-specversion"),
        ({"ce_type": "%FF"}, "ce-type"),
    ],
)
async def test_headers_that_contradict_or_are_wrong(rig: Rig, headers: dict[str, str], header: str) -> None:
    found = problem(await rig.post(CI, b"{}", **headers), 400, "invalid-request")

    assert found["errors"] == [{"detail": found["detail"], "header": header}]


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("receiver=ci&type=push", {"ce_type": "pull"}),
        ("receiver=ci&type=a&type=b", {}),
        ("reciever=ci", {}),
        ("receiver=", {}),
        ("receiver=No%20Name", {}),
        ("receiver=ci&type=%FF", {}),
        ("receiver=ci", {"ce_type": "x" * 1025}),
        ("&".join(f"receiver=r{n}" for n in range(1001)), {}),
        ("&".join(["receiver=ci"] * 1011), {}),
    ],
)
async def test_queries_that_contradict_or_are_wrong(rig: Rig, query: str, headers: dict[str, str]) -> None:
    problem(await rig.post(f"/v1/sources/app/messages?{query}", b"{}", **headers), 400, "invalid-request")


async def test_the_state_of_a_trace_comes_along(rig: Rig) -> None:
    await rig.post(CI, b"{}", traceparent=TRACE, tracestate="a=1,b=2")
    await rig.post(CI, b"{}", traceparent=TRACE, tracestate="a" * 513)
    await rig.post(CI, b"{}")
    messages = [parse_message(one.value, one.headers) for one in rig.records(rig.topics.from_sender)]
    assert [one.tracestate for one in messages] == ["a=1,b=2", None, None]


async def test_attributes_come_from_headers(rig: Rig) -> None:
    await rig.post(
        f"{CI},cd",
        ce_type="a%20%C3%BC%25",
        ce_time="2026-01-01T00:00:00Z",
        traceparent=TRACE,
    )

    (record,) = rig.records(rig.topics.from_sender)
    message = parse_message(record.value, record.headers)
    assert (message.event_type, message.time, message.traceparent, message.content_type, message.receivers) == (
        "a ü%",
        "2026-01-01T00:00:00Z",
        TRACE,
        "application/octet-stream",
        ("ci", "cd"),
    )


async def test_headers_of_a_messages_own_are_kept_with_it(rig: Rig) -> None:
    named = {"Relay-Header-X-Team": "core", "relay-header-x-a": "ä", "x-other": "1"}
    assert (await rig.request("POST", "/v1/sources/app/messages?receiver=ci", b"{}", named)).status == 202
    (record,) = rig.records(rig.topics.from_sender)
    assert dict(parse_message(record.value, record.headers).headers) == {"x-team": "core", "x-a": "ä"}
    assert "relay-header-x-other" not in dict(record.headers)
    for name, value in (("cookie", "a"), ("relay-attempt", "1"), ("x-big", "a" * 4_096)):
        reply = await rig.request(
            "POST", "/v1/sources/app/messages?receiver=ci", b"{}", {f"relay-header-{name}": value}
        )
        assert reply.status == 400
    assert len(rig.records(rig.topics.from_sender)) == 1


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("delay=1h&deadline=2h", {}),
        ("delay=3600&deadline=7200", {}),
        ("", {"relay-delay": "1h", "relay-deadline": "2h"}),
        ("delay=1h", {"relay-delay": "1h", "relay-deadline": "7200"}),
    ],
)
async def test_a_message_may_be_delayed_and_have_a_deadline(rig: Rig, query: str, headers: dict[str, str]) -> None:
    named = {"ce-id": "m-1", **headers}
    accepted = document(await rig.request("POST", f"/v1/sources/app/messages?receiver=ci&{query}", b"{}", named))
    (record,) = rig.records(rig.topics.from_sender)
    assert parse_message(record.value, record.headers).timing == Timing(3600.0, 7200.0)
    for view in (accepted, document(await rig.get("/v1/sources/app/messages/m-1"))):
        [delivery] = view["deliveries"]
        assert (delivery["state"], delivery["waiting_for"]["kind"]) == ("queued", "delayed")
        assert delivery["waiting_for"]["until"] == delivery["next_attempt_at"]


@pytest.mark.parametrize(
    "query",
    [
        "delay=soon",
        "delay=31d",
        "delay=1h&deadline=30m",
        "deliver_at=2099-01-01T00:00:00Z",
        "deliver_at=2026-01-01",
        "delay=1h&delay=2h",
        "delay=1h&deliver_at=1700000060",
    ],
)
async def test_a_time_that_cannot_be_is_refused_with_its_field(rig: Rig, query: str) -> None:
    reply = await rig.post(f"/v1/sources/app/messages?receiver=ci&{query}", b"{}")
    problem(reply, 400, "invalid-request")
    assert query.partition("=")[0] in document(reply)["detail"]
    assert not rig.records(rig.topics.from_sender)


async def test_a_time_of_the_event_that_is_not_rfc_3339_is_refused(rig: Rig) -> None:
    reply = await rig.post("/v1/sources/app/messages?receiver=ci", b"{}", ce_time="1700000060")
    assert "1700000060" in problem(reply, 400, "invalid-request")["detail"]
    assert not rig.records(rig.topics.from_sender)


async def test_receivers_nobody_knows_are_named(rig: Rig) -> None:
    found = problem(await rig.post(f"{CI}&receiver=nobody&receiver=neither"), 422, "unknown-receiver")

    assert [error["parameter"] for error in found["errors"]] == ["receiver", "receiver"]
    assert "nobody, neither" in found["detail"]
    assert rig.records(rig.topics.from_sender) == []


async def test_an_id_that_could_not_be_asked_about_is_told_at_the_door(rig: Rig) -> None:
    asked = Receiver("asked", Endpoint("https://a.example/x"), status_endpoint="https://a.example/x/{message_id}")
    rig.directory.receivers["asked"] = asked
    found = problem(await rig.post("/v1/sources/app/messages?receiver=asked", ce_id="../admin"), 422, "unfit-id")
    assert "{message_id}" in found["detail"]
    assert rig.records(rig.topics.from_sender) == []
    assert (await rig.post("/v1/sources/app/messages?receiver=asked&receiver=ci", ce_id="../admin")).status == 202
    assert (await rig.post(CI, ce_id="../other")).status == 202


async def test_without_a_receiver_the_message_goes_to_subscribers(rig: Rig) -> None:
    view = document(await rig.post("/v1/sources/github/messages", ce_id="m-1"))
    assert [delivery["receiver"] for delivery in view["deliveries"]] == ["audit"]

    problem(await rig.post("/v1/sources/app/messages"), 422, "no-receiver")


async def test_the_cap_on_payloads(rig: Rig) -> None:
    assert (await rig.post(CI, b"x" * PAYLOAD_CAP)).status == 202
    problem(await rig.post(CI, b"x" * (PAYLOAD_CAP + 1)), 413, "too-large")
    chunk = b"%x\r\n%b\r\n" % (PAYLOAD_CAP + 1, b"x" * (PAYLOAD_CAP + 1))
    head = b"POST /v1/sources/app/messages?receiver=ci HTTP/1.1\r\nhost:[::1]\r\ntransfer-encoding: chunked\r\n\r\n"
    status, _ = await rig.raw(head + chunk + b"0\r\n\r\n")
    assert status == 413
    rig.broker.max_message_bytes = 100
    problem(await rig.post(CI, b"x" * 101), 413, "too-large")


async def test_responses_are_counted_by_route_and_status() -> None:
    class Counting(Meter):
        def responded(self, route: str, status: int) -> None:
            counted.append((route, status))

    counted: list[tuple[str, int]] = []
    async with running_api(meter=Counting()) as rig:
        await rig.post(CI, b"{}")
        await rig.post("/v1/sources/app/messages")
        await rig.get("/v1/sources/app/messages/m%2F1")
        await rig.get("/v1/no-such-route")
        await rig.get("/livez")
        await rig.get("/metrics")
    message = "/v1/sources/{source_id}/messages"
    assert counted == [
        (f"POST {message}", 202),
        (f"POST {message}", 422),
        (f"GET {message}/{{message_id}}", 404),
        ("-", 404),
    ]


async def test_bodies_in_forms_that_are_not_supported(rig: Rig) -> None:
    problem(await rig.post(CI, b"x", Content_Encoding="gzip"), 415, "unsupported-media-type")
    problem(await rig.post(CI, b"{}", content_type="application/CloudEvents+json"), 415, "unsupported-media-type")
    assert (await rig.post(CI, b"x", Content_Encoding="identity")).status == 202
    twice = b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"
    assert (await rig.raw(b"POST " + CI.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + twice))[0] == 415


async def test_broken_requests_get_400_and_are_no_fault_of_ours(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/sources/app/messages?receiver=ci HTTP/1.1\r\nhost: localhost\r\n"
    with capture_logs() as logged:
        for rest in (b"ce-id: \xff\r\n\r\n", b"ce-type: a\r\ncontent-type: \xff\r\n\r\n"):
            status, body = await rig.raw(head + rest)
            assert (status, json.loads(body)["type"]) == (400, "/problems/invalid-request")
        for target in (b"/v1/sources/\xff/messages?receiver=ci", b"/v1/sources/a/messages?receiver=\xff"):
            status, body = await rig.raw(b"POST " + target + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert status == 400
        for garbage in (
            head + b"transfer-encoding: chunked\r\n\r\nnonsense\r\n",
            b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        ):
            status, _ = await rig.raw(garbage)
            assert status == 400
    assert logged == []
    assert not [each for each in caplog.records if each.name.startswith(("relay", "aiohttp"))]
    assert rig.records(rig.topics.from_sender) == []


async def test_a_client_that_leaves_in_the_middle_is_no_fault_of_ours(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(rig.url.rsplit(":", 1)[1])
    with capture_logs() as logged:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/sources/app/messages?receiver=ci HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nabc"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await rig.get("/livez")).status == 200
    assert logged == []
    assert not [each for each in caplog.records if each.name.startswith(("relay", "aiohttp"))]
    assert rig.records(rig.topics.from_sender) == []


async def test_nothing_is_accepted_while_the_log_is_away(rig: Rig) -> None:
    rig.broker.available = False
    response = await rig.post(CI, ce_id="m-1")
    problem(response, 503, "unavailable")
    assert int(response.headers["Retry-After"]) > 0

    rig.broker.available = True
    assert (document(await rig.post(CI, ce_id="m-1")))["duplicate"] is False


async def test_messages_are_accepted_while_the_state_is_away(rig: Rig) -> None:
    rig.state.away = {"messages", "arrive"}
    assert (await rig.post(CI, ce_id="m-1")).status == 202
    rig.state.away = set()
    rig.state.lose()  # and then it recovers
    view = document(await rig.post(CI, ce_id="m-2"))
    assert view["status"] == "arrived"
    assert len(rig.records(rig.topics.from_sender)) == 2


# --- repeats ----------------------------------------------------------------------------------------------------


async def test_a_repeat_gets_the_state_of_the_first(rig: Rig) -> None:
    first = document(await rig.post(f"{CI}&receiver=cd&type=push", b"1", ce_id="m-1"))
    await settle(rig, "ci", Change.ACCEPTED, Result("accepted", 202))
    await settle(rig, "cd", Change.ACCEPTED, Result("accepted", 202))
    del rig.directory.receivers["cd"]  # removed meanwhile: no reason to refuse the repeat

    response = await rig.post("/v1/sources/app/messages?receiver=cd,ci&type=push", b"1", Idempotency_Key="m-1")

    view = document(response)
    assert (response.status, view["duplicate"], view["status"]) == (202, True, "delivered_to_receiver")
    assert view["received_at"] == first["received_at"]
    assert response.headers["Idempotent-Replayed"] == "true"
    assert len(rig.records(rig.topics.from_sender)) == 1


@pytest.mark.parametrize(("target", "payload"), [(CI, b"2"), (f"{CI}&type=push", b"1"), (f"{CI}&receiver=cd", b"1")])
async def test_another_message_cannot_have_the_same_id(rig: Rig, target: str, payload: bytes) -> None:
    await rig.post(CI, b"1", ce_id="m-1")

    problem(await rig.post(target, payload, ce_id="m-1"), 409, "id-conflict")
    assert len(rig.records(rig.topics.from_sender)) == 1


async def test_two_at_once_of_one_id(rig: Rig) -> None:
    """The look-up finds neither, and the log takes both. The one that the state stores first is the message."""
    rig.state.away = {"messages"}
    assert (await rig.post(CI, b"1", ce_id="m-1")).status == 202

    assert (document(await rig.post(CI, b"1", ce_id="m-1")))["duplicate"] is True
    problem(await rig.post(CI, b"2", ce_id="m-1"), 409, "id-conflict")


async def test_a_message_that_from_sender_saw_first_is_no_repeat(rig: Rig) -> None:
    """FromSender may read the record before we have written its row."""
    message = Message("app", "m-1", ("ci",), None, None, "application/octet-stream", b"1")
    at = TopicPartition(rig.topics.from_sender, partition_of(b"app", 10))
    await answered(rig.state.arrive([Arrival(message.id, message_digest(message), at.partition, rig.broker[at].end)]))
    rig.state.away = {"messages"}

    assert (document(await rig.post(CI, b"1", ce_id="m-1")))["duplicate"] is False


async def test_a_repeat_of_a_message_whose_record_is_gone(rig: Rig) -> None:
    """Unless it was routed, the log has deleted it unread: then the repeat takes its place."""

    def deleted() -> Record:
        (record,) = rig.records(rig.topics.from_sender)
        rig.broker.drop_before(Coordinate(record.topic, record.partition, record.offset + 1))
        return record

    await rig.post(CI, b"{}", ce_id="m-1")
    deleted()
    assert document(await rig.post(CI, b"{}", ce_id="m-1"))["duplicate"] is False
    record = deleted()
    [row] = await rig.state.messages([MessageId("app", "m-1")])
    assert row is not None
    await answered(rig.state.enqueued([Arrival(MessageId("app", "m-1"), row.digest, record.partition, record.offset)]))

    view = document(await rig.post(CI, b"{}", ce_id="m-1"))
    assert (view["duplicate"], view["received_at"]) == (True, None)
    problem(await rig.get("/v1/sources/app/messages/m-1"), 404, "not-found")


async def settle(rig: Rig, receiver: str, change: Change, result: Result) -> None:
    row = delivery_row(DeliveryId(receiver, "app", "m-1"))
    await answered(rig.state.settle([Settlement(row, 0, b"", change, last_status=result.status, result=result)]))


# --- the relay's own source -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content_type"), [("messages?receiver=ci", "text/plain"), ("messages:batch", "application/x-ndjson")]
)
async def test_nobody_sends_as_the_relay(rig: Rig, path: str, content_type: str) -> None:
    body = b'{"payload":1,"receiver":"ci"}'
    response = await rig.post(f"/v1/sources/relay/{path}", body, content_type=content_type)
    assert problem(response, 422, "reserved-source")["title"] == "The source is reserved"
    assert rig.records(rig.topics.from_sender) == []


async def test_a_receiver_that_a_source_may_not_name_and_one_that_is_not_there_are_one_answer() -> None:
    async with running_api() as rig:
        rig.directory.receivers["ci"] = replace(rig.directory.receivers["ci"], senders=("gitlab",))
        forbidden = await rig.post("/v1/sources/github/messages?receiver=ci", ce_id="m-1")
        unknown = await rig.post("/v1/sources/github/messages?receiver=no", ce_id="m-1")
        assert forbidden.status == 422
        assert (forbidden.status, forbidden.text.replace("ci", "no")) == (unknown.status, unknown.text)
        assert (await rig.post("/v1/sources/gitlab/messages?receiver=ci", ce_id="m-1")).status == 202
