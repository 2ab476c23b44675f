"""Small charts of a day as SVG, made on the server, without a script. They show numbers only: nothing is to be escaped,
and a list has thousands of bars, so they are formatted as plain text.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from markupsafe import Markup, escape

from relay.pages.render import clock, counted, milliseconds, number
from relay.schema.statistics import HourView

Quantile = Literal["p50_ms", "p99_ms"]

_STEP: Final = 4
"""Units of width for each hour."""
_BAR: Final = 3
_HIGH: Final = 24
_NONE: Final = 0.8
"""Height of an hour without attempts, so that it is visible."""
_LEAST: Final = 1.5
"""The least height of a share that is not zero, so that one failure among thousands is visible."""


def attempts(hours: Sequence[HourView], *, large: bool = False) -> Markup:
    """A bar for each hour, with the failed attempts on top in another colour. `hours`: in their order. Only a large one
    names each hour: a list would be four times as long."""
    most = max((hour["attempts"] for hour in hours), default=0)
    bars: dict[str, list[str]] = {"none": [], "ok": [], "no": []}
    for place, hour in enumerate(hours):
        _draw(bars, place, hour, most)
    total, failed = sum(hour["attempts"] for hour in hours), sum(map(_failed, hours))
    label = f"{counted(total, 'attempt')} in 24 h, {number(failed)} of them failed"
    parts = [f'<path class="bar {kind}" d="{"".join(each)}"/>' for kind, each in bars.items() if each]
    if large:
        parts += [_hour(place, hour, _count_words(hour)) for place, hour in enumerate(hours)]
    return _picture(parts, len(hours), label, large=large)


def line(hours: Sequence[HourView], names: Sequence[Quantile], label: str) -> Markup:
    """A line for each of `names`, as `p99_ms`: from hour to hour, with gaps where the value is unknown."""
    known = [value for hour in hours for name in names if (value := hour[name]) is not None]
    most = max(known, default=0) or 1
    lines = [_path([hour[name] for hour in hours], most, name) for name in names]
    dots = [_hour(place, hour, _said_of(hour, names)) for place, hour in enumerate(hours)]
    return _picture([*lines, *dots], len(hours), label, large=True)


def _draw(bars: Mapping[str, list[str]], place: int, hour: HourView, most: int) -> None:
    """Adds the bars of an hour to those of their kind."""
    if not hour["attempts"]:
        bars["none"].append(_bar(place, _NONE, _HIGH - _NONE))
        return
    bad = _high(_failed(hour), most)
    whole = max(_high(hour["attempts"], most), bad)
    if whole > bad:
        bars["ok"].append(_bar(place, whole - bad, _HIGH - whole + bad))
    if bad:
        bars["no"].append(_bar(place, bad, _HIGH - whole))


def _count_words(hour: HourView) -> str:
    return f"{counted(hour['attempts'], 'attempt')}, {number(_failed(hour))} failed"


def _failed(hour: HourView) -> int:
    """The share of its attempts, judged by that of the others."""
    share = hour["success_rate"]
    return 0 if share is None else round(hour["attempts"] * (1 - share))


def _high(count: int, most: int) -> float:
    return max(_LEAST, count * (_HIGH - 1) / most) if count else 0.0


def _bar(place: int, high: float, top: float) -> str:
    return f"M{place * _STEP} {top:.1f}h{_BAR}v{high:.1f}h-{_BAR}z"


def _hour(place: int, hour: HourView, said: str) -> str:
    """The whole height of an hour, with a label in words."""
    title = f"<title>{clock(hour['hour'])[:5]} UTC: {said}</title>"
    return f'<rect class="at" x="{place * _STEP}" y="0" width="{_STEP}" height="{_HIGH}">{title}</rect>'


def _path(values: Sequence[float | None], most: float, kind: str) -> str:
    steps, is_down = [], False
    for place, value in enumerate(values):
        if value is not None:
            x, y = place * _STEP, _HIGH - 1 - value * (_HIGH - 3) / most
            # as wide as its hour, so that a single one is seen as well
            steps.append(f"{'L' if is_down else 'M'}{x + 0.3:.1f} {y:.1f}L{x + _BAR:.1f} {y:.1f}")
        is_down = value is not None
    return f'<path class="{kind}" d="{"".join(steps)}"/>'


def _said_of(hour: HourView, names: Sequence[Quantile]) -> str:
    return ", ".join(f"{name.removesuffix('_ms')} {milliseconds(hour[name])}" for name in names)


def _picture(parts: Sequence[str], count: int, label: str, *, large: bool) -> Markup:
    kind, box = f"spark{' large' if large else ''}", f"0 0 {max(1, count) * _STEP} {_HIGH}"
    begin = f'<svg class="{kind}" viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
    return Markup(f"{begin}{''.join(parts)}</svg>")  # noqa: S704 - numbers, and an escaped label
