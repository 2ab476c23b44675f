"""Small charts of a day as SVG, made on the server, without a script. They show numbers only, no foreign text."""

from collections.abc import Sequence
from typing import Final, Literal

from markupsafe import Markup

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
    """A bar for each hour, with the failed attempts on top in another colour. `hours`: in their order."""
    most = max((hour["attempts"] for hour in hours), default=0)
    bars = [_bar(place, hour, most) for place, hour in enumerate(hours)]
    total, failed = sum(hour["attempts"] for hour in hours), sum(map(_failed, hours))
    return _picture(
        bars, len(hours), f"{counted(total, 'attempt')} in 24 h, {number(failed)} of them failed", large=large
    )


def line(hours: Sequence[HourView], names: Sequence[Quantile], label: str) -> Markup:
    """A line for each of `names`, as `p99_ms`: from hour to hour, with gaps where the value is unknown."""
    known = [value for hour in hours for name in names if (value := hour[name]) is not None]
    most = max(known, default=0) or 1
    lines = [_path([hour[name] for hour in hours], most, name) for name in names]
    dots = [_hour(place, hour, _said_of(hour, names)) for place, hour in enumerate(hours)]
    return _picture([*lines, *dots], len(hours), label, large=True)


def _bar(place: int, hour: HourView, most: int) -> Markup:
    said = f"{counted(hour['attempts'], 'attempt')}, {number(_failed(hour))} failed"
    if not hour["attempts"]:
        return _rect(place, _NONE, _HIGH - _NONE, "none") + _hour(place, hour, said)
    bad = _high(_failed(hour), most)
    whole = max(_high(hour["attempts"], most), bad)
    good = _rect(place, whole - bad, _HIGH - whole + bad, "ok") if whole > bad else Markup("")
    return good + (_rect(place, bad, _HIGH - whole, "no") if bad else Markup("")) + _hour(place, hour, said)


def _failed(hour: HourView) -> int:
    """The share of its attempts, judged by that of the others."""
    share = hour["success_rate"]
    return 0 if share is None else round(hour["attempts"] * (1 - share))


def _high(count: int, most: int) -> float:
    return max(_LEAST, count * (_HIGH - 1) / most) if count else 0.0


def _rect(place: int, high: float, top: float, kind: str) -> Markup:
    return Markup('<rect class="{}" x="{}" y="{:.1f}" width="{}" height="{:.1f}"/>').format(
        kind, place * _STEP, top, _BAR, high
    )


def _hour(place: int, hour: HourView, said: str) -> Markup:
    """The whole height of an hour, with a label in words."""
    return Markup('<rect class="at" x="{}" y="0" width="{}" height="{}"><title>{} UTC: {}</title></rect>').format(
        place * _STEP, _STEP, _HIGH, clock(hour["hour"])[:5], said
    )


def _path(values: Sequence[float | None], most: float, kind: str) -> Markup:
    steps, is_down = [], False
    for place, value in enumerate(values):
        if value is not None:
            x, y = place * _STEP, _HIGH - 1 - value * (_HIGH - 3) / most
            # as wide as its hour, so that a single one is seen as well
            steps.append(f"{'L' if is_down else 'M'}{x + 0.3:.1f} {y:.1f}L{x + _BAR:.1f} {y:.1f}")
        is_down = value is not None
    return Markup('<path class="{}" d="{}"/>').format(kind, "".join(steps))


def _said_of(hour: HourView, names: Sequence[Quantile]) -> str:
    return ", ".join(f"{name.removesuffix('_ms')} {milliseconds(hour[name])}" for name in names)


def _picture(parts: Sequence[Markup], count: int, label: str, *, large: bool) -> Markup:
    return Markup(
        '<svg class="spark{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(" large" if large else "", max(1, count) * _STEP, _HIGH, label, Markup("").join(parts))
