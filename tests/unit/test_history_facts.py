"""What each record says to the history."""

from typing import Any

import pytest

from relay.domain.attempt import encode_attempt
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.erasure import LATEST
from relay.domain.errors import InvalidRecord
from relay.domain.hop import Hop, encode_hop, result_headers
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers
from relay.domain.state import Status
from relay.domain.topics import Topics
from relay.history.port import ArrivalFact, EndingFact
from relay.log.port import Coordinate, Headers, Record
from tests.contract.history_facts import attempt
from workers.history_facts import FactReader
from workers.records import FOR_CONSUMER

TOPICS = Topics("p.")
HOP = Hop(DeliveryId("ci", "shop", "m"), attempt=3, generation=1, origin=Coordinate("p.from_sender", 0, 0))


def record(topic: str, value: bytes | None, headers: Headers = (), *, ms: int = 5_000) -> Record:
    return Record(topic, 2, 7, b"shop", value, headers, ms)


def fact(of: Record, keep: int = 0) -> Any:
    return FactReader(TOPICS, keep).of(of)


def letter(stage: str, **more: Any) -> DeadLetter:
    origin = Coordinate("p.from_sender", 0, 0)
    return DeadLetter(more.pop("reason", "gone"), "why", stage, origin, more.pop("attempts", 3), 9_000, 410, **more)


def test_a_message_with_its_body_where_bodies_are_kept() -> None:
    message = Message("shop", "m", ("ci", "cd"), "order.paid", None, "text/plain", b"12345", headers=(("x-a", "1"),))
    came = record("p.from_sender", b"12345", message_headers(message))
    at = Coordinate("p.from_sender", 2, 7)

    assert fact(came) == ArrivalFact(message.id, at, 5.0, "order.paid", "text/plain", 5, {}, None, ("ci", "cd"))
    kept = fact(came, keep=3)
    assert kept.body == b"123"
    expected = {"x-a": "1", "ce-id": "m", "ce-source": "shop", "ce-type": "order.paid", "content-type": "text/plain"}
    assert kept.headers == expected


def test_a_json_envelope_is_a_message_too() -> None:
    came = fact(record("p.from_sender", b'{"source_id": "s", "message_id": "m", "payload": [1]}'), keep=9)
    assert (came.message, came.body, came.receivers) == (("s", "m"), b"[1]", ())


def test_a_clock_that_is_wrong_makes_a_moment_that_can_be() -> None:
    came = record("p.from_sender", b"", message_headers(Message("s", "m", None)), ms=10**17)
    assert fact(came).received_at == LATEST


@pytest.mark.parametrize(
    ("more", "status"),
    [((), "response_received_from_receiver"), ((FOR_CONSUMER,), "response_delivered_to_sender")],
)
def test_an_answer(more: Headers, status: Status) -> None:
    hop = Hop(HOP.delivery, attempt=3, generation=1, outcome="answered", answer_status=201)
    assert fact(record("p.to_sender", b"ok", (*result_headers(hop), *more))) == EndingFact(
        HOP.delivery,
        1,
        Coordinate("p.to_sender", 2, 7),
        5.0,
        status,
        3,
        201,
    )


def test_a_notice_says_nothing_that_its_dead_letter_does_not() -> None:
    notice = Hop(HOP.delivery, outcome="failed", reason="gone")
    assert fact(record("p.to_sender", b"{}", result_headers(notice))) is None


def test_a_dead_letter_of_a_delivery() -> None:
    dead = dead_letter_headers(encode_hop(HOP), letter("p.to_receiver_shared"))
    assert fact(record("p.failed_messages", b"x", dead)) == EndingFact(
        HOP.delivery, 1, Coordinate("p.failed_messages", 2, 7), 9.0, "failed", 3, 410, "gone", "why"
    )


def test_a_dead_letter_of_the_way_back_counts_no_callbacks_as_posts() -> None:
    dead = dead_letter_headers(encode_hop(HOP), letter("p.to_sender", reason="callback_exhausted", attempts=40))
    assert fact(record("p.failed_messages", b"x", dead)).attempts == 3


@pytest.mark.parametrize(
    ("receivers", "reason", "extra", "receiver"),
    [
        (("ci",), "too_large", (), "ci"),
        (("ci", "cd"), "too_large", (), ""),
        (None, "unknown_receiver", (), ""),
        (("ci", "cd"), "unknown_receiver", (("relay-receiver", b"cd"),), "cd"),
        (("ci",), "id_conflict", (), ""),
    ],
)
def test_a_dead_letter_of_what_was_never_routed(
    receivers: tuple[str, ...] | None, reason: str, extra: Headers, receiver: str
) -> None:
    headers = (*message_headers(Message("shop", "m", receivers)), *extra)
    found = fact(
        record("p.failed_messages", b"x", dead_letter_headers(headers, letter("p.from_sender", reason=reason)))
    )
    assert (found.delivery, found.generation) == (DeliveryId(receiver, "shop", "m"), 0)


@pytest.mark.parametrize("topic", ["p.from_sender", "p.to_sender", "p.failed_messages", "p.delivery_attempts"])
@pytest.mark.parametrize("value", [None, b"", b"\xff", b"{}", b"[" * 10_000, b'{"kind": "post"}'])
def test_rubbish_is_said_to_be_that(topic: str, value: bytes | None) -> None:
    with pytest.raises(InvalidRecord):
        fact(record(topic, value))


@pytest.mark.parametrize("field", ["generation", "attempt", "number"])
@pytest.mark.parametrize("number", [-1, 2**53, 2**70])
def test_an_attempt_whose_numbers_no_database_takes_is_rubbish(field: str, number: int) -> None:
    changed: dict[str, Any] = {field: number}
    _, impossible = attempt("m", offset=0, **changed)
    with pytest.raises(InvalidRecord, match="numbers"):
        fact(record("p.delivery_attempts", encode_attempt(impossible)))


@pytest.mark.parametrize("field", ["receiver", "source", "message", "life"])
def test_an_attempt_whose_names_no_index_takes_is_rubbish(field: str) -> None:
    """A row that PostgreSQL refuses would be written again without end, and everything behind it would wait."""
    names: dict[str, Any] = {"message": "m", field: "n" * 1_025}
    _, impossible = attempt(names.pop("message"), offset=0, **names)
    with pytest.raises(InvalidRecord, match="names"):
        fact(record("p.delivery_attempts", encode_attempt(impossible)))


def test_a_dead_letter_whose_reason_no_index_takes_is_rubbish() -> None:
    dead = dead_letter_headers(encode_hop(HOP), letter("p.to_receiver_ci", reason="n" * 1_025))
    with pytest.raises(InvalidRecord, match="names"):
        fact(record("p.failed_messages", b"x", dead))
