"""Events that are written late are published in the order in which they happened."""

from dataclasses import replace

from relay.api.tail.event import TailedEvent
from relay.api.tail.tail import InOrder
from relay.schema.streams import AnswerItem

VIEW: AnswerItem = {
    "at": None,
    "source_id": "s",
    "message_id": "m",
    "receiver": "r",
    "status": 200,
    "content_type": None,
    "body": "",
}
ONE = TailedEvent("answer", 0, "s", (), None, False, VIEW)


def at(*moments: int) -> list[TailedEvent]:
    return [replace(ONE, at_ms=moment) for moment in moments]


def told(order: InOrder, now: float) -> list[int]:
    return [happening.at_ms for happening in order.due(now)]


def test_it_is_held_for_a_moment_and_what_comes_late_goes_before_it() -> None:
    order = InOrder(hold_s=1.0)
    order.put(at(20, 40), now=0.0)
    assert told(order, 0.5) == []
    order.put(at(30, 10, 50), now=0.5)
    assert told(order, 1.0) == [10, 20, 30, 40]  # events before a due one do not wait any longer
    assert told(order, 1.4) == []
    assert told(order, 1.5) == [50]
    assert told(order, 9.0) == []


def test_of_one_millisecond_what_led_to_another_goes_before_it() -> None:
    attempt, callback = replace(ONE, kind="attempt"), replace(ONE, kind="attempt", of_sender=True)
    order = InOrder(hold_s=0.0)
    order.put([callback, ONE, attempt, replace(ONE, kind="message")], now=0.0)
    assert [(event.kind, event.of_sender) for event in order.due(0.0)] == [
        ("message", False),
        ("attempt", False),
        ("answer", False),
        ("attempt", True),
    ]
