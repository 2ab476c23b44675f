"""A process that has time delays nothing; one near its limit gathers more per request, within bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.log.pacing import (
    BUSY_LOAD,
    FETCH_PAUSE_S,
    FULL_FLOW,
    GATHER_S,
    IDLE_LOAD,
    LINGER_S,
    FetchPace,
    Load,
    fetch_pause,
    gather,
    linger,
    machine_cpu,
)

LOADS = st.floats(0, 1)
FLOWS = st.floats(0, 100_000)
SECONDS = st.floats(0, 100)


@given(SECONDS, FLOWS, st.floats(0, IDLE_LOAD))
def test_nothing_waits_while_there_is_time(now: float, flow: float, load: float) -> None:
    assert fetch_pause(load, flow, now) == 0
    assert linger(load) == 0


@given(SECONDS, FLOWS, LOADS)
def test_waits_are_bounded(now: float, flow: float, load: float) -> None:
    assert 0 <= fetch_pause(load, flow, now) <= FETCH_PAUSE_S
    assert 0 <= linger(load) <= LINGER_S
    assert 0 <= gather(load, now) <= GATHER_S


@given(LOADS, LOADS)
def test_waits_grow_with_the_load(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert fetch_pause(less, FULL_FLOW, 0) <= fetch_pause(more, FULL_FLOW, 0)
    assert linger(less) <= linger(more)


def test_a_process_at_its_limit_takes_the_full_wait() -> None:
    assert fetch_pause(BUSY_LOAD, FULL_FLOW, 0) == pytest.approx(FETCH_PAUSE_S)
    assert fetch_pause(1.0, 2 * FULL_FLOW, 0.004) == pytest.approx(FETCH_PAUSE_S - 0.004)
    assert fetch_pause((IDLE_LOAD + BUSY_LOAD) / 2, FULL_FLOW, 0) == pytest.approx(FETCH_PAUSE_S / 32)
    assert linger(BUSY_LOAD) == pytest.approx(LINGER_S)


def test_where_little_flows_waits_are_short_however_busy_the_machine_is() -> None:
    assert fetch_pause(1.0, FULL_FLOW / 10, 0) == pytest.approx(FETCH_PAUSE_S / 10)
    assert fetch_pause(1.0, 0, 0) == 0


class Machine:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.used = 7.0

    def run(self, seconds: float, part: float) -> None:
        self.now += seconds
        self.used += seconds * part


def load_of(machine: Machine) -> Load:
    return Load(lambda: machine.now, lambda: machine.used)


def test_load_is_the_part_of_a_core_used_lately() -> None:
    machine = Machine()
    load = load_of(machine)
    assert load() == 0
    machine.run(1, 0.6)
    assert load() == pytest.approx(0.6)
    machine.run(10, 0.1)
    assert load() == pytest.approx(0.1)


def test_a_burst_is_no_load() -> None:
    machine = Machine()
    load = load_of(machine)
    machine.run(0.6, 0.5)
    assert load() == pytest.approx(0.5)
    machine.run(0.4, 1.0)
    assert load() == pytest.approx(0.5)
    machine.run(0.4, 1.0)
    assert load() == pytest.approx(1.0)


def test_the_busiest_counts() -> None:
    idle, busy = Machine(), Machine()
    load = Load(lambda: busy.now, lambda: idle.used, lambda: busy.used)
    busy.run(2, 0.7)
    assert load() == pytest.approx(0.7)


def test_the_machine_has_worked_for_somebody() -> None:
    before = machine_cpu()
    assert 0 <= before <= machine_cpu()


def test_several_threads_are_a_whole_core_at_most() -> None:
    machine = Machine()
    load = load_of(machine)
    machine.run(1, 3.5)
    assert load() == 1


def test_the_flow_that_counts_is_that_of_all_consumers_lately() -> None:
    machine = Machine()
    machine.now += 0.1  # between two ticks
    pace = FetchPace(lambda: 1.0, lambda: machine.now)
    machine.run(0.6, 0)
    assert pace.pause() == 0
    pace.took(round(FULL_FLOW))
    pace.took(round(FULL_FLOW))
    machine.run(0.4, 0)
    assert pace.pause() == 0  # too early to tell
    machine.run(0.6, 0)
    assert pace.pause() == fetch_pause(1.0, 2 * FULL_FLOW, machine.now)
    machine.run(10, 0)
    assert pace.pause() == 0


@given(SECONDS, st.floats(0, 0.001))
def test_what_is_gathered_in_the_same_tick_goes_together(now: float, later: float) -> None:
    end = now + gather(1.0, now)
    if now + later < end:
        assert now + later + gather(1.0, now + later) == pytest.approx(end, abs=1e-9)
