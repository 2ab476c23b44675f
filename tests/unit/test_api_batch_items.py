"""Parsing of a batch's body: any bytes, and FromSender can read every accepted item."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.api.batch import MAX_ITEMS, Defaults, Item, Refused, read_events, read_lines
from relay.api.intake import IncomingMessage
from relay.api.problems import Problem
from relay.domain.message import message_headers, parse_message

DEFAULTS = Defaults("app", ("ci",), None, None, 1_000, lambda: "new")

texts = st.text(max_size=20)
names = st.sampled_from(["ci", "cd", " ci", "Not a name", "", "a,b"])
scalars = st.none() | st.booleans() | st.integers() | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=5)
fields = {
    "source_id": st.just("app") | values,
    "message_id": texts | values,
    "receiver": names | st.lists(names) | values,
    "event_type": texts | st.just("x" * 1_025) | values,
    "type": texts | values,
    "content_type": st.sampled_from(["text/plain", "application/cloudevents+json", ""]) | values,
    "time": texts | values,
    "specversion": st.sampled_from(["1.0", "0.3"]) | values,
    "id": texts | values,
    "source": st.just("app") | values,
    "datacontenttype": st.sampled_from(["text/plain", "a/b+json; x", "application/JSON", "application/CloudEvents"]),
    "traceparent": texts | values,
    "data": values,
    "data_base64": st.sampled_from(["", "AAE=", "AAE", "*"]) | values,
    "payload": values,
    "unknown": values,
}
documents = st.fixed_dictionaries({}, optional=fields)


def check(items: list[Item]) -> None:
    for item in items:
        if isinstance(item, Refused):
            assert 400 <= item.problem.kind.status < 500
        else:
            assert parse_message(item.message.payload, item.headers) == item.message
            assert item.headers == message_headers(item.message)


@pytest.mark.thorough
@given(st.lists(documents, max_size=4))
def test_what_is_accepted_is_what_from_sender_will_read(items: list[dict[str, Any]]) -> None:
    lines = read_lines("\n".join(map(json.dumps, items)).encode(), DEFAULTS)
    events = read_events(json.dumps(items).encode(), DEFAULTS)
    assert len(lines) == len(events) == len(items)
    check(lines)
    check(events)


@given(st.binary() | st.text(alphabet='[]{}",:\\ud8c0 \n\t').map(str.encode))
def test_any_bytes_are_items_or_a_problem(body: bytes) -> None:
    check(read_lines(body, DEFAULTS))
    try:
        items, status = read_events(body, DEFAULTS), 400
    except Problem as problem:
        items, status = [], problem.kind.status
    assert status == 400
    check(items)


@given(values, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_a_payload_is_the_slice_as_it_was_written(value: object, ascii_only: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    (event,) = read_events(b'[ {"id": "1", "data" :  ' + text + b" \r\n} ]", DEFAULTS)
    assert isinstance(event, IncomingMessage)
    assert event.message.payload == text
    if b"\n" not in text:
        (line,) = read_lines(b'\n\r\n {"payload" :\t' + text + b" }\r\n  \n", DEFAULTS)
        assert isinstance(line, IncomingMessage)
        assert line.message.payload == text


@pytest.mark.parametrize(
    "text", [rb'"\u00e9\ud83d\ude00\/"', b"1.0e+02", b'{"a":1,"a" : 2}', b"12345678901234567890123", b"-0.0"]
)
def test_spellings_that_a_decoder_would_change(text: bytes) -> None:
    for items in (
        read_lines(b'{"payload": ' + text + b"}", DEFAULTS),
        read_events(b'[{"data": ' + text + b"}]", DEFAULTS),
    ):
        (item,) = items
        assert isinstance(item, IncomingMessage)
        assert item.message.payload == text


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[1]",
        b"{",
        b'{"payload": 1} 2',
        b'{"message_id": "m"}',
        b'{"payload": 1, "message_id": 7}',
        b'{"payload": 1, "message_id": "\\ud800"}',
        b'{"payload": 1, "message_id": "\\udc00"}',
        b'{"payload": 1, "message_id": "\xff"}',
        b'{"payload": 1, "message_id": "a\\u0000"}',
        b'{"payload": 1, "message_id": ""}',
        b'{"payload": 1, "type": "a", "event_type": "b"}',
        b'{"payload": 1, "receiver": []}',
        b'{"payload": 1, "receiver": "a,,b"}',
        b'{"payload": 1, "source_id": "other"}',
        b'{"payload": ' + b"[" * 10_000,
        b'{"payload": 1, "time": "' + b"x" * 1_025 + b'"}',
    ],
)
def test_a_bad_line_does_not_spoil_the_others(line: bytes) -> None:
    items = read_lines(b'{"payload": 1}\n' + line + b'\n{"payload": 2}', DEFAULTS)
    good = [item.message.payload for item in items if isinstance(item, IncomingMessage)]
    assert good == [b"1", b"2"]
    assert [item.problem.kind.status for item in items if isinstance(item, Refused)] == ([400] if line else [])


def test_half_of_a_surrogate_pair_is_named() -> None:
    (item,) = read_lines(b'{"message_id":"m","payload":"\\ud83d"}', DEFAULTS)
    assert isinstance(item, Refused)
    assert r"\ud83d is half of a surrogate pair" in str(item.problem)
    with pytest.raises(Problem, match=r"not a JSON array: \\ud83d is half of a surrogate pair"):
        read_events(b'[{"id":"m","data":"\\ud83d"}]', DEFAULTS)


def test_a_line_names_several_receivers_with_commas_as_everywhere() -> None:
    [text, listed] = read_lines(
        b'{"payload": 1, "receiver": "b, a,b"}\n{"payload": 1, "receiver": ["b,a", "c"]}', DEFAULTS
    )
    assert isinstance(text, IncomingMessage)
    assert isinstance(listed, IncomingMessage)
    assert (text.message.receivers, listed.message.receivers) == (("b", "a"), ("b", "a", "c"))


@pytest.mark.parametrize(
    ("event", "payload", "content_type"),
    [
        ({}, b"", None),
        ({"data": None}, b"null", "application/json"),
        ({"data": "text"}, b'"text"', "application/json"),
        ({"data": '<x a="\u00e9"/>', "datacontenttype": "text/xml"}, '<x a="\u00e9"/>'.encode(), "text/xml"),
        ({"data": "text", "datacontenttype": "a/B+JSON; c=d"}, b'"text"', "a/B+JSON; c=d"),
        ({"data": [1], "datacontenttype": "text/plain"}, b"[1]", "text/plain"),
        ({"data_base64": "AP8="}, b"\x00\xff", None),
        ({"data_base64": "e30=", "datacontenttype": "application/json"}, b"{}", "application/json"),
    ],
)
def test_the_payload_of_an_event(event: dict[str, object], payload: bytes, content_type: str | None) -> None:
    (item,) = read_events(json.dumps([event]).encode(), DEFAULTS)
    assert isinstance(item, IncomingMessage)
    assert (item.message.payload, item.message.content_type) == (payload, content_type)


def test_a_batch_of_millions_is_too_large() -> None:
    for read, body in ((read_lines, b"1\n" * 1_000_000), (read_events, b"[" + b"1," * 1_000_000 + b"1]")):
        with pytest.raises(Problem) as raised:
            read(body, DEFAULTS)
        assert raised.value.kind.status == 413
    assert read_lines(b" \t\r\n" * 1_000_000, DEFAULTS) == []
    assert len(read_lines(b"1\n" * MAX_ITEMS, DEFAULTS)) == MAX_ITEMS
    assert len(read_events(b"[" + b"1," * (MAX_ITEMS - 1) + b"1]", DEFAULTS)) == MAX_ITEMS
