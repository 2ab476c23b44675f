"""How many processes `relay run` has, by the load."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.run.autoscale import Demand, Load, LoadSample, ScaleLimits, decide, first

LIMITS = ScaleLimits()
MOST = 4
SHORT = (5_000, 0.02, 0.95)
"""Backlog, delay of the event loop, cores in use, of each process."""
IDLE = (0, 0.001, 0.1)


def after(seconds: int, load: tuple[int, float, float], demand: Demand, *, worked_off: float = 0.0) -> list[Demand]:
    """The demand at each second of a load. `worked_off`: by how many records a second the backlog falls."""
    backlog, late_s, cores = load
    start = 0.0 if demand.last is None else demand.last.now
    cpu_s = 0.0 if demand.last is None else demand.last.cpu_s
    found = []
    for second in range(1, seconds + 1):
        cpu_s += cores * demand.processes
        left = max(0, round(backlog - worked_off * second))
        sample = LoadSample(start + second, cpu_s, [Load(left // demand.processes, late_s)] * demand.processes)
        demand = decide(demand, sample, MOST, LIMITS)
        found.append(demand)
    return found


def counts(demands: list[Demand]) -> list[int]:
    return [demand.processes for demand in demands]


def test_a_process_is_added_when_a_backlog_waits_for_the_processes_cpu() -> None:
    found = counts(after(600, SHORT, first(0.0, LIMITS)))
    grown_at = found.index(2) + 1
    assert LIMITS.settle_s + LIMITS.short_s <= grown_at <= LIMITS.settle_s + LIMITS.short_s + 2
    assert found[-1] == MOST
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(found))


@pytest.mark.parametrize(
    ("why", "load", "worked_off"),
    [
        ("busy, without a backlog", (0, 0.02, 0.95), 0.0),
        ("a backlog of slow receivers, which costs no CPU", (5_000, 0.001, 0.2), 0.0),
        ("a loop that is late because other programs use the machine", (5_000, 0.05, 0.3), 0.0),
        ("busy, and never late", (5_000, 0.001, 0.95), 0.0),
        ("a backlog that is worked off soon", (20_000, 0.02, 0.95), 1_000.0),
    ],
)
def test_no_process_is_added_for(why: str, load: tuple[int, float, float], worked_off: float) -> None:
    assert set(counts(after(60, load, first(0.0, LIMITS), worked_off=worked_off))) == {1}, why


def test_a_backlog_that_falls_too_slowly_needs_another_process() -> None:
    assert counts(after(60, (100_000, 0.02, 0.95), first(0.0, LIMITS), worked_off=500.0))[-1] > 1


def test_a_burst_is_not_worth_a_process() -> None:
    demand = first(0.0, LIMITS)
    for _ in range(60):
        demand = after(3, SHORT, demand)[-1]
        demand = after(3, IDLE, demand)[-1]
        assert demand.processes == 1


def test_a_process_is_removed_after_a_quiet_time() -> None:
    grown = after(60, SHORT, first(0.0, LIMITS))[-1]
    assert grown.processes > 2
    found = counts(after(2_000, IDLE, grown))
    left_at = found.index(grown.processes - 1) + 1
    assert LIMITS.quiet_s <= left_at <= LIMITS.quiet_s + LIMITS.settle_s + 2
    assert found[-1] == 1
    assert all(earlier - later in (0, 1) for earlier, later in pairwise(found))


def test_a_message_now_and_then_does_not_end_a_quiet_time_but_work_does() -> None:
    grown = after(20, SHORT, first(0.0, LIMITS))[-1]
    assert grown.processes == 2
    assert counts(after(400, (50, 0.01, 0.2), grown))[-1] == 1
    assert counts(after(1_000, (50, 0.01, 0.3), grown))[-1] == 2


@given(st.floats(0.0, 2.0), st.integers(0, 100_000), st.floats(0.0, 0.1))
def test_no_load_adds_and_removes_in_turns(cores: float, backlog: int, late_s: float) -> None:
    """A load that costs as many cores whatever the number of processes changes the number in one direction only."""
    demand, cpu_s, found = first(0.0, LIMITS), 0.0, []
    for second in range(1, 1_500):
        cpu_s += min(cores, demand.processes)
        loads = [Load(backlog // demand.processes, late_s)] * demand.processes
        demand = decide(demand, LoadSample(second, cpu_s, loads), MOST, LIMITS)
        found.append(demand.processes)
    assert found == sorted(found)


def test_a_process_that_died_takes_its_cpu_seconds_with_it() -> None:
    grown = after(20, SHORT, first(0.0, LIMITS))[-1]
    assert grown.last is not None
    now, loads = grown.last.now + 60, [Load(0, 0.0)] * grown.processes
    assert decide(grown, LoadSample(now, 0.0, loads), MOST, LIMITS).pressure == "enough"


def test_one_that_has_not_reported_yet_is_no_idle_one() -> None:
    grown = after(20, SHORT, first(0.0, LIMITS))[-1]
    assert grown.last is not None
    sample = LoadSample(grown.last.now + 60, grown.last.cpu_s, [Load(0, 0.0), None])
    assert decide(grown, sample, MOST, LIMITS).pressure == "enough"
