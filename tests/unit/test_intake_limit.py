"""When a lane leaves records in the log although its window has room."""

import pytest

from relay.engine.policy import ENOUGH, STALLED_IN_A_CROWD_S, STALLED_S, IntakeLimit

EITHER = pytest.mark.parametrize("shared", [False, True])


def limit_of(*, shared: bool, waits: bool = True, moved_at: float = 0.0) -> IntakeLimit:
    limit = IntakeLimit(shared=shared, waits=waits)
    limit.moved_at = moved_at
    return limit


@EITHER
def test_with_little_at_hand_more_is_always_wanted(shared: bool) -> None:
    limit = limit_of(shared=shared)
    assert not limit.has_enough(ENOUGH - 1, 0.0, crowded=False)
    assert limit.has_enough(ENOUGH, 0.0, crowded=False)


@EITHER
def test_where_nothing_ends_one_poll_more_is_taken_at_a_time(shared: bool) -> None:
    assert not limit_of(shared=shared, moved_at=11.0 - STALLED_S - 0.01).has_enough(ENOUGH, 11.0, crowded=False)
    assert limit_of(shared=shared, moved_at=11.0).has_enough(ENOUGH, 11.0, crowded=False)


def test_a_receiver_of_its_own_lane_that_works_keeps_the_rest_in_the_log() -> None:
    limit = limit_of(shared=False)
    for tick in range(1, 1000):
        limit.ended(tick * STALLED_S / 2)
        assert limit.has_enough(ENOUGH, tick * STALLED_S / 2, crowded=False)


def test_a_slow_receivers_work_does_not_keep_its_neighbours_in_the_log() -> None:
    limit = limit_of(shared=True)
    limit.ended(STALLED_S / 2)
    assert not limit.has_enough(ENOUGH, STALLED_S, crowded=False)


@EITHER
@pytest.mark.parametrize("crowded", [False, True])
def test_who_waits_for_nobody_takes_no_more_however_slow_it_is(shared: bool, crowded: bool) -> None:
    limit = limit_of(shared=shared, waits=False)
    assert limit.has_enough(ENOUGH, 3600.0, crowded=crowded)
    assert not limit.has_enough(ENOUGH - 1, 3600.0, crowded=crowded)


@EITHER
def test_in_a_crowd_a_lane_has_to_stand_still_for_longer(shared: bool) -> None:
    limit = limit_of(shared=shared)
    assert not limit.has_enough(ENOUGH, STALLED_S, crowded=False)
    assert limit.has_enough(ENOUGH, STALLED_S, crowded=True)
    assert not limit.has_enough(ENOUGH, STALLED_IN_A_CROWD_S, crowded=True)
    assert not limit.has_enough(ENOUGH - 1, 0.0, crowded=True)
