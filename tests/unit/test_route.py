"""Where a receiver goes next, and which of two routes counts."""

import pytest

from relay.control.routes import LaneRoutes
from relay.domain.control_key import ControlKey, decode_value, encode_value
from relay.domain.receiver import LaneKind
from relay.domain.route import LaneRoute, next_move


@pytest.mark.parametrize(
    ("route", "lane", "partitions", "expected"),
    [
        (LaneRoute(), "dedicated", 4, None),  # as its entry says
        (LaneRoute(lane="dedicated", partitions=4), "dedicated", 4, None),
        (LaneRoute(lane="shared", partitions=4), "shared", 1, None),
        (LaneRoute(lane="dedicated", partitions=4), "shared", 1, ("shared", 4)),
        (LaneRoute(lane="shared", partitions=4), "dedicated", 8, ("dedicated", 8)),
        (LaneRoute(lane="dedicated", partitions=4), "dedicated", 8, ("shared", 4)),  # and from there it comes back
        (LaneRoute(lane="dedicated", partitions=4), "dedicated", 2, None),  # a topic cannot shrink
    ],
)
def test_the_next_move_leads_to_what_the_entry_says(
    route: LaneRoute, lane: LaneKind, partitions: int, expected: tuple[LaneKind, int] | None
) -> None:
    assert next_move(route, lane, partitions) == expected


def test_ranks_rise_with_each_step_and_a_new_life_counts_most() -> None:
    steps = [
        LaneRoute(),
        LaneRoute(1, "shared", moving=True),
        LaneRoute(1, "shared"),
        LaneRoute(2, "dedicated", moving=True),
        LaneRoute(0, "dedicated", life=1),
        LaneRoute(1, "shared", moving=True, life=1),
    ]
    assert [step.rank for step in steps] == sorted({step.rank for step in steps})
    assert [decode_value(LaneRoute, encode_value(step)) for step in steps] == steps


def test_the_tombstone_of_a_cut_of_no_partition_is_overlooked() -> None:
    for partition in ("", "-1", "x", "\u00b2"):
        assert LaneRoutes().drop(ControlKey("cut", f"{partition}:ci")) == "ci"
