"""A member that has stopped taking part is noticed within a minute; one that waits for others is not accused."""

import pytest

from relay.domain.errors import ConsumerBroken
from relay.log.kafka.membership import Watchdog

NOTICED_S = 60


def noticed(watchdog: Watchdog, start: int, end: int, *, is_waiting: bool = False) -> int | None:
    """The second at which it is said; a poll looks each second."""
    for second in range(start, end):
        try:
            watchdog.check(float(second), is_dead=False, is_waiting=is_waiting)
        except ConsumerBroken:
            return second
    return None


def test_a_dead_coordination_is_told_at_once() -> None:
    with pytest.raises(ConsumerBroken, match="task is dead"):
        Watchdog("g").check(0.0, is_dead=True, is_waiting=False)


def test_a_member_that_is_dealt_nothing_is_noticed_and_then_the_time_starts_anew() -> None:
    watchdog = Watchdog("g")
    watchdog.unassigned(0.0)
    first = noticed(watchdog, 0, 200)
    assert first is not None
    assert first <= NOTICED_S
    second = noticed(watchdog, first + 1, 400)
    assert second is not None
    assert second - first >= first


def test_who_is_dealt_something_or_has_not_joined_is_left_alone() -> None:
    watchdog = Watchdog("g")
    assert noticed(watchdog, 0, 200) is None
    watchdog.unassigned(200.0)
    assert not watchdog.is_assigned
    watchdog.assigned()
    assert watchdog.is_assigned
    assert noticed(watchdog, 200, 400) is None


def test_joining_again_and_again_is_one_wait() -> None:
    watchdog = Watchdog("g")
    watchdog.unassigned(0.0)
    watchdog.unassigned(30.0)
    assert noticed(watchdog, 30, 200) is not None


def test_who_waits_for_others_is_not_accused() -> None:
    watchdog = Watchdog("g")
    watchdog.unassigned(0.0)
    assert noticed(watchdog, 0, 300, is_waiting=True) is None
    after = noticed(watchdog, 300, 500)
    assert after is not None
    assert after > 300 + NOTICED_S / 2
