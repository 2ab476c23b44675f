"""Gaps in a receiver's numbers, as the API lists them."""

from relay.api.receiver_numbers import gaps_of
from relay.log.port import Coordinate
from relay.state.port import FailedEntry


def entry(number: int | None, reason: str = "rejected", failed_at: float = 30.0) -> FailedEntry:
    return FailedEntry("ci", Coordinate("failed_messages", 0, number or 0), failed_at, reason, "app", "m", number)


def shown(*entries: FailedEntry) -> list[tuple[int, int, str, str | None]]:
    return [(gap["first"], gap["last"], gap["reason"], gap["failed_at"]) for gap in gaps_of(entries)]


def test_neighbours_with_one_reason_are_one_gap() -> None:
    assert shown(entry(5), entry(3, failed_at=60.0), entry(4), entry(6, "expired"), entry(9)) == [
        (3, 5, "rejected", "1970-01-01T00:01:00.000Z"),
        (6, 6, "expired", "1970-01-01T00:00:30.000Z"),
        (9, 9, "rejected", "1970-01-01T00:00:30.000Z"),
    ]


def test_a_number_counts_once_with_its_newest_reason() -> None:
    assert [gap[:3] for gap in shown(entry(3, failed_at=2.0), entry(3, "gone", 7.0))] == [(3, 3, "gone")]


def test_letters_without_a_number_are_none() -> None:
    assert shown(entry(None)) == []
