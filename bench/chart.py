"""The report as a picture: latency by percentile, and CPU time per message by group, for every case."""

from collections.abc import Iterator, Mapping
from math import log10
from typing import Final
from xml.sax.saxutils import escape

from bench.histogram import Histogram
from bench.markdown import GROUPS
from bench.results import CaseResult, Report

_WIDTH: Final = 960
_LEFT: Final = 150
_RIGHT: Final = 930
_CURVES_TOP, _CURVES_HEIGHT = 60, 260
_BAR: Final = 26
_COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222255", "#997700")
_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999)
_MARKED: Final = {0.0: "0", 0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %"}


def chart(report: Report) -> str:
    """An SVG document."""
    bars_top = _CURVES_TOP + _CURVES_HEIGHT + 110 + 16 * len(report.cases)
    height = bars_top + (_BAR + 8) * max(1, len(report.cases)) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        *_curves(report.cases),
        *_bars(report.cases, bars_top),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def across(share: float) -> float:
    """Where a percentile lies, in pixels: each further nine takes as much room."""
    return _LEFT + (_RIGHT - _LEFT) * -log10(1 - share) / 4


def _curves(cases: list[CaseResult]) -> Iterator[str]:
    yield _text(_LEFT, 30, "Latency by percentile, ms, at half the sustained rate", size=15)
    curves = {}
    for case in cases:
        phase = case.latencies[0] if case.latencies else case.sustained
        if phase is not None:
            curves[case.name] = Histogram.merged([(phase.latency.buckets, round(phase.latency.max * 1e6))])
    values = [curve.percentile_ms(share) for curve in curves.values() for share in _SHARES]
    low, high = _decades(values)
    bottom = _CURVES_TOP + _CURVES_HEIGHT

    def down(value: float) -> float:
        return bottom - _CURVES_HEIGHT * (log10(max(value, 10.0**low)) - low) / (high - low)

    for decade in range(low, high + 1):
        yield _line(_LEFT, down(10.0**decade), _RIGHT, down(10.0**decade))
        yield _text(_LEFT - 8, down(10.0**decade) + 4, f"{10.0**decade:g}", anchor="end")
    for share, label in _MARKED.items():
        yield _line(across(share), _CURVES_TOP, across(share), bottom)
        yield _text(across(share), bottom + 18, label, anchor="middle")
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{across(share):.1f},{down(curve.percentile_ms(share)):.1f}" for share in _SHARES)
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        at = bottom + 42 + 16 * number
        yield f'<rect x="{_LEFT}" y="{at - 9}" width="10" height="10" fill="{colour}"/>'
        yield _text(_LEFT + 16, at, name)


def _decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten that enclose all of `values`; at least one decade."""
    some = [value for value in values if value > 0] or [1.0]
    low, high = log10(min(some)), log10(max(some))
    lowest = int(low // 1)
    return lowest, max(lowest + 1, int(-(-high // 1)))


def _bars(cases: list[CaseResult], top: int) -> Iterator[str]:
    yield _text(_LEFT, top - 28, "CPU time per message, us, by group of processes", size=15)
    costs: list[tuple[str, Mapping[str, float]]] = [
        (case.name, phase.usage.cpu_us) for case in cases if (phase := case.sustained or case.drain) is not None
    ]
    most = max((sum(cost.get(group, 0.0) for group in GROUPS) for _, cost in costs), default=1.0) or 1.0
    scale = (_RIGHT - _LEFT - 60) / most
    for number, (name, cost) in enumerate(costs):
        at, x = top + number * (_BAR + 8), float(_LEFT)
        yield _text(_LEFT - 8, at + 17, name, anchor="end")
        for group, colour in zip(GROUPS, _COLOURS, strict=False):
            width = cost.get(group, 0.0) * scale
            yield f'<rect x="{x:.1f}" y="{at}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
            x += width
        yield _text(x + 6, at + 17, f"{sum(cost.get(group, 0.0) for group in GROUPS):,.0f}")
    legend = top + len(costs) * (_BAR + 8) + 20
    for number, (group, colour) in enumerate(zip(GROUPS, _COLOURS, strict=False)):
        x = _LEFT + number * 110
        yield f'<rect x="{x}" y="{legend - 9}" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 16, legend, group)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'
