"""Chart of attempts by the class of their responses, as links that filter the list of messages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from relay.pages.render import clock, exact, moment_of, number
from relay.pages.visit import Visit
from relay.schema.statistics import SpanItem

Link = Callable[..., str]


class ResponseClass(NamedTuple):
    """`outcomes`: classes of responses that it sums up. `filters`: of the list, for a click on it."""

    name: str
    tone: str
    outcomes: Sequence[str]
    filters: Mapping[str, str | None]


CLASSES: Final = (
    ResponseClass("delivered", "good", ("accepted", "delivered"), {"state": None}),
    ResponseClass("to be retried", "warn", ("not_now", "ambiguous", "not_processed"), {"state": "retrying"}),
    ResponseClass("refused", "bad", ("rejected", "gone"), {"state": "failed"}),
)
_HIGH: Final = 40
_STEP: Final = 8
_BAR: Final = 6
_LEAST: Final = 2.0
"""The least height of a class that is not zero, so that one refusal among thousands is visible."""
_MINUTES_S: Final = 3 * 3_600
"""Ranges up to so long are shown by minute."""
_SPAN_S: Final = {"minute": 60, "hour": 3_600}
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
    if found.value is None:
        return {"found": found, "bars": None, "classes": (), "begin": None, "end": None}
    spans = _filled(found.value["spans"], found.value["since"], found.value["until"], _SPAN_S[by])
    totals = [sum(_count(each, one) for _, each in spans) for one in CLASSES]
    return {
        "found": found,
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
        top = float(_HIGH)
        for one in CLASSES:
            if count := _count(span, one):
                high = max(_LEAST, count * (_HIGH - 4) / most)
                top -= high
                href = link(since=_iso(at), until=_iso(at + span_s), **one.filters)
                title = f"{exact(at)[:16]} UTC: {number(count)} {one.name}"
                parts.append(_part(href, one.tone, place, max(0.0, top), high, title))
    return Markup(
        '<svg class="classes" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(max(1, len(spans)) * _STEP, _HIGH, Markup("").join(parts))


def _iso(at: int) -> str:
    return f"{exact(at)[:10]}T{clock(at)[:8]}Z"


def _part(href: str, tone: str, place: int, top: float, high: float, title: str) -> Markup:
    return Markup(
        '<a href="{}" tabindex="-1"><rect class="{}" x="{}" y="{:.1f}" width="{}" height="{:.1f}">'
        "<title>{}</title></rect></a>"
    ).format(href, tone, place * _STEP, top, _BAR, high, title)
