"""The breaker opens on a run of failures, and one probe at a time decides when to close; in a long outage, a ping."""

from hypothesis import given
from hypothesis import strategies as st

from relay.domain.receiver import BreakerPolicy, OfflinePolicy
from tests.fakes.breaker import SILENCE_S, Breaker, Closed, HalfOpen, Open, Outage, ask, record

POLICY = BreakerPolicy(failures=3, window=60, open_for=30, offline=OfflinePolicy(after=600, ping_every=90))
PROBE_S = 20.0
OUTAGE = Outage(3, 0, 3, 0, 2)


def after_failures(*moments: float) -> Breaker:
    state: Breaker = Closed()
    for moment in moments:
        state = record(state, moment, POLICY, healthy=False, probe=False)
    return state


def test_a_run_of_failures_opens_it() -> None:
    assert after_failures(0, 1) == Closed(Outage(2, 0, 2, 0, 1))
    assert after_failures(0, 1, 2) == Open(32, OUTAGE)


def test_a_success_ends_the_run_and_the_outage() -> None:
    assert record(after_failures(0, 1), 2, POLICY, healthy=True, probe=False) == Closed()


def test_an_outcome_that_says_nothing_changes_nothing() -> None:
    assert record(after_failures(0, 1), 2, POLICY, healthy=None, probe=False) == after_failures(0, 1)


def test_a_run_that_began_before_the_window_starts_anew_and_the_outage_goes_on() -> None:
    assert after_failures(0, 60, 60) == Open(90, Outage(3, 0, 3, 0, 60))
    assert after_failures(0, 1, 61) == Closed(Outage(1, 61, 3, 0, 61))


def test_one_failure_may_be_enough() -> None:
    policy = BreakerPolicy(failures=1)
    assert record(Closed(), 5, policy, healthy=False, probe=False) == Open(35, Outage(1, 5, 1, 5, 5))


def test_in_a_long_outage_so_many_failures_in_a_row_open_it_whenever_they_came() -> None:
    assert after_failures(0, 300, 599) == Closed(Outage(1, 599, 3, 0, 599))
    assert after_failures(0, 300, 600) == Open(630, Outage(1, 600, 3, 0, 600))
    assert after_failures(0, 600) == Closed(Outage(1, 600, 2, 0, 600))


def test_a_failure_that_nothing_followed_for_a_day_is_forgotten() -> None:
    later = 10 + SILENCE_S
    assert after_failures(10, later) == Closed(Outage(1, later, 2, 10, later))
    assert after_failures(10, later + 1) == Closed(Outage(1, later + 1, 1, later + 1, later + 1))


def test_closed_lets_everything_through() -> None:
    assert ask(after_failures(0, 1), 1, POLICY, PROBE_S) == (after_failures(0, 1), "go")


def test_open_says_how_long() -> None:
    assert ask(Open(32, OUTAGE), 2, POLICY, PROBE_S) == (Open(32, OUTAGE), 30)


def test_half_open_lets_one_probe_through_under_a_lease() -> None:
    state, verdict = ask(Open(32, OUTAGE), 32, POLICY, PROBE_S)
    assert (state, verdict) == (HalfOpen(52, OUTAGE), "probe")
    assert ask(state, 40, POLICY, PROBE_S) == (state, 12)
    assert ask(state, 52, POLICY, PROBE_S) == (HalfOpen(72, OUTAGE), "probe")


def test_in_a_long_outage_the_probe_is_a_ping() -> None:
    assert ask(Open(32, OUTAGE), 599, POLICY, PROBE_S)[1] == "probe"
    assert ask(Open(32, OUTAGE), 600, POLICY, PROBE_S) == (HalfOpen(620, OUTAGE), "ping")
    assert ask(Open(32, OUTAGE), 3 + SILENCE_S, POLICY, PROBE_S)[1] == "probe", "nothing was heard for too long"


def test_the_probe_decides() -> None:
    assert record(HalfOpen(52, OUTAGE), 40, POLICY, healthy=True, probe=True) == Closed()
    assert record(HalfOpen(52, OUTAGE), 40, POLICY, healthy=False, probe=True) == Open(70, Outage(3, 0, 4, 0, 40))


def test_there_is_more_time_between_two_pings() -> None:
    assert record(HalfOpen(620, OUTAGE), 610, POLICY, healthy=False, probe=True) == Open(700, Outage(3, 0, 4, 0, 610))


def test_a_probe_that_decided_nothing_makes_room_for_the_next() -> None:
    state = record(HalfOpen(52, OUTAGE), 40, POLICY, healthy=None, probe=True)
    assert ask(state, 40, POLICY, PROBE_S)[1] == "probe"


def test_attempts_begun_before_it_opened_do_not_count() -> None:
    for healthy in (True, False, None):
        for state in (Open(32, OUTAGE), HalfOpen(52, OUTAGE)):
            assert record(state, 5, POLICY, healthy, probe=False) == state


@given(
    st.builds(
        BreakerPolicy,
        st.integers(1, 5),
        st.floats(1, 100),
        st.floats(1, 100),
        st.builds(OfflinePolicy, st.floats(1, 200), st.floats(1, 100)),
    ),
    st.lists(st.tuples(st.floats(0, 50), st.sampled_from([True, False, None]))),
)
def test_never_two_probes_within_a_lease_and_no_wait_without_end(
    policy: BreakerPolicy, steps: list[tuple[float, bool | None]]
) -> None:
    state: Breaker = Closed()
    now, unsettled_until = 0.0, 0.0
    last_success = 0.0
    for gap, health in steps:
        now += gap
        state, verdict = ask(state, now, policy, PROBE_S)
        if verdict == "probe" or verdict == "ping":
            assert now >= unsettled_until
            assert verdict == "probe" or now - last_success >= policy.offline.after
            unsettled_until = now + PROBE_S
            if health is not None:
                state = record(state, now, policy, health, probe=True)
                unsettled_until = now
        elif verdict == "go":
            state = record(state, now, policy, health, probe=False)
        else:
            assert 0 < verdict <= max(policy.open_for, policy.offline.ping_every, PROBE_S) + 1e-6
        if isinstance(state, Closed) and state.outage is None:
            last_success = now
