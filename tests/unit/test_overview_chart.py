"""The chart of the last hour has each minute of it, and adds up who delivered what in each."""

from typing import Any

from relay.pages.overview import chart_of
from relay.pages.visit import Loaded
from tests.expecting import present


def stats(**series: dict[str, tuple[int, int]]) -> Loaded[Any]:
    """By name, what was delivered and what failed at a time of day."""
    lines: list[dict[str, Any]] = [
        {
            "receiver": name,
            "source_id": "relay-probe" if name == "relay_probe" else "github",
            "points": [
                {"at": f"2026-11-23T{at}:00Z", "delivered": delivered, "failed": failed}
                for at, (delivered, failed) in points.items()
            ],
        }
        for name, points in series.items()
    ]
    return Loaded({"since": "2026-11-23T09:58:30Z", "until": "2026-11-23T10:02:10Z", "series": lines})


def test_minutes_in_which_nothing_happened_are_there_with_nothing() -> None:
    chart = present(chart_of(stats(ci={"09:59": (3, 0), "10:02": (1, 2)})))
    assert [at - chart["at"][0] for at in chart["at"]] == [0, 60, 120, 180, 240]
    assert [line["values"] for line in chart["series"]] == [[0, 3, 0, 0, 1], [0, 0, 0, 0, 2]]


def test_all_receivers_are_added_up() -> None:
    chart = present(chart_of(stats(ci={"10:00": (3, 1)}, pager={"10:00": (4, 0)})))
    assert [line["values"] for line in chart["series"]] == [[0, 0, 7, 0, 0], [0, 0, 1, 0, 0]]


def test_what_the_relay_sends_itself_at_its_start_is_not_there() -> None:
    """The list of messages has none of it either."""
    assert chart_of(stats(relay_probe={"10:00": (1, 0)})) is None
    chart = present(chart_of(stats(relay_probe={"09:59": (1, 0)}, ci={"10:00": (3, 1)})))
    assert [line["values"] for line in chart["series"]] == [[0, 0, 3, 0, 0], [0, 0, 1, 0, 0]]


def test_without_anything_there_is_no_chart() -> None:
    assert chart_of(stats()) is None
    assert chart_of(Loaded(None)) is None
