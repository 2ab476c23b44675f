"""The rates that were asked for as a table: the relay beside the plain pipeline, with what each message took."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from bench.counters import KINDS
from bench.results import Fixed, Steady

Figures = list[float | None]
"""The numbers of a row, in the order of _COLUMNS."""

_COLUMNS: Final = (
    *("p50 ms", "x", "p99 ms", "x", "CPU ms", "x", "own", "Kafka", "Redis"),
    *("requests", *KINDS.values(), "other", "trips", "messages a trip", "wake-ups", "steal %", "foreign %", "load"),
)
_RATIOS: Final = (1, 3, 5)
"""Positions of the columns with the ratio of the column to their left to that of the plain pipeline."""
_STORES: Final = ("kafka", "redis")

EXPLAINED: Final = (
    "CPU ms: of own processes, Kafka and Redis, for a message; x: the relay's figure divided by that of plain",
    "for a message, too: requests to Kafka, also by kind, round trips to Redis, and wake-ups of own threads",
)


def table(fixed: Sequence[Fixed]) -> list[list[str]]:
    """Rows of cells, the first of them names the columns. After several turns the medians of each rate come last."""
    rows = [["/s", "", "held", *_COLUMNS]]
    turns: dict[tuple[float, str], list[Figures]] = {}
    for each in fixed:
        for name, steady, figures in _pair(each):
            turns.setdefault((each.rate, name), []).append(figures)
            rows.append([f"{each.rate:g}", name, "yes" if steady.verdict.sustained else "NO", *map(_cell, figures)])
    for (rate, name), several in turns.items():
        if len(several) > 1:
            middle = [_median(column) for column in zip(*several, strict=True)]
            rows.append([f"{rate:g}", f"{name}, median", "", *map(_cell, middle)])
    return rows


def lines(fixed: Sequence[Fixed]) -> Iterator[str]:
    """The table for a terminal, and for Markdown."""
    rows = table(fixed)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"


def _pair(each: Fixed) -> Iterator[tuple[str, Steady, Figures]]:
    floor = _figures(each.plain, "plain") if each.plain is not None else None
    if each.plain is not None and floor is not None:
        yield "plain", each.plain, floor
    figures = _figures(each.relay, "relay")
    for at in _RATIOS if floor is not None else ():
        ours, theirs = figures[at - 1], floor[at - 1] if floor is not None else None
        figures[at] = ours / theirs if ours is not None and theirs else None
    yield "relay", each.relay, figures


def _figures(steady: Steady, name: str) -> Figures:
    usage, latency, traffic = steady.usage, steady.latency, steady.traffic
    cpu_ms: Figures = [usage.cpu_us[group] / 1e3 if group in usage.cpu_us else None for group in (name, *_STORES)]
    kinds: Figures = [(traffic.kafka or {}).get(kind) for kind in (*KINDS.values(), "other")]
    whole = sum(cpu for cpu in cpu_ms if cpu is not None)
    return [
        *(latency.p50, None, latency.p99, None, whole, None),
        *cpu_ms,
        *(traffic.requests, *kinds, traffic.trips, traffic.messages_a_trip, traffic.wakeups.get(name)),
        *(usage.steal * 100, usage.foreign * 100, usage.load),
    ]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _cell(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
