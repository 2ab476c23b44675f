"""Tests of the benchmark's table of fixed rates: both systems, the ratios between them, and medians of several runs."""

from bench.backlog import Verdict
from bench.counters import Traffic
from bench.fixed_table import lines, table
from bench.results import CaseResult, Counts, Fixed, Latency, Steady
from bench.usage import Usage


def held(name: str, p50: float, cpu_us: float, *, rate: float = 100.0, sustained: bool = True) -> Steady:
    usage = Usage(10.0, {name: cpu_us - 300, "kafka": 200.0, "redis": 100.0, "receiver": 50.0}, steal=0.015, load=2.5)
    took = Traffic({"produce": 1.0, "fetch": 2.0, "commit": 0.5, "other": 0.25}, 0.5, 1.5, {name: 3.0, "kafka": 9.0})
    latency = Latency(p50, p50 * 2, p50 * 10, p50 * 20, p50 * 30, {})
    return Steady(rate, 10.0, Verdict(sustained, 0.1, 0.0), latency, Counts(10, 0, 0, 0), usage, [], took)


def both(plain_p50: float, relay_p50: float) -> Fixed:
    return Fixed(100.0, held("relay", relay_p50, 2000.0), held("plain", plain_p50, 1600.0))


def rows(*fixed: Fixed) -> list[dict[str, str]]:
    """By column; each of the three columns of ratios is named after what it divides."""
    head, *cells = table(fixed)
    names = [f"{head[at - 1]} x" if name == "x" else name for at, name in enumerate(head)]
    return [dict(zip(names, row, strict=True)) for row in cells]


def test_each_system_has_a_row_and_the_relay_s_has_the_ratios() -> None:
    plain, relay = rows(both(4.0, 10.0))
    assert (plain[""], plain["p50 ms"], plain["p50 ms x"], plain["CPU ms"]) == ("plain", "4.00", "-", "1.60")
    assert (relay[""], relay["p50 ms"], relay["p99 ms"], relay["CPU ms"]) == ("relay", "10.0", "100", "2.00")
    assert (relay["p50 ms x"], relay["p99 ms x"], relay["CPU ms x"]) == ("2.50", "2.50", "1.25")


def test_cpu_is_of_own_processes_and_stores_and_not_of_the_receiver() -> None:
    relay = rows(Fixed(100.0, held("relay", 10.0, 2000.0)))[0]
    assert (relay["own"], relay["Kafka"], relay["Redis"], relay["CPU ms"]) == ("1.70", "0.20", "0.10", "2.00")


def test_what_a_message_took_and_what_the_machine_was_like_are_in_the_row() -> None:
    relay = rows(Fixed(100.0, held("relay", 10.0, 2000.0)))[0]
    kinds = {kind: relay[kind] for kind in ("requests", "produce", "fetch", "commit", "other")}
    assert kinds == {"requests": "3.75", "produce": "1.00", "fetch": "2.00", "commit": "0.50", "other": "0.25"}
    assert (relay["trips"], relay["messages a trip"], relay["wake-ups"]) == ("0.50", "2.00", "3.00")
    assert (relay["steal %"], relay["foreign %"], relay["load"]) == ("1.50", "0.00", "2.50")


def test_without_a_plain_pipeline_there_is_no_ratio() -> None:
    (relay,) = rows(Fixed(100.0, held("relay", 10.0, 2000.0)))
    assert (relay["p50 ms x"], relay["p99 ms x"], relay["CPU ms x"]) == ("-", "-", "-")


def test_several_turns_end_with_the_medians_of_each_rate() -> None:
    found = rows(both(4.0, 8.0), both(5.0, 20.0), both(1.0, 9.0))
    assert [row[""] for row in found[6:]] == ["plain, median", "relay, median"]
    assert (found[6]["p50 ms"], found[7]["p50 ms"], found[7]["p50 ms x"]) == ("4.00", "9.00", "4.00")


def test_a_rate_that_was_not_held_is_told() -> None:
    assert rows(Fixed(100.0, held("relay", 10.0, 2000.0, sustained=False)))[0]["held"] == "NO"


def test_the_lines_are_a_table_of_markdown_with_columns_of_one_width() -> None:
    found = list(lines([both(4.0, 1000.0)]))
    assert len({len(line) for line in found}) == 1
    assert set(found[1]) == set("|-:")


def test_a_phase_counts_once_however_often_it_is_named() -> None:
    relay = held("relay", 10.0, 2000.0)
    case = CaseResult("base", "about", sustained=relay, fixed=[Fixed(100.0, relay), both(4.0, 8.0)])
    assert len(case.phases()) == 2
