"""Health of a receiver: nothing green stands beside failures."""

from itertools import product

import pytest

from relay.cli.registered import health_text
from relay.domain.statistics import (
    HEALTHS,
    LATE_S,
    NUMBERS,
    OUTCOMES,
    RECENT,
    TONES,
    Counted,
    Health,
    Measured,
    health_of,
    recent_of,
    severity,
)

BREAKERS = ("closed", "open", "half_open")


def counted(good: int, bad: int) -> Counted:
    numbers = [0] * NUMBERS
    numbers[OUTCOMES.index("delivered")], numbers[OUTCOMES.index("not_processed")] = good, bad
    return Counted(tuple(numbers))


@pytest.mark.parametrize(
    ("measured", "health"),
    [
        (Measured(counted(20, 0)), "healthy"),
        (Measured(counted(99, 1)), "healthy"),
        (Measured(counted(99, 1), failures=1), "degraded"),
        (Measured(counted(8, 2)), "degraded"),
        (Measured(counted(4, 6)), "failing"),
        (Measured(counted(0, 1)), "failing"),
        (Measured(counted(0, 3)), "down"),
        (Measured(counted(20, 0), breaker="open"), "failing"),
        (Measured(counted(20, 0), breaker="half_open", is_offline=True), "down"),
        (Measured(counted(0, 0)), "idle"),
        (Measured(counted(0, 0), failures=2), "degraded"),
        (Measured(None), "unknown"),
        (Measured(counted(20, 0), oldest_s=LATE_S), "healthy"),
        (Measured(counted(20, 0), oldest_s=LATE_S + 1), "degraded"),
        (Measured(counted(0, 0), oldest_s=LATE_S + 1), "degraded"),
        (Measured(None, oldest_s=LATE_S + 1), "degraded"),
        (Measured(counted(0, 3), oldest_s=LATE_S + 1), "down"),
    ],
)
def test_the_health_of_a_receiver(measured: Measured, health: Health) -> None:
    assert health_of(measured) == health


def test_nothing_green_stands_beside_0_percent_an_open_breaker_or_a_failure() -> None:
    counts = [None, *(counted(good, bad) for good, bad in product((0, 1, 2, 3, 19, 20, 1_000), repeat=2))]
    seen = set[Health]()
    for recent, breaker, failures, offline in product(counts, BREAKERS, (0, 1, 5), (False, True)):
        measured = Measured(recent, breaker, failures, offline)  # type: ignore[arg-type]
        health = health_of(measured)
        seen.add(health)
        if TONES[health] != "good":
            continue
        assert recent is not None
        assert recent.success_rate is not None
        assert recent.success_rate >= 0.95
        assert (breaker, failures, offline) == ("closed", 0, False)
    assert seen == set(HEALTHS) == set(TONES)


def test_the_worst_come_first_then_those_that_succeed_least_and_wait_longest() -> None:
    worst: list[tuple[Health, float | None, float | None]] = [
        ("down", 0.0, 5.0),
        ("down", 0.0, None),
        ("failing", 0.2, None),
        ("failing", 0.4, 900.0),
        ("degraded", 0.9, None),
        ("degraded", 1.0, 90.0),
        ("healthy", 1.0, None),
    ]
    assert sorted([*worst[3:], *worst[:3]], key=lambda one: severity(*one)) == worst


def test_the_newest_hours_count_until_they_have_enough_attempts() -> None:
    hours = {7: counted(500, 0), 9: counted(1, RECENT - 2), 10: counted(0, 1)}
    assert recent_of(hours) == counted(1, RECENT - 1)
    assert recent_of({7: counted(2, 0), 10: counted(0, 1)}) == counted(2, 1)
    assert recent_of({}) == counted(0, 0)


def test_commands_write_a_long_wait_as_people_do() -> None:
    found = health_text(
        {"state": "failing", "success_rate": 0.4, "attempts": 5, "last_error": "503", "oldest_waiting_s": 3_900.0}
    )
    assert found == "failing 40.0% (503), oldest waits 1 h 5 min"
