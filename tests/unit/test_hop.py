"""Hop metadata: round trips, the wire form, and rejected forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.coordinate import Coordinate, Headers, coordinate_text, parse_coordinate
from relay.domain.errors import InvalidRecord
from relay.domain.hop import NO_RECEIVER, Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers

IDS: Headers = (("ce_id", b"1"), ("ce_source", b"github"), ("relay-receiver", b"ci"))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60)
names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
counts = st.integers(0, 2**53)
hops = st.builds(
    Hop,
    delivery=st.builds(DeliveryId, names | st.just(NO_RECEIVER), ids, ids),
    event_type=st.none() | texts,
    time=st.none() | texts,
    content_type=st.none() | texts,
    attempt=counts,
    generation=counts,
    sequence=st.none() | counts,
    origin=st.none() | st.builds(Coordinate, st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), counts, counts),
    accepted_ms=counts,
    outcome=st.sampled_from([None, "answered", "delivered", "failed"]),
    answer_status=st.none() | st.integers(100, 599),
    answer_truncated=st.booleans(),
    reason=st.none() | texts,
    status_url=st.none() | texts,
    ask_after_s=st.none() | st.floats(0, 1e18),
    traceparent=st.sampled_from([None, TRACE]),
    tracestate=st.none() | st.from_regex(r"[ -~]{1,512}", fullmatch=True),
    order=st.none() | st.from_regex(r"[0-9a-f]{24}", fullmatch=True),
)


FULL = Hop(
    delivery=DeliveryId("ci", "github", "m-1"),
    content_type="text/plain",
    attempt=2,
    generation=1,
    sequence=7,
    origin=Coordinate("from_sender", 3, 99),
    accepted_ms=1_700_000_000_123,
    outcome="answered",
    answer_status=201,
    answer_truncated=True,
    ask_after_s=1.5,
)


@given(hops)
def test_every_hop_round_trips(hop: Hop) -> None:
    assert decode_hop(encode_hop(hop)) == hop


def test_the_wire_form() -> None:
    assert dict(encode_hop(FULL)) == {
        "ce_specversion": b"1.0",
        "ce_id": b"m-1",
        "ce_source": b"github",
        "content-type": b"text/plain",
        "relay-receiver": b"ci",
        "relay-attempt": b"2",
        "relay-generation": b"1",
        "relay-sequence": b"7",
        "relay-origin": b"from_sender/3/99",
        "relay-accepted-at": b"1700000000123",
        "relay-outcome": b"answered",
        "relay-answer-status": b"201",
        "relay-answer-truncated": b"true",
        "relay-ask-after": b"1.5",
    }


def test_unknown_headers_and_missing_metadata_are_fine() -> None:
    headers = (*IDS, ("x-other", b"\xff"), ("relay-stage", b"to_receiver_ci"))
    assert decode_hop(headers) == Hop(DeliveryId("ci", "github", "1"))


def test_a_senders_attributes_are_those_of_the_hop() -> None:
    message = Message("github", "1", ("ci",), "push", "2026-01-02T03:04:05Z", "text/plain", b"", TRACE)
    hop = decode_hop((*message_headers(message), ("relay-receiver", b"ci")))
    expected = Hop(DeliveryId("ci", "github", "1"), "push", message.time, "text/plain", traceparent=TRACE)
    assert hop == expected


def test_text_that_utf8_cannot_say_does_not_stop_a_hop() -> None:
    hop = Hop(DeliveryId("ci", "github", "1"), content_type="text/\udcff")
    assert decode_hop(encode_hop(hop)).content_type == "text/?"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("ce_specversion", b"0.3"),
        ("ce_id", b""),
        ("ce_id", b"\xff"),
        ("ce_id", b"a\rb"),
        ("ce_id", "a\u0085b".encode()),
        ("ce_source", "é".encode() * 129),
        ("ce_type", b"\xff"),
        ("content-type", b"\xff"),
        ("relay-receiver", b""),
        ("relay-receiver", b"CI"),
        ("relay-receiver", b"\xff"),
        ("relay-attempt", b""),
        ("relay-attempt", b"-1"),
        ("relay-attempt", b" 1"),
        ("relay-attempt", b"1_0"),
        ("relay-attempt", "\u0661".encode()),
        ("relay-generation", b"one"),
        ("relay-sequence", b"9" * 5_000),
        ("relay-origin", b"from_sender"),
        ("relay-origin", b"from_sender/1"),
        ("relay-origin", b"from_sender/1/x"),
        ("relay-origin", b"/1/2"),
        ("relay-origin", b"from_sender/1/2/3"),
        ("relay-origin", b"\xff/1/2"),
        ("relay-accepted-at", b"1.5"),
        ("relay-outcome", b"done"),
        ("relay-answer-status", b"OK"),
        ("relay-ask-after", b"nan"),
        ("relay-ask-after", b"inf"),
        ("relay-ask-after", b"-1"),
        ("relay-ask-after", b"soon"),
        ("relay-ask-after", b"\xff"),
        *((header, b'{"a":' * 100_000) for header in ("relay-timing", "relay-keep", "relay-status-chain")),
    ],
)
def test_a_wrong_header_is_named(header: str, value: bytes) -> None:
    with pytest.raises(InvalidRecord, match=header) as caught:
        decode_hop((*IDS, (header, value)))
    assert caught.value.reason == "invalid"


@pytest.mark.parametrize("missing", ["ce_id", "ce_source", "relay-receiver"])
def test_a_missing_identity_is_named(missing: str) -> None:
    with pytest.raises(InvalidRecord, match=f"{missing} is missing"):
        decode_hop(tuple(pair for pair in IDS if pair[0] != missing))


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), counts, counts)
def test_coordinates_round_trip(topic: str, partition: int, offset: int) -> None:
    at = Coordinate(topic, partition, offset)
    assert parse_coordinate(coordinate_text(at)) == at
