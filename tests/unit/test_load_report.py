"""What a process reports about its load."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.clock import SystemClock
from relay.domain.errors import LogUnavailable
from relay.engine.lane import LaneLevels
from relay.engine.work import WaitFor
from relay.log.port import TopicPartition
from relay.run.autoscale import Load
from relay.run.lanes import LOOK_AT_LOG_FROM, LoadReport

MANY = 2 * LOOK_AT_LOG_FROM


def lane(name: str, unfinished: int, next_offset: int | None = 0, **waits: int) -> Any:
    counted = cast(Counter[WaitFor], Counter(waits))
    return SimpleNamespace(
        partition=TopicPartition(name, 0),
        unfinished=unfinished,
        next_offset=next_offset,
        levels=lambda _now: LaneLevels(0, counted),
    )


class Ends:
    """A log that knows only how far its partitions reach, or does not answer."""

    def __init__(self, ends: dict[str, int] | None) -> None:
        self._ends = ends

    async def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self._ends is None:
            raise LogUnavailable("away")
        return {at: self._ends[at.topic] for at in partitions}


def report(lanes: list[Any], ends: dict[str, int] | None) -> LoadReport:
    run = cast(Any, SimpleNamespace(pump=SimpleNamespace(lanes=lambda: lanes)))
    return LoadReport(run, cast(Any, Ends(ends)), SystemClock(), lambda: 0.25, -1)


@pytest.mark.parametrize(
    ("lanes", "ends", "backlog"),
    [
        ([], {}, 0),
        ([lane("a", 3), lane("b", 4)], None, 7),
        ([lane("a", MANY, 1_000), lane("b", 1, 5)], {"a": 51_000, "b": 6}, 50_001),
        ([lane("a", MANY, 1_000)], None, MANY),
        ([lane("a", MANY, None)], {}, MANY),
        ([lane("a", MANY, order=MANY)], {"a": 5_000}, 5_000),
        ([lane("a", MANY, offline=MANY)], {"a": 5_000}, 0),
        ([lane("a", MANY, rate=MANY // 2 + 1, turn=1), lane("b", 2)], {"a": 5_000, "b": 9}, 2),
    ],
)
async def test_the_backlog_is_what_no_receiver_holds_up(
    lanes: list[Any], ends: dict[str, int] | None, backlog: int
) -> None:
    assert await report(lanes, ends).look() == Load(backlog, 0.25)


def test_a_line_is_read_as_it_was_written() -> None:
    assert Load.of_line(Load(12, 0.0625).line()) == Load(12, 0.0625)
