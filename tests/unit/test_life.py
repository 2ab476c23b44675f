"""Lives of receivers' names: which records are of one, and which messages came before it."""

import pytest

from relay.control.records import EntryRecord, decode
from relay.domain.coordinate import Coordinate
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import NO_LIFE, NO_TOPIC, Endpoint, Life, Receiver, SeenTopic
from relay.engine.decision import Dead
from tests.fakes.world import Known
from workers.delivery import current_receiver, receiver_or_stand_in, removed

DELIVERY = DeliveryId("ci", "github", "m-1")
LIFE = Life("7-1", "from_sender", (3, 0))


@pytest.mark.parametrize(
    ("life", "id", "origin", "expected"),
    [
        (LIFE, "7-1", None, True),
        (LIFE, "6-1", Coordinate("from_sender", 0, 9), False),
        (LIFE, "", None, False),
        (LIFE, "", Coordinate("from_sender", 0, 2), False),
        (LIFE, "", Coordinate("from_sender", 0, 3), True),
        (LIFE, "", Coordinate("from_sender", 5, 0), True),  # a partition that there was not when it began
        (LIFE, "", Coordinate("to_receiver_ci", 0, 9), False),
        (NO_LIFE, "", None, True),
        (NO_LIFE, "7-1", None, False),
    ],
)
def test_a_record_is_of_the_life_that_it_says_or_else_of_the_one_that_its_message_came_in(
    life: Life, id: str, origin: Coordinate | None, expected: bool
) -> None:
    assert life.has(id, origin) is expected


@pytest.mark.parametrize(
    ("topic_id", "seen", "offset", "expected"),
    [
        ("a", SeenTopic("a", 9), 2, False),
        ("a", SeenTopic("a", 9), 3, True),
        ("a", SeenTopic("b", 8), 0, True),  # its topic was created again since
        ("a", SeenTopic("b", 7), 9, False),  # it may have begun on the topic that came after the message's
        ("a", NO_TOPIC, 2, False),
        ("a", NO_TOPIC, 3, True),
        ("", SeenTopic("b", 8), 2, False),  # of an earlier release
        ("", SeenTopic("b", 8), 3, True),
    ],
)
def test_a_message_on_another_topic_of_that_name_came_later_if_it_was_seen_later(
    topic_id: str, seen: SeenTopic, offset: int, expected: bool
) -> None:
    life = Life("7-1", "from_sender", (3,), topic_id)
    assert life.began_before(Coordinate("from_sender", 0, offset), seen) is expected


def test_it_is_on_hop_records_and_in_the_entrys_record_where_there_is_one() -> None:
    assert decode_hop(encode_hop(Hop(DELIVERY, life="7-1"))).life == "7-1"
    assert encode_hop(Hop(DELIVERY, life="")) == encode_hop(Hop(DELIVERY))
    declared = EntryRecord("api", {"post_endpoint": "https://ci.example/"}, LIFE)
    assert decode(declared.encode()) == declared
    assert b"life" not in EntryRecord("file", {}).encode()


def test_what_was_routed_to_a_former_receiver_of_the_name_ends_as_to_one_that_is_no_more() -> None:
    known = Known([Receiver("ci", Endpoint("https://ci.example/"), life=LIFE)], [])
    own, others = Hop(DELIVERY, life="7-1"), Hop(DELIVERY, life="6-1", origin=Coordinate("from_sender", 0, 1))
    assert current_receiver(known, own) is known.receiver("ci") is receiver_or_stand_in(known, own)
    found = current_receiver(known, others)
    assert isinstance(found, Dead)
    assert found.reason == "unknown_receiver"
    assert receiver_or_stand_in(known, others) == Receiver("ci", Endpoint(""))
    assert removed(known, own) is None
