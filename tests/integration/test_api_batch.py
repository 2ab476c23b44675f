"""Tests of the batch route over a real socket: each item is judged separately, all in one call of log and state."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from relay.api.batch import MAX_BATCH_BYTES, MAX_ITEMS
from relay.domain.errors import LogUnavailable
from relay.domain.identity import MessageId
from relay.domain.message import Message, message_digest, parse_message
from relay.domain.timing import Timing
from relay.log.port import Coordinate, NewRecord
from tests.integration.api_rig import PAYLOAD_CAP, Reply, Rig, document, problem
from tests.integration.api_rig import rig as rig

PATH: Final = "/v1/sources/app/messages:batch"
CI: Final = f"{PATH}?receiver=ci"
LINES: Final = "application/x-ndjson"
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER_TRACE: Final = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EVENTS: Final = "application/cloudevents-batch+json"


def lines(*items: object) -> bytes:
    return "\n".join(json.dumps(item) for item in items).encode()


async def post(rig: Rig, body: bytes, content_type: str = LINES, path: str = CI) -> Any:
    """The results of a batch, checked for their form."""
    reply = await rig.post(path, body, content_type=content_type)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    view = document(reply)
    items = view["items"]
    assert list(view) == ["items", "accepted", "rejected", "duplicates"]
    assert [item["index"] for item in items] == list(range(len(items)))
    assert view["accepted"] + view["rejected"] == len(items)
    assert view["accepted"] == sum(item["status"] == 202 for item in items)
    assert view["duplicates"] == sum(item["duplicate"] for item in items)
    for item in items:
        assert list(item)[:4] == ["index", "message_id", "status", "duplicate"]
        assert ("problem" in item) == (item["status"] != 202)
        if "problem" in item:
            assert set(item["problem"]) == {"type", "title", "status", "detail", "instance", "errors"}
            assert item["problem"]["status"] == item["status"]
    return items


def statuses(items: Sequence[dict[str, Any]]) -> list[int]:
    return [item["status"] for item in items]


def on_the_log(rig: Rig) -> list[Message]:
    return [parse_message(record.value, record.headers) for record in rig.records(rig.topics.from_sender)]


# --- accepted ---------------------------------------------------------------------------------------------------


async def test_an_item_that_is_not_the_json_it_says_has_a_warning(rig: Rig) -> None:
    said = {"specversion": "1.0", "source": "app", "datacontenttype": "application/json"}
    good, bad = (b64encode(data).decode() for data in (b"{}", b"{"))
    items = await post(
        rig,
        json.dumps([said | {"id": "a", "data_base64": good}, said | {"id": "b", "data_base64": bad}]).encode(),
        EVENTS,
    )
    assert ["warnings" in item for item in items] == [False, True]


async def test_each_item_is_judged_for_itself_and_order_is_kept(rig: Rig) -> None:
    body = lines(
        {"message_id": "a", "payload": 1},
        {"message_id": "nobody", "receiver": "nobody", "payload": 1},
        {"message_id": "b", "payload": 2},
        {"message_id": "No", "receiver": "No Name", "payload": 1},
        {"message_id": "large", "payload": "x" * PAYLOAD_CAP},
        {"message_id": "other", "source_id": "other", "payload": 1},
        {"message_id": "nested", "content_type": "application/cloudevents+json", "payload": {}},
        "no object",
        {"payload": 3},
        {"message_id": "c", "receiver": ["cd", "ci"], "payload": 4},
    )

    items = await post(rig, body)

    assert statuses(items) == [202, 422, 202, 400, 413, 400, 415, 400, 202, 202]
    assert [item["message_id"] for item in items[7:]] == [None, "new-0", "c"]
    assert items[1]["problem"]["type"] == "/problems/unknown-receiver"
    assert [(one.message_id, one.payload) for one in on_the_log(rig)] == [
        ("a", b"1"),
        ("b", b"2"),
        ("new-0", b"3"),
        ("c", b"4"),
    ]
    assert [one.receivers for one in on_the_log(rig)] == [("ci",), ("ci",), ("ci",), ("cd", "ci")]
    for item in items:
        known = await rig.get(f"/v1/sources/app/messages/{item['message_id']}")
        assert known.status == (200 if item["status"] == 202 else 404)


async def test_the_envelope_of_from_sender_is_a_line(rig: Rig) -> None:
    envelope = {"source_id": "app", "message_id": "e", "receiver": "cd", "event_type": "push", "payload": {"a": [1]}}
    await post(rig, json.dumps(envelope).encode())

    (record,) = rig.records(rig.topics.from_sender)
    through_kafka = parse_message(json.dumps(envelope).encode(), ())
    assert parse_message(record.value, record.headers) == through_kafka
    assert record.key == b"app"


async def test_an_event_is_in_its_own_trace_or_in_that_of_its_request(rig: Rig) -> None:
    event = {"specversion": "1.0", "type": "push", "source": "app", "data": 1}
    own = event | {"id": "own", "traceparent": OTHER_TRACE, "tracestate": "mine=1"}
    bare = event | {"id": "bare", "traceparent": OTHER_TRACE}
    body = json.dumps([own, bare, event | {"id": "none"}]).encode()
    await rig.post(CI, body, content_type=EVENTS, traceparent=TRACE, tracestate="a=1")
    assert [(one.message_id, one.traceparent, one.tracestate) for one in on_the_log(rig)] == [
        ("own", OTHER_TRACE, "mine=1"),
        ("bare", OTHER_TRACE, None),
        ("none", TRACE, "a=1"),
    ]


async def test_a_line_and_a_single_message_are_the_same(rig: Rig) -> None:
    headers = {"ce_type": "push", "ce_time": "2026-01-01T00:00:00Z", "content_type": "application/vnd.x+json"}
    await rig.post("/v1/sources/app/messages?receiver=ci", b'{"a": 1}', ce_id="m", traceparent=TRACE, **headers)
    attributes = '"time": "2026-01-01T00:00:00Z", "content_type": "application/vnd.x+json"'
    line = f'{{"message_id": "m", {attributes}, "payload": {{"a": 1}}}}'
    reply = await rig.post(f"{CI}&type=push", line.encode(), content_type=LINES, traceparent=TRACE)
    assert document(reply)["duplicates"] == 1

    await post(rig, line.replace('"m"', '"n"').encode(), path=f"{CI}&type=push")
    first, second = on_the_log(rig)
    assert (second.event_type, second.time, second.content_type, second.payload) == (
        first.event_type,
        first.time,
        first.content_type,
        first.payload,
    )


async def test_headers_of_a_messages_own_come_with_the_batch_or_an_item(rig: Rig) -> None:
    line = {"message_id": "1", "payload": 1, "headers": {"X-A": "own"}}
    bad = {"message_id": "3", "payload": 1, "headers": {"Cookie": "x"}}
    body = b"\n".join(json.dumps(one).encode() for one in (line, {"message_id": "2", "payload": 2}, bad))
    headers = {"relay_header_x_a": "all", "relay_header_x_b": "b"}
    view = document(await rig.post(CI, body, content_type=LINES, **headers))
    assert [item["status"] for item in view["items"]] == [202, 202, 400]
    assert [message.headers for message in on_the_log(rig)] == [
        (("x-a", "own"), ("x-b", "b")),
        (("x-a", "all"), ("x-b", "b")),
    ]


async def test_an_item_has_a_timing_of_its_own_or_that_of_the_batch(rig: Rig) -> None:
    items = await post(
        rig,
        lines(
            {"payload": 1, "delay": "5m"},
            {"payload": 2, "deadline": 90},
            {"payload": 3},
            {"payload": 4, "delay": "40d"},
            {"payload": 5, "delay": 60, "deadline": 30},
        ),
        path=f"{CI}&delay=10",
    )
    assert statuses(items) == [202, 202, 202, 400, 400]
    timings = [parse_message(one.value, one.headers).timing for one in rig.records(rig.topics.from_sender)]
    assert timings == [Timing(300.0), Timing(deadline=90.0), Timing(10.0)]


async def test_an_item_says_more_than_the_query(rig: Rig) -> None:
    own = {"message_id": "own", "receiver": "cd", "type": "pull", "payload": 1}
    await post(rig, lines({"message_id": "default", "payload": 1}, own), path=f"{CI}&type=push")

    assert [(one.receivers, one.event_type) for one in on_the_log(rig)] == [(("ci",), "push"), (("cd",), "pull")]


async def test_without_a_receiver_items_go_to_subscribers(rig: Rig) -> None:
    assert statuses(
        await post(rig, lines({"payload": 1}, {"payload": 2}), path="/v1/sources/github/messages:batch")
    ) == [
        202,
        202,
    ]
    assert statuses(await post(rig, lines({"payload": 1}, {"receiver": "ci", "payload": 1}), path=PATH)) == [422, 202]


@pytest.mark.parametrize("payload", [b'{"a" :\t[1.0e2 ,"\\u00e9\\/", 1, 1]}', b'"\\ud83d\\ude00"', b" 7 ", b"-0.0"])
async def test_payloads_are_verbatim(rig: Rig, payload: bytes) -> None:
    await post(rig, b'{"message_id":"l", "payload":  ' + payload + b"}\r\n\r\n")
    await post(rig, b'[{"id":"e", "data" : ' + payload + b"\n}]", EVENTS)

    assert [one.payload for one in on_the_log(rig)] == [payload.strip(), payload.strip()]


async def test_a_cloudevents_producer_is_understood(rig: Rig) -> None:
    made: list[tuple[str, Any, Any]] = [
        ("json", {"n": 1}, "application/json"),
        ("text", "<a/>", "text/xml"),
        ("binary", bytes(range(256)), "application/octet-stream"),
        ("nothing", None, None),
    ]
    events = [
        CloudEvent(
            {"id": name, "source": "app", "type": "push", "receiver": "cd,ci"}
            | ({"datacontenttype": content_type} if content_type else {}),
            data,
        )
        for name, data, content_type in made
    ]
    body = b"[" + b",".join(JSONFormat().write(event) for event in events) + b"]"

    assert statuses(await post(rig, body, f"{EVENTS}; charset=utf-8", PATH)) == [202] * len(events)

    found = {one.message_id: one for one in on_the_log(rig)}
    assert json.loads(found["json"].payload) == {"n": 1}
    assert (found["text"].payload, found["text"].content_type) == (b"<a/>", "text/xml")
    assert found["binary"].payload == bytes(range(256))
    assert found["nothing"].payload == b""
    assert {(one.event_type, one.receivers, one.time is None) for one in found.values()} == {
        ("push", ("cd", "ci"), False)
    }


async def test_an_event_of_another_source_is_refused(rig: Rig) -> None:
    """Its id is unique among that source's only: taken for one of ours it could pass for a repeat."""
    events = [{"id": "1", "source": "//other"}, {"id": "2"}, {"id": "3", "specversion": "0.3"}, 4]
    events.append({"id": "5", "time": "yesterday"})
    assert statuses(await post(rig, lines(events), EVENTS)) == [400, 202, 400, 400, 400]

    uri = [{"id": "1", "source": "https://x.example/a b"}]
    path = "/v1/sources/https%3A%2F%2Fx.example%2Fa%20b/messages%3Abatch?receiver=ci"
    assert statuses(await post(rig, lines(uri), EVENTS, path)) == [202]


async def test_an_empty_batch_is_a_batch(rig: Rig) -> None:
    assert await post(rig, b"\n \r\n") == []
    assert await post(rig, b" [ ] ", EVENTS) == []


# --- refused as a whole -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/cloudevents+json", ""])
async def test_other_content_types(rig: Rig, content_type: str) -> None:
    reply = await rig.post(CI, lines({"payload": 1}), content_type=content_type)
    problem(reply, 415, "unsupported-media-type")
    assert reply.headers["Accept-Post"] == f"{LINES}, {EVENTS}"


@pytest.mark.parametrize("body", [b"", b"{}", b"[1", b"[1] 2", b"null", b"[" * 100_000, b"\xff"])
async def test_what_is_no_array_is_no_batch(rig: Rig, body: bytes) -> None:
    problem(await rig.post(CI, body, content_type=EVENTS), 400, "invalid-request")


@pytest.mark.parametrize("query", ["reciever=ci", "receiver=No%20Name", "type=a&type=b", f"type={'x' * 1025}"])
async def test_a_wrong_query(rig: Rig, query: str) -> None:
    problem(await rig.post(f"{PATH}?{query}", lines({"payload": 1}), content_type=LINES), 400, "invalid-request")
    assert on_the_log(rig) == []


async def test_the_caps(rig: Rig) -> None:
    fits = b"\n".join([b'{"payload":1}'] * MAX_ITEMS)
    assert statuses(await post(rig, fits)) == [202] * MAX_ITEMS
    problem(await rig.post(CI, fits + b'\n{"payload":1}', content_type=LINES), 413, "too-large")
    events = b"[" + b",".join([b"{}"] * (MAX_ITEMS + 1)) + b"]"
    problem(await rig.post(CI, events, content_type=EVENTS), 413, "too-large")
    length = MAX_BATCH_BYTES + 1
    head = f"POST {CI} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {LINES}\r\ncontent-length: {length}\r\n\r\n"
    status, _ = await rig.raw(head.encode())
    assert status == 413
    assert len(on_the_log(rig)) == MAX_ITEMS
    exact = b'"' + b"x" * (PAYLOAD_CAP - 2) + b'"'
    assert statuses(await post(rig, b'{"payload":%b}' % exact)) == [202]


# --- repeats ----------------------------------------------------------------------------------------------------


async def test_repeats_within_a_batch_and_of_earlier_messages(rig: Rig) -> None:
    await rig.post("/v1/sources/app/messages?receiver=ci", b"1", ce_id="early", content_type="application/json")

    items = await post(
        rig,
        lines(
            {"message_id": "early", "payload": 1},
            {"message_id": "early", "payload": 2},
            {"message_id": "m", "payload": 1},
            {"message_id": "m", "payload": 1},
            {"message_id": "m", "payload": 2},
            {"message_id": "m", "receiver": "cd", "payload": 1},
        ),
    )

    assert [(item["status"], item["duplicate"]) for item in items] == [
        (202, True),
        (409, False),
        (202, False),
        (202, True),
        (409, False),
        (409, False),
    ]
    assert [one.message_id for one in on_the_log(rig)] == ["early", "m"]
    assert [item["duplicate"] for item in await post(rig, lines({"message_id": "m", "payload": 1}))] == [True]


async def test_with_an_idempotency_key_items_without_an_id_can_be_repeated(rig: Rig) -> None:
    body = lines({"payload": 1}, {"message_id": "m", "payload": 2}, {"payload": 3})
    for repeated in (False, True):
        reply = await rig.post(CI, body, content_type=LINES, Idempotency_Key='"b1"')
        items = document(reply)["items"]
        assert [(item["message_id"], item["duplicate"]) for item in items] == [
            ("b1.1", repeated),
            ("m", repeated),
            ("b1.2", repeated),
        ]
    assert [one.message_id for one in on_the_log(rig)] == ["b1.1", "m", "b1.2"]


async def test_what_was_refused_does_not_stand_in_the_way_of_its_id(rig: Rig) -> None:
    refused, taken = {"message_id": "m", "receiver": "nobody", "payload": 1}, {"message_id": "m", "payload": 1}
    assert statuses(await post(rig, lines(refused, taken, refused))) == [422, 202, 409]


async def test_two_batches_at_once_of_one_id(rig: Rig) -> None:
    """The look-up finds neither, and the log takes both. The one that the state stores first is the message."""
    rig.state.away = {"messages"}
    assert statuses(await post(rig, lines({"message_id": "m", "payload": 1}))) == [202]

    body = lines({"message_id": "m", "payload": 1}, {"message_id": "m", "payload": 1})
    assert [item["duplicate"] for item in await post(rig, body)] == [True, True]
    body = lines({"message_id": "m", "payload": 2}, {"message_id": "m", "payload": 2}, {"payload": 3})
    assert statuses(await post(rig, body)) == [409, 409, 202]


async def test_the_state_remembers_each_item(rig: Rig) -> None:
    await post(rig, lines({"message_id": "a", "payload": 1}, {"message_id": "b", "payload": 2}))

    rows = await rig.state.messages([MessageId("app", "a"), MessageId("app", "b")])
    records = rig.records(rig.topics.from_sender)
    assert [(row.partition, row.offset, row.digest) for row in rows if row] == [
        (record.partition, record.offset, message_digest(parse_message(record.value, record.headers)))
        for record in records
    ]


# --- log and state ----------------------------------------------------------------------------------------------


class Counted:
    """Calls of the rig's log and state, by the number of items in each."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[str, list[int]] = {"append": [], "messages": [], "arrive": []}
        for owner, names in ((rig.log, ("append",)), (rig.state, ("messages", "arrive"))):
            for name in names:
                monkeypatch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, call: Any) -> Any:
        async def counted(items: Sequence[object]) -> object:
            self.sizes[name].append(len(items))
            return await call(items)

        return counted


async def test_a_batch_is_one_call_of_each(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(rig, monkeypatch)
    await post(rig, lines(*({"message_id": f"m-{n}", "payload": n} for n in range(100)), {"payload": "new"}))
    assert counted.sizes == {"messages": [100], "append": [101], "arrive": [101]}


async def test_messages_that_come_at_once_share_calls(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(rig, monkeypatch)
    single = "/v1/sources/app/messages?receiver=ci"
    replies = await asyncio.gather(*(rig.post(single, b"%d" % n, ce_id=f"m-{n}") for n in range(50)))

    assert [document(reply)["message_id"] for reply in replies] == [f"m-{n}" for n in range(50)]
    assert sorted(int(one.payload) for one in on_the_log(rig)) == list(range(50))
    for sizes in counted.sizes.values():
        assert sum(sizes) == 50
        assert len(sizes) < 50


async def test_nothing_is_remembered_while_the_log_is_away(rig: Rig) -> None:
    body = lines({"message_id": "a", "payload": 1}, {"message_id": "b", "payload": 1})
    rig.broker.available = False
    reply = await rig.post(CI, body, content_type=LINES)
    problem(reply, 503, "unavailable")
    assert int(reply.headers["Retry-After"]) > 0
    assert await rig.state.messages([MessageId("app", "a"), MessageId("app", "b")]) == [None, None]

    rig.broker.available = True
    assert [item["duplicate"] for item in await post(rig, body)] == [False, False]


async def test_a_log_that_failed_in_the_middle_is_repeated_safely(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    append = rig.log.append

    async def half(records: Sequence[NewRecord]) -> list[Coordinate]:
        await append(records[:1])
        raise LogUnavailable("lost its leader")

    body = lines({"message_id": "a", "payload": 1}, {"message_id": "b", "payload": 1})
    with monkeypatch.context() as patch:
        patch.setattr(rig.log, "append", half)
        problem(await rig.post(CI, body, content_type=LINES), 503, "unavailable")
    assert [item["duplicate"] for item in await post(rig, body)] == [False, False]
    assert [one.message_id for one in on_the_log(rig)] == ["a", "a", "b"]


async def test_batches_are_accepted_while_the_state_is_away(rig: Rig) -> None:
    rig.state.away = {"messages", "arrive"}
    assert statuses(await post(rig, lines({"message_id": "m", "payload": 1}, {"message_id": "m", "payload": 1}))) == [
        202,
        202,
    ]
    assert len(on_the_log(rig)) == 1


async def test_what_the_log_finds_too_large_is_refused_alone(rig: Rig) -> None:
    rig.broker.max_message_bytes = 500
    large = {"message_id": "large", "payload": "x" * 500}
    body = lines({"message_id": "a", "payload": 1}, large, large, {"message_id": "b", "payload": 2})

    assert statuses(await post(rig, body)) == [202, 413, 413, 202]
    assert [one.message_id for one in on_the_log(rig)] == ["a", "b"]


# --- any bytes --------------------------------------------------------------------------------------------------

_JSONISH: Final = st.lists(
    st.sampled_from(
        [
            '{"payload":',
            '"message_id":"',
            '"data":',
            '"id":',
            "{",
            "}",
            "[",
            "]",
            ",",
            '"',
            "\\ud800",
            "1",
            "\n",
            "\x00",
        ]
    )
).map(lambda parts: "".join(parts).encode())


@settings(max_examples=150)
@given(st.binary() | _JSONISH, st.sampled_from([LINES, EVENTS]))
async def test_no_body_is_our_fault(rig: Rig, body: bytes, content_type: str) -> None:
    with capture_logs() as logged:
        reply: Reply = await rig.post(CI, body, content_type=content_type)
    assert reply.status in (200, 400)
    assert logged == []
