"""Tests of the benchmark's report: its table, its picture and its JSON."""

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.backlog import Depth, Verdict
from bench.ceiling import Calibration
from bench.chart import across, chart
from bench.histogram import Histogram
from bench.markdown import markdown
from bench.report import write
from bench.results import CaseResult, Counts, Drain, InFlight, Latency, Level, Machine, Report, Steady
from bench.summary import drain_lines, in_flight_lines, steady_lines
from bench.usage import Usage

USAGE = Usage(
    10.0, {"relay": 300.0, "kafka": 40.0}, {"relay": 0.9}, {"relay": 200 << 20}, 0.01, 0.02, {"relay": 120 << 20}
)


def steady(rate: float, *, lost: int = 0, usage: Usage = USAGE) -> Steady:
    histogram = Histogram()
    for value in range(1, 1000):
        histogram.add(value * 100_000)
    latency = Latency(50.0, 95.0, 99.0, 99.9, histogram.most_ms, histogram.sparse())
    counts = Counts(1000, lost, 1, 2)
    return Steady(rate, 10.0, Verdict(True, 0.1, 0.0), latency, counts, usage, [Depth(0.0, 5)])


def report(*cases: CaseResult, receiver_rate: float = 30_000.0) -> Report:
    machine = Machine("A <CPU> & more", 2, 2**34, "6.1", "3.11")
    calibration = Calibration(6.5e6, receiver_rate, 15.0)
    return Report("2024-02-29T00:00:00+00:00", "abc", machine, calibration, {"processes": 2}, {"backlog": 9}, [*cases])


def full(name: str = "base") -> CaseResult:
    drain = Drain(2000.4, 5.0, False, Counts(10_000, 0, 0, 0), USAGE, first_s=4.21)
    return CaseResult(name, "about", True, 512.0, drain, steady(1500), [steady(1500)], [steady(750), steady(100)])


def row(text: str, name: str) -> dict[str, str]:
    """The cells of the table's row for case `name`, by column."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    (found,) = [cells for cells in lines[2:] if cells[0] == name]
    return dict(zip(lines[0], found, strict=True))


def test_the_table_has_the_figures_of_a_case() -> None:
    cells = row(markdown(report(full())), "base")
    assert (cells["drain /s"], cells["sustained /s"], cells["allowed /s"]) == ("2,000", "1,500", "512")
    assert (cells["p50 ms"], cells["p99 ms"], cells["CPU us relay"], cells["Redis"]) == ("50.0", "99.0", "300", "-")
    assert (cells["RSS MiB relay"], cells["largest"], cells["fit"]) == ("200", "120", "yes")
    assert cells["first POST s"] == "4.2"


def test_losses_of_every_run_are_in_the_table_those_of_the_search_as_well() -> None:
    case = full()
    case.tries = [steady(1800, lost=3)]
    cells = row(markdown(report(case)), "base")
    assert (cells["lost"], cells["duplicated"], cells["out of order"]) == ("3", "4", "8")


def test_what_was_not_run_is_a_dash_and_order_counts_only_where_it_was_promised() -> None:
    cells = row(markdown(report(CaseResult("unordered", "about", ordered=False))), "unordered")
    assert {cells[name] for name in ("drain /s", "sustained /s", "p50 ms", "p50 at 100/s", "out of order")} == {"-"}


def test_a_run_beside_other_work_is_marked_unfit() -> None:
    case = full()
    case.latencies[0] = steady(750, usage=Usage(10.0, foreign=0.031))
    assert row(markdown(report(case)), "base")["fit"] == "unfit"


@pytest.mark.parametrize(("ceiling", "word"), [(4_001.0, ", enough"), (3_999.0, "NOT enough")])
def test_the_receiver_has_to_take_twice_the_result(ceiling: float, word: str) -> None:
    assert word in markdown(report(full(), receiver_rate=ceiling))


def test_the_picture_is_sound_xml_with_a_curve_and_a_bar_per_case() -> None:
    picture = ElementTree.fromstring(chart(report(full("one"), full("two"), CaseResult("none", "about"))))  # noqa: S314
    lines = picture.findall("{*}polyline")
    assert len(lines) == 2
    heights = [float(point.split(",")[1]) for point in lines[0].attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)  # latency rises with the percentile, so the curve goes up
    texts = [text.text for text in picture.findall("{*}text")]
    assert texts.count("340") == 2  # the sum of the bar


def test_each_further_nine_takes_as_much_room() -> None:
    steps = [across(share) for share in (0.0, 0.9, 0.99, 0.999)]
    assert [round(right - left) for left, right in pairwise(steps)] == [195, 195, 195]


def test_a_picture_of_nothing_is_sound() -> None:
    ElementTree.fromstring(chart(report()))  # noqa: S314


def test_the_files_are_written_and_the_json_has_everything(tmp_path: Path) -> None:
    files = write(report(full()), tmp_path / "new" / "out")
    assert sorted(file.name for file in files) == ["report.json", "report.md", "report.svg"]
    case = json.loads(files[0].read_text())["cases"][0]
    assert case["drain"]["usage"]["cpu_us"] == {"relay": 300.0, "kafka": 40.0}
    assert case["sustained"]["latency"]["buckets"]
    assert case["latencies"][1]["rate"] == 100


def test_what_a_request_in_flight_takes_is_of_the_second_half() -> None:
    levels = [Level(0, 80 << 20), Level(1000, 100 << 20), Level(2000, 110 << 20)]
    case = CaseResult("in-flight", "about", in_flight=InFlight(2000, 1024, levels, Counts(2000, 0, 0, 0)))
    assert "2,000 with 110 MiB" in markdown(report(case))
    assert "10.2 KiB a request with payloads of 1,024 bytes" in markdown(report(case))


def test_none_in_flight_is_told_and_no_mistake() -> None:
    nothing = InFlight(10, 1024, [Level(0, 1), Level(0, 1), Level(0, 1)], Counts(10, 10, 0, 0))
    text = "\n".join(in_flight_lines(nothing))
    assert "nan KiB" in text
    assert "lost 10" in text


def test_the_summary_says_what_went_wrong() -> None:
    bad = Steady(
        10.0,
        5.0,
        Verdict(False, 3.0, 0.5),
        Latency(1, 2, 3, 4, 5, {}),
        Counts(50, 7, 8, 9, refused=4, rejected=1),
        Usage(5.0, steal=0.5),
        [],
    )
    text = "\n".join(steady_lines(bad))
    for words in ("NOT sustained", "lost 7", "duplicated 8", "out of order 9", "refused 4", "rejected 1", "UNFIT"):
        assert words in text
    flood = Drain(5.0, 1.0, True, Counts(5, 0, 0, 0), Usage(1.0))
    assert next(iter(drain_lines(flood))).startswith("flood: 5/s")
