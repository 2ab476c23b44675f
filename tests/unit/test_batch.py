"""A batch of messages: its body, as foreign code reads it, and what its response says about each message."""

import base64
import codecs
import json
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.batch import BadVerdicts, BatchEvent, about_bytes, encoded_event, read_verdicts
from relay.domain.exchange import Response
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId, webhook_id
from relay.domain.receiver import BatchFormat

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)


def hop(message_id: str = "m-1", source_id: str = "a", content_type: str | None = None, **others: Any) -> Hop:
    return Hop(DeliveryId("r", source_id, message_id), content_type=content_type, **others)


def encoded(payload: bytes, form: BatchFormat = "cloudevents", **of_hop: Any) -> bytes:
    return encoded_event(BatchEvent(hop(**of_hop), payload, 2, 7, False, 1_800_000_000, None), form)


def read(event: bytes) -> Any:
    """As the SDK of CloudEvents reads it."""
    headers = {"content-type": "application/cloudevents+json"}
    return from_http(HTTPMessage(headers, event), JSONFormat())


@given(texts, texts, texts)
def test_the_sdk_of_cloudevents_reads_each(message_id: str, source_id: str, kind: str) -> None:
    event = read(
        encoded(
            b'{"a": 1.50}',
            message_id=message_id,
            source_id=source_id,
            event_type=kind,
            time="2026-11-26T12:00:00Z",
            generation=1,
        )
    )
    assert (event.get_id(), event.get_source(), event.get_type()) == (message_id, source_id, kind)
    assert event.get_data() == {"a": 1.5}
    assert event.get_extension("webhookid") == webhook_id(source_id, message_id)
    assert (event.get_extension("relayattempt"), event.get_extension("relaygeneration")) == (2, 1)
    assert event.get_extension("relaysequence") == "7"


@given(st.binary(max_size=200), st.sampled_from(["application/octet-stream", "text/plain", "application/json", None]))
def test_what_is_no_json_is_base64(payload: bytes, content_type: str | None) -> None:
    event = json.loads(encoded(payload, content_type=content_type))
    if "data_base64" in event:
        assert base64.b64decode(event["data_base64"]) == payload
        assert read(json.dumps(event).encode()).get_data() == payload
    else:
        assert content_type in ("application/json", None)
        assert event["data"] == json.loads(payload)


@pytest.mark.parametrize(
    "payload", [b'{"a":  123456789012345678901234567890, "a": 1.10}', b"[1,\n2]", b'"text"', b"null"]
)
def test_json_stands_in_a_batch_as_its_sender_wrote_it(payload: bytes) -> None:
    assert payload in encoded(payload, content_type="application/vnd.ci+json; charset=utf-8")
    assert payload in encoded(payload, "list")


@pytest.mark.parametrize("payload", [b"{", b"NaN", b"\xff", b'"\xff"', b"", b"[" * 10_000, b"\xef\xbb\xbf{}"])
def test_what_would_break_the_batch_is_base64(payload: bytes) -> None:
    assert base64.b64decode(json.loads(encoded(payload))["data_base64"]) == payload


def test_a_list_has_the_promised_fields() -> None:
    event = json.loads(encoded(b"{}", "list", event_type="push", time="yesterday"))
    assert {name: event[name] for name in ("sequence", "type", "id", "source", "time", "payload")} == {
        "sequence": 7, "type": "push", "id": "m-1", "source": "a", "time": "yesterday", "payload": {},
    }  # fmt: skip
    assert json.loads(encoded(b"\xff", "list"))["payload_base64"] == "/w=="


@pytest.mark.parametrize("time", ["yesterday", "2026-13-01T00:00:00Z", "2026-11-26", "", "2026-02-30T00:00:00Z"])
def test_what_is_no_time_is_left_out_of_a_cloudevent(time: str) -> None:
    assert "time" not in json.loads(encoded(b"{}", time=time))


def test_a_message_without_a_type_gets_one_as_a_cloudevent_needs_it() -> None:
    assert read(encoded(b"{}")).get_type() == "relay.message"


@given(st.binary(max_size=3_000), st.sampled_from(["text/plain", "application/json"]), texts)
def test_the_size_of_a_message_is_about_right(payload: bytes, content_type: str, message_id: str) -> None:
    size = about_bytes(hop(message_id, content_type=content_type), payload)
    assert size <= 2 * len(payload) + 1_024


HOPS = [hop("m-1"), hop("m-2"), hop("m-3", "b")]


def verdicts(body: object, status: int = 200) -> list[Response | None] | None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_verdicts(Response(status, {}, text), HOPS)


def test_each_message_has_the_status_and_body_that_the_list_says() -> None:
    first, second, third = verdicts(
        [
            {"id": "m-3", "source": "b", "status": 503, "retry_after": 7},
            {"id": webhook_id("a", "m-1"), "status": 200, "body": {"built": 1.50}},
        ]
    ) or [None, None, None]
    assert first == Response(200, {"content-type": "application/json"}, b'{"built": 1.5}')
    assert second is None
    assert third == Response(503, {"retry-after": "7"}, b"")


def test_a_byte_order_mark_makes_it_no_other_text() -> None:
    """Some servers write one. As no list, it would be one answer for all, also for those that have failed."""
    assert verdicts(codecs.BOM_UTF8 + b'[{"id": "m-1", "status": 503}]') == [Response(503, {}, b""), None, None]


@pytest.mark.parametrize("body", [b"", b"{}", b"ok", b'{"id": "m-1", "status": 200}', b"\xff"])
def test_what_is_no_list_is_one_answer_for_all(body: bytes) -> None:
    assert verdicts(body) is None


@pytest.mark.parametrize(
    "body",
    [
        [],
        ["m-1"],
        [{"id": "m-1"}],
        [{"id": 1, "status": 200}],
        [{"id": "m-1", "status": "200"}],
        [{"id": "m-1", "status": 600}],
        [{"id": "m-1", "status": True}],
        [{"id": "m-1", "source": "b", "status": 200}],
        [{"id": "m-4", "status": 200}],
        [{"id": "m-1", "status": 200}, {"id": webhook_id("a", "m-1"), "status": 200}],
        b"[",
        b" [1",
        b'[{"id": "m-1", "status": 200}] x',
        b"[" * 100_000,
        b'[{"id": "\xff", "status": 200}]',
    ],
)
def test_a_list_that_says_nothing_certain_is_refused(body: object) -> None:
    with pytest.raises(BadVerdicts):
        verdicts(body)


def test_a_list_that_was_cut_says_nothing() -> None:
    with pytest.raises(BadVerdicts):
        read_verdicts(Response(200, {}, b'[{"id": "m-1", "status": 200}', truncated=True), HOPS)


@given(st.binary(max_size=60).map(lambda tail: b"[" + tail))
def test_no_list_breaks_the_process(body: bytes) -> None:
    try:
        found = verdicts(body)
    except BadVerdicts:
        return
    assert found is None or len(found) == len(HOPS)
