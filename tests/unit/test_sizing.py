"""docs/performance.md: each limit has an existing setting and an existing sign; the arithmetic is right."""

import re
from pathlib import Path
from typing import Final

import pytest

from relay.config.settings import Settings
from relay.domain.reasons import REASONS

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "performance.md").read_text()
DAY_S: Final = 86_400
ROW_BYTES: Final = 55


def _limits() -> list[list[str]]:
    table = PAGE.split("## What happens at each limit")[1]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def _told() -> str:
    """What the reference, which is made of the code, has of metrics and problem types."""
    return "".join((DOCS / "reference" / f"{name}.md").read_text() for name in ("metrics", "problems"))


@pytest.mark.parametrize("row", _limits(), ids=lambda row: row[0])
def test_each_limit_has_a_setting_and_something_that_tells(row: list[str]) -> None:
    _, setting, happens, tells = row
    assert setting.strip("`") in Settings.model_fields
    assert re.search(rf"`{re.escape(tells.strip('`'))}`", _told())
    named = re.findall(r"dead letters? ((?:`[a-z_]+`(?:, )?)+)", happens)
    assert {name for names in named for name in re.findall(r"`([a-z_]+)`", names)} <= set(REASONS)


def test_there_are_limits() -> None:
    assert len(_limits()) >= 9


@pytest.mark.parametrize(("column", "rate"), [(1, 100), (2, 1_000), (3, 11_574)])
def test_redis_kafka_and_history_are_as_the_page_reckons(column: int, rate: int) -> None:
    cells = {row[0]: row[column] for row in _rates()}
    low, high = _numbers(cells["Redis memory (rows of 7 to 10.5 days)"])
    assert low == pytest.approx(rate * DAY_S * 7 * ROW_BYTES / 1e9, rel=0.05)
    assert high == pytest.approx(1.5 * low, rel=0.05)
    for row, kilobytes in {
        "Kafka disk on all replicas, compressed as above": 3 * (7 * (0.58 + 0.72 + 0.24) + 3 * 2 * 0.3),
        "the same, uncompressed": 3 * (7 * (1.15 + 1.27 + 0.6) + 3 * 2 * 0.87),
        "history in PostgreSQL for 7 days": 7 * (0.5 + 0.65 + 2 * 1.14),
    }.items():
        assert _numbers(cells[row])[0] == pytest.approx(rate * DAY_S * kilobytes / 1e9, rel=0.05)


def _rates() -> list[list[str]]:
    table = PAGE.split("## At three rates")[1].split("## What happens")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def _numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"[\d.]+", cell)]
