"""Messages: both wire forms of `from_sender`, and invalid records."""

import json

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from relay.domain.coordinate import Headers
from relay.domain.errors import InvalidRecord
from relay.domain.identity import MessageId
from relay.domain.message import (
    MAX_RECEIVERS,
    MAX_TEXT_BYTES,
    Message,
    message_digest,
    message_headers,
    parse_message,
    sender_headers,
)

IDS: Headers = (("ce_id", b"1"), ("ce_source", b"github"))

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60)
names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
messages = st.builds(
    Message,
    source_id=texts,
    message_id=texts,
    receivers=st.none() | st.lists(names, min_size=1, max_size=5, unique=True).map(tuple),
    event_type=st.none() | texts,
    time=st.none() | texts,
    content_type=st.none() | texts.filter(lambda text: not text.lower().startswith("application/cloudevents")),
    payload=st.binary(max_size=200),
    traceparent=st.sampled_from([None, TRACE]),
    tracestate=st.none() | st.from_regex(r"[ -~]{1,512}", fullmatch=True),
)


def envelope(**fields: object) -> bytes:
    return json.dumps({"source_id": "github", "message_id": "1", "payload": {}} | fields).encode()


@given(messages)
def test_the_header_form_round_trips(message: Message) -> None:
    assert parse_message(message.payload, message_headers(message)) == message


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (b"a=1,b=2", "a=1,b=2"),
        (b"", None),
        (b"a=\xff", None),
        (b"a=\n", None),
        (b"a" * 512, "a" * 512),
        (b"a" * 513, None),
    ],
)
def test_no_message_fails_because_of_a_tracestate(value: bytes, read: str | None) -> None:
    headers: Headers = (("traceparent", TRACE.encode()), ("tracestate", value))
    for message in (parse_message(b"{}", (*IDS, *headers)), parse_message(envelope(), headers)):
        assert (message.traceparent, message.tracestate) == (TRACE, read)


@pytest.mark.parametrize("value", [b"", b"tp", b"\xff", TRACE.encode()[:-1] + b"\xff", b"0" * 2_000])
def test_no_message_fails_because_of_a_traceparent(value: bytes) -> None:
    headers: Headers = (("traceparent", value),)
    for message in (parse_message(b"{}", (*IDS, *headers)), parse_message(envelope(), headers)):
        assert message.traceparent is None


def test_id_is_source_and_message() -> None:
    assert parse_message(b"", IDS).id == MessageId("github", "1")


def test_absent_headers_stay_absent() -> None:
    assert parse_message(b"x", IDS) == Message("github", "1", None, None, None, None, b"x")


def test_receivers_keep_their_order_and_lose_duplicates() -> None:
    message = parse_message(b"", (*IDS, ("ce_receiver", b"b, a,b , c")))
    assert message.receivers == ("b", "a", "c")


def test_hop_metadata_of_a_sender_is_ignored() -> None:
    forged = (("relay-receiver", b"other"), ("relay-generation", b"9"), ("relay-attempt", b"\xff"))
    assert parse_message(b"x", IDS + forged) == parse_message(b"x", IDS)


def test_sender_headers_leave_out_hop_metadata_but_keep_the_waiter() -> None:
    forged = (("relay-receiver", b"other"), ("relay-stage", b"w"), ("x-other", b"\xff"))
    assert sender_headers(IDS + forged) == (*IDS, ("x-other", b"\xff"))


def test_a_cloudevents_producer_is_understood() -> None:
    event = CloudEvent(
        {
            "id": "m 1",
            "source": "/github/é",
            "type": "push",
            "specversion": "1.0",
            "datacontenttype": "application/json",
            "receiver": "ci",
        },
        {"a": 1},
    )
    record = to_binary(event, JSONFormat())
    message = parse_message(record.value, tuple(record.headers.items()))
    assert (message.id, message.event_type, message.receivers) == (("/github/é", "m 1"), "push", ("ci",))
    assert (message.content_type, json.loads(message.payload)) == ("application/json", {"a": 1})


def test_a_cloudevents_consumer_understands_us() -> None:
    message = Message("/github/é", "m 1", ("ci",), "push", "2026-01-02T03:04:05Z", "application/json", b'{"a":1}')
    record = KafkaMessage(headers=dict(message_headers(message)), key=None, value=message.payload)
    event = from_binary(record, JSONFormat(), CloudEvent)
    assert (event.get_source(), event.get_id(), event.get_type()) == ("/github/é", "m 1", "push")
    assert event.get_data() == {"a": 1}


def test_structured_mode_is_refused_and_says_so() -> None:
    event = CloudEvent({"id": "1", "source": "s", "type": "t", "specversion": "1.0"}, {"a": 1})
    record = to_structured(event, JSONFormat())
    with pytest.raises(InvalidRecord, match="structured mode"):
        parse_message(record.value, tuple(record.headers.items()))


def test_the_envelope_keeps_the_payload_verbatim() -> None:
    payload = b'{"b" : 1.50,\n "a":"\\u00e9", "b": 1e400 }'
    value = b' {"source_id":"s","x":[1],"payload": %b ,"message_id":"m","receiver":["a","b","a"]}' % payload
    message = parse_message(value, (("traceparent", TRACE.encode()),))
    assert message == Message("s", "m", ("a", "b"), None, None, "application/json", payload, TRACE)


@pytest.mark.parametrize("payload", ["null", "0", '""', "[]", "false", '"text"', "[[[1]]]"])
def test_an_envelope_may_hold_any_json(payload: str) -> None:
    value = b'{"source_id":"s","message_id":"m","payload":%b}' % payload.encode()
    assert parse_message(value, ()).payload == payload.encode()


def test_envelope_fields() -> None:
    message = parse_message(envelope(receiver="ci", event_type="push", unknown=1), (("content-type", b"text/plain"),))
    assert (message.receivers, message.event_type, message.content_type) == (("ci",), "push", "application/json")
    assert parse_message(envelope(receiver=None), ()).receivers is None


def test_an_envelope_names_receivers_as_a_header_does() -> None:
    assert parse_message(envelope(receiver="b, a,b"), ()).receivers == ("b", "a")
    assert parse_message(envelope(receiver=["b,a", "c"]), ()).receivers == ("b", "a", "c")


DEEP = b'{"source_id":"s","message_id":"m","payload":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("value", "headers", "says"),
    [
        (None, IDS, "null"),
        (None, (), "null"),
        (b"", (("ce_id", b"1"),), "ce_source is missing"),
        (b"", (("ce_source", b"s"),), "ce_id is missing"),
        (b"", (("ce_id", b""), ("ce_source", b"s")), "ce_id is missing or empty"),
        (b"", (("ce_id", b"a\nb"), ("ce_source", b"s")), "ce_id contains a control"),
        (b"", (("ce_id", b"a\0b"), ("ce_source", b"s")), "ce_id contains a control"),
        (b"", (("ce_id", b"a" * 257), ("ce_source", b"s")), "257 bytes"),
        (b"", (("ce_id", b"\xff"), ("ce_source", b"s")), "ce_id is not valid UTF-8"),
        (b"", (("ce_id", b"\xed\xa0\x80"), ("ce_source", b"s")), "ce_id is not valid UTF-8"),
        (b"", (*IDS, ("ce_type", b"\xc3")), "ce_type is not valid UTF-8"),
        (b"", (*IDS, ("content-type", b"\xc3")), "content-type is not valid UTF-8"),
        (b"", (*IDS, ("ce_specversion", b"0.3")), "ce_specversion"),
        (b"", (*IDS, ("content-type", b"Application/CloudEvents+json")), "structured mode"),
        (b"", (*IDS, ("ce_type", b"t" * (MAX_TEXT_BYTES + 1))), "ce_type is longer"),
        (b"", (*IDS, ("ce_time", "é".encode() * MAX_TEXT_BYTES)), "ce_time is longer"),
        (b"", (*IDS, ("ce_receiver", b"")), "not a receiver name"),
        (b"", (*IDS, ("ce_receiver", b"a,,b")), "not a receiver name"),
        (b"", (*IDS, ("ce_receiver", b"../etc")), "not a receiver name"),
        (b"", (*IDS, ("ce_receiver", b"CI")), "not a receiver name"),
        (b"", (*IDS, ("ce_receiver", b"a" * 64)), "not a receiver name"),
        (b"", (*IDS, ("ce_receiver", ",".join(map(str, range(MAX_RECEIVERS + 1))).encode())), "1001 names"),
        (b"", (), "not a JSON envelope: it is empty"),
        (b'{"source_id":"s"', (), "not a JSON envelope: it ends too early"),
        (b'{"source_id":"s","message_id":"m","payload":"\\ud83d', (), "not a JSON envelope: it ends too early"),
        (b'{"source_id":"s","message_id":"m","payload":"\\ud83d\\', (), "not a JSON envelope: it ends too early"),
        (b'{"source_id":"s","message_id":"C:\\\\ud800"', (), "not a JSON envelope: it ends too early"),
        (
            b'{"source_id":"s","message_id":"m","payload":"\\ud83d"}',
            (),
            r"envelope: \\ud83d is half of a surrogate pair",
        ),
        (b'{"source_id":"s","payload":{},"message_id":"\\uD800\\n"}', (), r"envelope: \\uD800 is half of a surrogate"),
        (envelope(payload=["\ude00", "x" * 99]), (), r"envelope: \\ude00 is half of a surrogate pair"),
        (envelope(payload="\ud83d", headers={"a": "\ud83d\ude00"}), (), r"envelope: \\ud83d is half of a surrogate"),
        (b'{"source_id":"s","message_id":"m"}', (), "JSON envelope: it has no payload"),
        (b"not json", (), "not a JSON envelope"),
        (b'\xef\xbb\xbf{"a":1}', (), "not a JSON envelope"),
        (b"\0\0\0\0\1" + envelope(), (), "like the frame of a schema registry"),
        (b"[]", (), "JSON envelope: it has to be an object, not a list"),
        (b"{}", (), "source_id"),
        (envelope(source_id=1), (), "JSON envelope: source_id has to be a string, not a number"),
        (envelope(message_id=None), (), "message_id"),
        (envelope(message_id=""), (), "message_id is missing"),
        (envelope(receiver=1), (), "receiver"),
        (envelope(receiver=["a", 1]), (), "receiver"),
        (envelope(receiver=[]), (), "receiver is empty"),
        (envelope(receiver="A"), (), "not a receiver name"),
        (envelope(receiver="a,,b"), (), "not a receiver name"),
        (b"{}", (("ce-id", b"m"), ("ce-source", b"s")), "ce-id, ce-source, as HTTP spells them: on Kafka it is ce_id"),
        (b"{}", (("ce_source", b"s"), ("CE_ID", b"m")), "header ce_id is missing or empty; it has CE_ID"),
        (envelope(event_type=1), (), "event_type"),
        (envelope(event_type="t" * (MAX_TEXT_BYTES + 1)), (), "event_type is longer"),
        (b'{"source_id":"\xff","message_id":"m","payload":1}', (), "UTF-8"),
        (b'{"source_id":"\\ud800","message_id":"m","payload":1}', (), "JSON envelope"),
        (b'{"source_id":"s","message_id":"m","payload":NaN}', (), "JSON envelope"),
        (b'{"source_id":"s","message_id":"m","payload":1} x', (), "JSON envelope"),
        (DEEP, (), "nested too deeply"),
    ],
)
def test_bad_records_are_invalid_and_say_why(value: bytes | None, headers: Headers, says: str) -> None:
    with pytest.raises(InvalidRecord, match=says) as caught:
        parse_message(value, headers)
    assert caught.value.reason == "invalid"
    assert len(caught.value.detail) < 500


@given(
    st.none() | st.binary(), st.lists(st.tuples(st.sampled_from(["ce_id", "ce_source", "ce_receiver"]), st.binary()))
)
def test_whatever_comes_is_a_message_or_invalid(value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    try:
        message = parse_message(value, tuple(headers))
    except InvalidRecord:
        return
    assert parse_message(message.payload, message_headers(message)) == message


@given(messages, messages)
def test_the_digest_is_over_payload_receivers_and_type_alone(one: Message, other: Message) -> None:
    assert len(message_digest(one)) == 6
    for counted in (
        structs.replace(one, payload=one.payload + b"x"),
        structs.replace(one, receivers=(*(one.receivers or ()), "another-one")),
        structs.replace(one, event_type=f"{one.event_type}x"),
    ):
        assert message_digest(counted) != message_digest(one)
    same = structs.replace(other, payload=one.payload, receivers=one.receivers, event_type=one.event_type)
    assert message_digest(same) == message_digest(one)


def test_the_digest_is_the_same_in_both_wire_forms_and_any_order() -> None:
    header_form = parse_message(b"{}", (*IDS, ("ce_receiver", b"b,a"), ("ce_time", b"now")))
    assert message_digest(header_form) == message_digest(parse_message(envelope(receiver=["a", "b"]), ()))


def test_the_digest_cannot_be_shifted_between_its_parts() -> None:
    def digest(event_type: str | None, payload: bytes) -> bytes:
        return message_digest(Message("s", "m", None, event_type, None, None, payload))

    assert digest("a\0", b"b") != digest("a", b"\0b")
    assert digest(None, b"x") != digest("null", b"x")
