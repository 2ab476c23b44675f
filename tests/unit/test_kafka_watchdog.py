"""A member that has stopped taking part is noticed within a minute; one that waits for others is not accused."""

from math import inf

import pytest

from relay.domain.errors import ConsumerBroken
from relay.log.kafka.membership import Watchdog

NOTICED_S = 60
NEVER = inf


def noticed(watchdog: Watchdog, start: int, end: int, *, is_waiting: bool = False) -> float:
    """The second at which it is said, or NEVER; a poll looks each second."""
    for second in range(start, end):
        try:
            watchdog.check(float(second), is_dead=False, is_waiting=is_waiting)
        except ConsumerBroken:
            return second
    return NEVER


def test_a_dead_coordination_is_told_at_once() -> None:
    with pytest.raises(ConsumerBroken, match="task is dead"):
        Watchdog("g").check(0.0, is_dead=True, is_waiting=False)


def test_a_member_that_is_dealt_nothing_is_noticed_and_then_the_time_starts_anew() -> None:
    watchdog = Watchdog("g")
    watchdog.unassigned(0.0)
    first = noticed(watchdog, 0, 200)
    assert first <= NOTICED_S
    assert 2 * first <= noticed(watchdog, int(first) + 1, 400) < NEVER


def test_who_is_dealt_something_or_has_not_joined_is_left_alone() -> None:
    watchdog = Watchdog("g")
    assert noticed(watchdog, 0, 200) == NEVER
    watchdog.unassigned(200.0)
    assert not watchdog.is_assigned
    watchdog.assigned()
    assert watchdog.is_assigned
    assert noticed(watchdog, 200, 400) == NEVER


def test_joining_again_and_again_is_one_wait() -> None:
    watchdog = Watchdog("g")
    watchdog.unassigned(0.0)
    watchdog.unassigned(30.0)
    assert noticed(watchdog, 30, 200) < NEVER


def test_who_waits_for_others_is_not_accused() -> None:
    watchdog = Watchdog("g")
    watchdog.unassigned(0.0)
    assert noticed(watchdog, 0, 300, is_waiting=True) == NEVER
    assert 300 + NOTICED_S / 2 < noticed(watchdog, 300, 500) < NEVER
