"""Of several processes each is first for its even share of the lanes."""

from collections import Counter
from dataclasses import replace

import pytest

from relay.config.plan import ProcessPlan


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_lane_has_one_process_of_each_rank(count: int) -> None:
    processes = [replace(ProcessPlan(), index=index, count=count) for index in range(count)]
    for lane in range(20):
        assert sorted(process.rank(lane) for process in processes) == list(range(count))


def test_processes_are_first_for_as_many_lanes_as_each_other() -> None:
    processes = [replace(ProcessPlan(), index=index, count=2) for index in range(2)]
    first = Counter(process.index for lane in range(17) for process in processes if process.rank(lane) == 0)
    assert sorted(first.values()) == [8, 9]
