"""Dead letters in groups, as the page Failed shows them."""

from relay.pages.failed import HOURS, groups_of
from tests.browser.told import BEGUN, at, letter

NOW = BEGUN + 10.0


def test_the_largest_group_comes_first_with_its_newest_letter() -> None:
    letters = [
        letter(message_id="c", failed_at=at(0)),
        letter(message_id="b", reason="exhausted", failed_at=at(-10)),
        letter(message_id="a", reason="exhausted", failed_at=at(-20)),
        letter(message_id="z", receiver="-", failed_at=at(-30)),
    ]
    groups = groups_of(letters, NOW)
    found = [(group.receiver, group.reason, group.count, group.newest["message_id"]) for group in groups]
    assert found == [("ci", "exhausted", 2, "b"), ("-", "rejected", 1, "z"), ("ci", "rejected", 1, "c")]
    assert groups[0].first_at == at(-20)
    assert groups[0].advice


def test_each_is_counted_in_its_hour() -> None:
    ago = [0, 3_500, 3_700, 23.5 * 3_600, 25 * 3_600]
    [group] = groups_of([letter(failed_at=at(10 - seconds)) for seconds in ago], NOW)
    assert group.hours == (1, *[0] * (HOURS - 3), 1, 2)
    assert group.earlier == 1
    assert group.shares[-2:] == (0.5, 1.0)


def test_a_clock_that_is_behind_breaks_nothing() -> None:
    [group] = groups_of([letter(failed_at=at(5_000))], NOW)
    assert group.hours[-1] == 1


def test_there_are_none() -> None:
    assert groups_of([], NOW) == []
