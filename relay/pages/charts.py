"""Charts as SVG, made on the server, without a script: small ones of a receiver's day, and the attempts of a range by
the class of their responses, as links that filter the list of messages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from markupsafe import Markup, escape

from relay.domain.text import counted
from relay.pages.render import clock, exact, milliseconds, moment_of, number
from relay.pages.visit import Visit
from relay.schema.statistics import HourView, SpanItem

# --- of a day -----------------------------------------------------------------------------------------------------
# Numbers only, so nothing is to be escaped. A list has thousands of bars, so they are formatted as plain text.

Quantile = Literal["p50_ms", "p99_ms"]

_HOUR_STEP: Final = 4
"""Units of width for each hour."""
_HOUR_BAR: Final = 3
_DAY_HIGH: Final = 24
_NONE: Final = 0.8
"""Height of an hour without attempts, so that it is visible."""
_LEAST_SHARE: Final = 1.5
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
    dots = [_hour(place, hour, _text_of(hour, names)) for place, hour in enumerate(hours)]
    return _picture([*lines, *dots], len(hours), label, large=True)


def _draw(bars: Mapping[str, list[str]], place: int, hour: HourView, most: int) -> None:
    """Adds the bars of an hour to those of their kind."""
    if not hour["attempts"]:
        bars["none"].append(_bar(place, _NONE, _DAY_HIGH - _NONE))
        return
    bad = _high(_failed(hour), most)
    whole = max(_high(hour["attempts"], most), bad)
    if whole > bad:
        bars["ok"].append(_bar(place, whole - bad, _DAY_HIGH - whole + bad))
    if bad:
        bars["no"].append(_bar(place, bad, _DAY_HIGH - whole))


def _count_words(hour: HourView) -> str:
    return f"{counted(hour['attempts'], 'attempt')}, {number(_failed(hour))} failed"


def _failed(hour: HourView) -> int:
    """The share of its attempts, judged by that of the others."""
    share = hour["success_rate"]
    return 0 if share is None else round(hour["attempts"] * (1 - share))


def _high(count: int, most: int) -> float:
    return max(_LEAST_SHARE, count * (_DAY_HIGH - 1) / most) if count else 0.0


def _bar(place: int, high: float, top: float) -> str:
    return f"M{place * _HOUR_STEP} {top:.1f}h{_HOUR_BAR}v{high:.1f}h-{_HOUR_BAR}z"


def _hour(place: int, hour: HourView, said: str) -> str:
    """The whole height of an hour, with a label in words."""
    title = f"<title>{clock(hour['hour'])[:5]} UTC: {said}</title>"
    return f'<rect class="at" x="{place * _HOUR_STEP}" y="0" width="{_HOUR_STEP}" height="{_DAY_HIGH}">{title}</rect>'


def _path(values: Sequence[float | None], most: float, kind: str) -> str:
    steps, is_down = [], False
    for place, value in enumerate(values):
        if value is not None:
            x, y = place * _HOUR_STEP, _DAY_HIGH - 1 - value * (_DAY_HIGH - 3) / most
            # as wide as its hour, so that a single one is seen as well
            steps.append(f"{'L' if is_down else 'M'}{x + 0.3:.1f} {y:.1f}L{x + _HOUR_BAR:.1f} {y:.1f}")
        is_down = value is not None
    return f'<path class="{kind}" d="{"".join(steps)}"/>'


def _text_of(hour: HourView, names: Sequence[Quantile]) -> str:
    return ", ".join(f"{name.removesuffix('_ms')} {milliseconds(hour[name])}" for name in names)


def _picture(parts: Sequence[str], count: int, label: str, *, large: bool) -> Markup:
    kind, box = f"spark{' large' if large else ''}", f"0 0 {max(1, count) * _HOUR_STEP} {_DAY_HIGH}"
    begin = f'<svg class="{kind}" viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
    return Markup(f"{begin}{''.join(parts)}</svg>")  # noqa: S704 - numbers, and an escaped label


# --- of a range, by the class of the responses --------------------------------------------------------------------

Link = Callable[..., str]


class ResponseClass(NamedTuple):
    """A class of responses, which a chart shows in one colour. `outcomes`: classes of responses that it sums up.
    `filters`: of the list, for a click on it."""

    name: str
    tone: str
    outcomes: Sequence[str]
    filters: Mapping[str, str | None]


CLASSES: Final = (
    ResponseClass("delivered", "good", ("accepted", "delivered"), {"state": None}),
    ResponseClass("to be retried", "warn", ("not_now", "ambiguous", "not_processed"), {"state": "retrying"}),
    ResponseClass("refused", "bad", ("rejected", "gone"), {"state": "failed"}),
)
_SPANS_HIGH: Final = 40
_SPAN_STEP: Final = 8
_SPAN_BAR: Final = 6
_LEAST_CLASS: Final = 2.0
"""The least height of a class that is not zero, so that one refusal among thousands is visible."""
_MINUTES_S: Final = 3 * 3_600
"""Ranges up to so long are shown by minute."""
_SPAN_S: Final = {"minute": 60, "hour": 3_600}
_COUNTED: Final = frozenset({"since", "until", "receiver", "source"})
"""Filters of the list that the counts of the history have, too."""
_RANGES: Final = {"": ("7d", "hour"), "15m": ("15m", "minute"), "1h": ("1h", "minute")}
"""Begin and width of the bars, by the begin of the list."""


async def chart_of(visit: Visit, query: Mapping[str, str], link: Link) -> dict[str, Any]:
    """The values of the chart's template. `link`: the list with other filters."""
    since, until = query.get("since", ""), query.get("until")
    since, by = _RANGES.get(since, (since, "hour"))
    if _length_s(since, until) <= _MINUTES_S:
        by = "minute"
    call = visit.api.stats(
        by=by, since=since, until=until, receiver=query.get("receiver"), source=query.get("source"), sums=True
    )
    found = await visit.load(call)
    others = not _COUNTED.issuperset(query)
    if found.value is None:
        return {"found": found, "others": others, "bars": None, "classes": (), "begin": None, "end": None}
    spans = _filled(found.value["spans"], found.value["since"], found.value["until"], _SPAN_S[by])
    totals = [sum(_count(each, one) for _, each in spans) for one in CLASSES]
    return {
        "found": found,
        "others": others,
        "bars": bars(spans, _SPAN_S[by], link) if any(totals) else None,
        "classes": [(one, total, link(**one.filters)) for one, total in zip(CLASSES, totals, strict=True)],
        "begin": found.value["since"],
        "end": found.value["until"],
    }


def _length_s(since: str, until: str | None) -> float:
    """The length of a range with two exact ends; infinite for any other."""
    begin, end = moment_of(since), moment_of(until)
    return float("inf") if begin is None or end is None else (end - begin).total_seconds()


def _filled(
    spans: Sequence[SpanItem], since: str | None, until: str | None, span_s: int
) -> list[tuple[int, SpanItem | None]]:
    """Each span of the range with its begin (Unix seconds); None without attempts."""
    known = {round(at.timestamp()): each for each in spans if (at := moment_of(each["at"])) is not None}
    begin, end = moment_of(since), moment_of(until)
    if begin is None or end is None:
        return list(known.items())
    return [
        (at, known.get(at)) for at in range(int(begin.timestamp()) // span_s * span_s, int(end.timestamp()) + 1, span_s)
    ]


def _count(span: SpanItem | None, of: ResponseClass) -> int:
    return 0 if span is None else sum(span["outcomes"].get(name, 0) for name in of.outcomes)  # type: ignore[call-overload]


def bars(spans: Sequence[tuple[int, SpanItem | None]], span_s: int, link: Link) -> Markup:
    """A bar for each span, with a linked part for each class. For the pointer: the legend has the links for keys."""
    most = max((sum(_count(span, one) for one in CLASSES) for _, span in spans), default=0)
    parts = []
    for place, (at, span) in enumerate(spans):
        top = float(_SPANS_HIGH)
        for one in CLASSES:
            if count := _count(span, one):
                high = max(_LEAST_CLASS, count * (_SPANS_HIGH - 4) / most)
                top -= high
                href = link(since=_iso(at), until=_iso(at + span_s), **one.filters)
                title = f"{exact(at)[:16]} UTC: {number(count)} {one.name}"
                parts.append(_linked_bar(href, one.tone, place, max(0.0, top), high, title))
    return Markup(
        '<svg class="classes" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(max(1, len(spans)) * _SPAN_STEP, _SPANS_HIGH, Markup("").join(parts))


def _iso(at: int) -> str:
    return f"{exact(at)[:10]}T{clock(at)[:8]}Z"


def _linked_bar(href: str, tone: str, place: int, top: float, high: float, title: str) -> Markup:
    return Markup(
        '<a href="{}" tabindex="-1"><rect class="{}" x="{}" y="{:.1f}" width="{}" height="{:.1f}">'
        "<title>{}</title></rect></a>"
    ).format(href, tone, place * _SPAN_STEP, top, _SPAN_BAR, high, title)
