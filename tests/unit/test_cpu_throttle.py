"""A process with nothing urgent sleeps while other processes need the CPU."""

import os
from pathlib import Path

import pytest

from relay.run.history_part import BURST_S, BUSY_SHARE, LEAST_SHARE, LONGEST_REST_S, CpuThrottle, rest_s

HERTZ = os.sysconf("SC_CLK_TCK")


class Machine:
    """CPU times of two processors, as the system reports them; and of our own process."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "stat"
        self.own = 5.0
        self._ticks = [0] * 10
        self.passes(0, busy=0)

    def passes(self, seconds: float, *, busy: float, own: float = 0.0) -> None:
        """`busy`: of both processors together, including our `own`; all in seconds of one."""
        self.own += own
        self._ticks[0] += round(busy * HERTZ)
        self._ticks[3] += round((2 * seconds - busy) * HERTZ)
        self.file.write_text(f"cpu  {' '.join(map(str, self._ticks))}\ncpu0 1 2 3\n")

    def giving_way(self) -> CpuThrottle:
        return CpuThrottle(self.file, lambda: self.own, processors=2)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("busy", "own", "rests_s"),
    [(1.9, 0.1, 0.1 * (1 / (2 * LEAST_SHARE) - 1)), (1.5, 0.9, 0), (0.3, 0.2, 0)],
    ids=["others need the processors: it takes a little", "what it takes itself is no reason", "an idle machine"],
)
def test_how_long_it_rests(machine: Machine, busy: float, own: float, rests_s: float) -> None:
    rest = machine.giving_way()
    machine.passes(1.0, busy=busy, own=own)
    assert rest(BURST_S - 1) == pytest.approx(rests_s)


def test_once_it_is_far_behind_it_takes_half_of_what_they_leave(machine: Machine) -> None:
    rest = machine.giving_way()
    machine.passes(1.0, busy=1.9, own=0.1)  # others leave 0.2 of the two
    assert rest(BURST_S) == pytest.approx(0.1 * (1 / 0.1 - 1))
    machine.passes(1.0, busy=2.0, own=0.02)  # 0.02
    assert rest(BURST_S) == pytest.approx(0.02 * (1 / (2 * LEAST_SHARE) - 1))


def test_a_moment_too_short_to_tell_counts_towards_the_next(machine: Machine) -> None:
    rest = machine.giving_way()
    machine.passes(0.2, busy=0.4, own=0.1)
    assert rest(0) == 0
    machine.passes(0.8, busy=1.4, own=0.1)  # others: 1.6 in a second
    assert rest(BURST_S) == pytest.approx(0.2 * (1 / 0.2 - 1))


def test_no_rest_is_longer_than_a_group_waits_for_its_members() -> None:
    assert rest_s(1.0, 100.0, 0, processors=2) == LONGEST_REST_S
    assert rest_s(BUSY_SHARE - 0.01, 100.0, 0, processors=2) == 0


def test_where_half_of_what_is_left_is_more_than_a_core_it_never_rests() -> None:
    assert rest_s(0.9, 100.0, BURST_S, processors=64) == 0


def test_where_the_system_does_not_say_it_never_rests(tmp_path: Path) -> None:
    rest = CpuThrottle(tmp_path / "none")
    assert rest(0) == 0
