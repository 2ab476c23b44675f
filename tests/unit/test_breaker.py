"""The breaker opens on a run of failures, and lets one probe at a time decide when to close."""

from hypothesis import given
from hypothesis import strategies as st

from relay.domain.breaker import Breaker, Closed, HalfOpen, Open, ask, record
from relay.domain.receiver import BreakerPolicy

POLICY = BreakerPolicy(failures=3, window=60, open_for=30)
PROBE_S = 20.0


def after_failures(*moments: float) -> Breaker:
    state: Breaker = Closed()
    for moment in moments:
        state = record(state, moment, POLICY, healthy=False, probe=False)
    return state


def test_a_run_of_failures_opens_it() -> None:
    assert after_failures(0, 1) == Closed(2, 0)
    assert after_failures(0, 1, 2) == Open(32)


def test_a_success_ends_the_run() -> None:
    assert record(after_failures(0, 1), 2, POLICY, healthy=True, probe=False) == Closed()


def test_an_outcome_that_says_nothing_changes_nothing() -> None:
    assert record(after_failures(0, 1), 2, POLICY, healthy=None, probe=False) == Closed(2, 0)


def test_a_run_that_began_before_the_window_starts_anew() -> None:
    assert after_failures(0, 60, 60) == Open(90)
    assert after_failures(0, 1, 61) == Closed(1, 61)


def test_one_failure_may_be_enough() -> None:
    policy = BreakerPolicy(failures=1)
    assert record(Closed(), 5, policy, healthy=False, probe=False) == Open(35)


def test_closed_lets_everything_through() -> None:
    assert ask(Closed(2, 0), 1, POLICY, PROBE_S) == (Closed(2, 0), "go")


def test_open_says_how_long() -> None:
    assert ask(Open(32), 2, POLICY, PROBE_S) == (Open(32), 30)


def test_half_open_lets_one_probe_through_under_a_lease() -> None:
    state, verdict = ask(Open(32), 32, POLICY, PROBE_S)
    assert (state, verdict) == (HalfOpen(52), "probe")
    assert ask(state, 40, POLICY, PROBE_S) == (HalfOpen(52), 12)
    assert ask(state, 52, POLICY, PROBE_S) == (HalfOpen(72), "probe")


def test_the_probe_decides() -> None:
    assert record(HalfOpen(52), 40, POLICY, healthy=True, probe=True) == Closed()
    assert record(HalfOpen(52), 40, POLICY, healthy=False, probe=True) == Open(70)


def test_a_probe_that_decided_nothing_makes_room_for_the_next() -> None:
    state = record(HalfOpen(52), 40, POLICY, healthy=None, probe=True)
    assert ask(state, 40, POLICY, PROBE_S)[1] == "probe"


def test_attempts_begun_before_it_opened_do_not_count() -> None:
    for healthy in (True, False, None):
        assert record(Open(32), 5, POLICY, healthy, probe=False) == Open(32)
        assert record(HalfOpen(52), 40, POLICY, healthy, probe=False) == HalfOpen(52)


@given(
    st.builds(BreakerPolicy, st.integers(1, 5), st.floats(1, 100), st.floats(1, 100)),
    st.lists(st.tuples(st.floats(0, 50), st.sampled_from([True, False, None]))),
)
def test_never_two_probes_within_a_lease_and_no_wait_without_end(
    policy: BreakerPolicy, steps: list[tuple[float, bool | None]]
) -> None:
    state: Breaker = Closed()
    now, unsettled_until = 0.0, 0.0
    for gap, health in steps:
        now += gap
        state, verdict = ask(state, now, policy, PROBE_S)
        if verdict == "probe":
            assert now >= unsettled_until
            unsettled_until = now + PROBE_S
            if health is not None:
                state = record(state, now, policy, health, probe=True)
                unsettled_until = now
        elif verdict == "go":
            state = record(state, now, policy, health, probe=False)
        else:
            assert 0 < verdict <= max(policy.open_for, PROBE_S) + 1e-6
