"""Dead letters in groups, as the index has them."""

from relay.api.failed import HOURS, groups_of
from relay.log.port import Coordinate
from relay.state.port import FailedEntry

NOW = 1_700_000_000.0


def entry(
    message_id: str, ago_s: float, *, receiver: str = "ci", reason: str = "rejected", source: str = "s"
) -> FailedEntry:
    return FailedEntry(receiver, Coordinate("failed_messages", 0, 0), NOW - ago_s, reason, source, message_id)


def test_the_largest_group_comes_first_with_its_newest_letter() -> None:
    entries = [
        entry("c", 10),
        entry("a", 30, reason="exhausted", source="other"),
        entry("b", 20, reason="exhausted"),
        entry("z", 40, receiver="-"),
    ]
    groups = groups_of(entries, NOW)
    found = [(one.newest.receiver, one.newest.reason, one.number, one.newest.message_id) for one in groups]
    assert found == [("ci", "exhausted", 2, "b"), ("-", "rejected", 1, "z"), ("ci", "rejected", 1, "c")]
    assert groups[0].first == NOW - 30
    assert groups[0].hours[-1] == 2


def test_each_is_counted_in_its_hour() -> None:
    ago = [0, 3_500, 3_700, 23.5 * 3_600, 25 * 3_600]
    [group] = groups_of([entry("a", seconds) for seconds in ago], NOW)
    assert group.hours == [1, *[0] * (HOURS - 3), 1, 2]
    assert group.number == 5


def test_a_clock_that_is_behind_breaks_nothing() -> None:
    [group] = groups_of([entry("a", -5_000)], NOW)
    assert group.hours[-1] == 1


def test_there_are_none() -> None:
    assert groups_of([], NOW) == []
