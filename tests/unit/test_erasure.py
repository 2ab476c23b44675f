"""Erasures: which payloads they cover, and the dead letters that are written without them."""

import pytest

from relay.domain.control_key import decode_value, encode_value
from relay.domain.dead_letter import original_headers, parse_dead_letter
from relay.domain.erasure import Erasure, Erasures, received_at
from relay.domain.errors import InvalidRecord
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import MessageId
from relay.engine.decision import Dead
from relay.log.port import Record
from tests.fakes.steps import DELIVERY, NOW, TOPICS, StandingClock
from workers.records import Letters

MESSAGE = MessageId("github", "m-1")
OF_SOURCE = Erasure("1", NOW, source_id="github")
OF_MESSAGE = Erasure("2", NOW, source_id="github", message_id="m-1")
OF_RECEIVER = Erasure("3", NOW, receiver="ci")


@pytest.mark.parametrize(
    ("erasure", "message", "receivers", "age_s", "expected"),
    [
        (OF_SOURCE, MESSAGE, (), 1, True),
        (OF_SOURCE, MESSAGE, ("ci",), 1, True),
        (OF_SOURCE, MESSAGE, (), -1, False),
        (OF_SOURCE, MessageId("other", "m-1"), (), 1, False),
        (OF_MESSAGE, MESSAGE, ("ci", "cd"), 1, True),
        (OF_MESSAGE, MessageId("github", "m-2"), (), 1, False),
        (OF_RECEIVER, MESSAGE, ("ci",), 1, True),
        (OF_RECEIVER, MESSAGE, ("ci",), 0, True),
        (OF_RECEIVER, MESSAGE, ("ci", "cd"), 1, False),
        (OF_RECEIVER, MESSAGE, (), 1, False),
    ],
)
def test_it_covers_what_was_received_before(
    erasure: Erasure, message: MessageId, receivers: tuple[str, ...], age_s: float, expected: bool
) -> None:
    assert Erasures([erasure]).has(message, receivers, NOW - age_s) is expected


def test_it_ends_when_its_record_is_gone() -> None:
    again = Erasure("4", NOW + 10, source_id="github")
    known = Erasures([OF_SOURCE, again])
    assert known.all() == [again, OF_SOURCE]
    known.drop("4")
    assert (known.has(MESSAGE, (), NOW + 5), known.has(MESSAGE, (), NOW - 5)) == (False, True)
    known.drop("1")
    known.drop("never")
    assert known.all() == []


def test_its_record_can_be_read_again() -> None:
    assert decode_value(Erasure, encode_value(OF_MESSAGE)) == OF_MESSAGE
    for bad in (b"[]", b'{"id": "\xff", "made_at": 1}', b'{"id": "1", "made_at": 1e30}', b'{"id": "1"}'):
        with pytest.raises(InvalidRecord):
            decode_value(Erasure, bad)


def test_the_time_of_a_message_is_that_of_its_first_record() -> None:
    assert received_at((("relay-accepted-at", b"1500"),), 9_000) == 1.5
    assert received_at((("relay-accepted-at", b"soon"),), 9_000) == 9.0


@pytest.mark.parametrize("topic", [TOPICS.from_sender, TOPICS.to_receiver("ci"), TOPICS.pending("ci")])
def test_its_dead_letter_has_neither_payload_nor_headers_of_the_sender(topic: str) -> None:
    headers = encode_hop(Hop(DELIVERY, accepted_ms=int((NOW - 1) * 1000), headers=(("x-name", "ann"),)))
    record = Record(topic, 0, 7, b"github", b"secret", headers, int((NOW - 1) * 1000))
    letters = Letters(TOPICS, StandingClock(), Erasures([OF_MESSAGE]))
    written = letters.dead_letter(record, Dead("exhausted", "no luck"))
    assert written.value is None
    assert not any(b"ann" in value for _, value in written.headers)
    assert parse_dead_letter(written.headers).omitted == "value=6"
    assert dict(original_headers(written.headers))["ce_id"] == b"m-1"


def test_an_answer_on_its_way_back_is_kept() -> None:
    headers = encode_hop(Hop(DELIVERY, accepted_ms=int((NOW - 1) * 1000)))
    record = Record(TOPICS.to_sender, 0, 7, b"github", b"answer", headers, int(NOW * 1000))
    assert Letters(TOPICS, StandingClock(), Erasures([OF_MESSAGE])).dead_letter(record, Dead("gone")).value == b"answer"
