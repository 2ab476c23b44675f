"""Templates, and how numbers, times and states are written on a page. Values may be hostile text: all are escaped."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from relay.client.http import path
from relay.domain.reasons import reason_words
from relay.domain.state import State, StateLabel, label_of, state_text
from relay.domain.statistics import TONES as HEALTH_TONES
from relay.domain.text import counted, lasting
from relay.pages.payload_view import readable
from relay.pages.translator import TEMPLATES, Replacing, Translator
from relay.telemetry.redaction import escape_control

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
NOTHING: Final = "–"
"""Stands for a missing value."""

TONES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ok", "done", "delivered", "answered", "active", "closed", "served", "verified"), "good"),
    **dict.fromkeys(("response_received_from_receiver", "response_delivered_to_sender", "succeeded"), "good"),
    **dict.fromkeys(("failed", "dead", "gone", "disabled", "unserved", "refused", "error", "rejected"), "bad"),
    **dict.fromkeys(("paused", "open", "half_open", "offline", "warning", "waiting", "retry", "stopping"), "warn"),
    **dict.fromkeys(("unverified", "pending", "later", "parked", "rate", "breaker", "held", "ambiguous"), "warn"),
    **dict.fromkeys(("failing",), "bad"),
    **dict[str, str](HEALTH_TONES.items()),
    **dict.fromkeys(("backing_off", "switched_off"), "warn"),
    **dict.fromkeys(("arrived", "delivered_to_receiver", "running", "accepted", "live"), "live"),
}
"""The colour of a state; any other has none. Colour is never the only sign."""


class Renderer:
    """Renders templates. `asset`: the address of a static file. `now`: Unix seconds. `strings`: texts by those that
    they replace."""

    def __init__(
        self, asset: Callable[[str], str], now: Callable[[], float], strings: Mapping[str, str] | None = None
    ) -> None:
        def replace(text: str) -> str:
            return text if strings is None else strings.get(text, text)

        def label(state: State) -> StateLabel:
            found = label_of(state)
            return found._replace(word=replace(found.word), sentence=replace(found.sentence))

        def words_of_state(state: State, **why: Any) -> str:
            return state_text(state, **why).replace(label_of(state).word, label(state).word, 1)

        self.now = now
        self._environment = environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            extensions=[Replacing] if strings else [],
        )
        environment.extend(replace=replace)

        def ago(value: str | float | None) -> Markup | str:
            moment = moment_of(value)
            return NOTHING if moment is None else time_tag(moment, now())

        def coming(value: str | float | None, passed: str = NOTHING) -> Markup | str:
            """The time of a plan; `passed` once that has come."""
            moment = moment_of(value)
            return passed if moment is None or moment.timestamp() <= now() else time_tag(moment, now(), passed=passed)

        environment.globals.update(asset=asset, nothing=NOTHING, path=path)
        environment.filters.update({each.__name__: each for each in FILTERS})
        environment.filters.update(
            ago=ago,
            coming=coming,
            ms=milliseconds,
            tojson_text=compact,
            state_label=label,
            state_text=words_of_state,
            replaced=replace,
        )

        self._translator = Translator(strings) if strings else None

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        page = self._environment.get_template(template).render(values)
        return page if self._translator is None else self._translator.html(page)


def moment_of(value: str | float | None) -> datetime | None:
    """The time of RFC 3339 text or Unix seconds; None if there is none, or it cannot be read."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_tag(moment: datetime, now: float, *, passed: str = "") -> Markup:
    """`12 s ago`, with the exact time to be pointed at. A script carries it on. `passed`: its text once the time has
    come, in place of `1 s ago`."""
    exact = f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}" data-ago="{}">{}</time>').format(
        moment.astimezone(UTC).isoformat(), exact, passed, relative(moment.timestamp() - now)
    )


def relative(seconds: float) -> str:
    """`in_s` from now; negative: ago."""
    if abs(seconds) < 1:
        return "now"
    text = duration(abs(seconds), parts=1)
    return f"in {text}" if seconds > 0 else f"{text} ago"


def clock(value: str | float | None) -> str:
    """`14:03:59.120` in UTC, for a list whose day is known."""
    moment = moment_of(value)
    return NOTHING if moment is None else f"{moment.astimezone(UTC):%H:%M:%S.%f}"[:-3]


def exact(value: str | float | None) -> str:
    """`2026-01-31 14:03:59.120 UTC`."""
    moment = moment_of(value)
    return NOTHING if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d} {clock(value)} UTC"


def iso(value: str | float | None) -> str:
    """The time in ISO format, for programs; empty if there is none."""
    moment = moment_of(value)
    return "" if moment is None else moment.astimezone(UTC).isoformat()


def day_clock(value: str | float | None) -> str:
    """`14:03 UTC`, with the day where it is an older one: what stays the same while time goes on."""
    moment = moment_of(value)
    if moment is None:
        return NOTHING
    of_today = moment.astimezone(UTC).date() == datetime.now(UTC).date()
    return f"{moment.astimezone(UTC):%H:%M UTC}" if of_today else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M UTC}"


def duration(seconds: float | None, parts: int = 2) -> str:
    """`850 ms`, `12 s`, `3 min 4 s`, `2 d 5 h`."""
    if seconds is None:
        return NOTHING
    return milliseconds(seconds * 1000) if 0 < abs(seconds) < 1 else lasting(seconds, parts)


def milliseconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value >= 1000:
        return duration(value / 1000)
    return f"{value:.0f} ms" if value >= 10 or value == int(value) else f"{value:.1f} ms"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return NOTHING
    step = 0
    while count >= 1024 and step < len(_SIZES) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.0f} {_SIZES[step]}" if count >= 10 or count == int(count) else f"{count:.1f} {_SIZES[step]}"


def number(count: float | None) -> str:
    """The number with commas between thousands, as in all texts of the relay."""
    return NOTHING if count is None else f"{count:,.0f}"


def decimal(value: float | None) -> str:
    """Two digits of a small number, and a large one whole."""
    return number(value) if value is None or value >= 10 else f"{round(value, 2):.2g}"


def rate(per_s: float | None) -> str:
    """In the largest unit, up to an hour, in which it is not nearly zero."""
    if per_s is None:
        return NOTHING
    if not per_s or per_s >= 10:
        return f"{number(per_s)}/s"
    if per_s >= 0.1:
        return f"{per_s:.1f}/s"
    return f"{per_s * 60:.1f}/min" if per_s * 60 >= 1 else f"{per_s * 3600:.1f}/h"


def percent(share: float | None) -> str:
    """A share from 0 to 1 in percent: never 100 % while something is missing."""
    if share is None:
        return NOTHING
    of_100 = share * 100
    if of_100 in (0.0, 100.0):
        return f"{of_100:.0f} %"
    return f"{min(max(of_100, 0.1), 99.9):.1f} %"


def tone(state: object) -> str:
    """The colour of a state: `good`, `warn`, `bad`, `live` or `plain`."""
    return TONES.get(str(state).lower(), "plain")


def words(state: object) -> str:
    """`half_open` as people write it."""
    return reason_words(str(state))


def choices(values: Sequence[str]) -> list[tuple[str, str]]:
    """Options of a filter: any, or one of `values`."""
    return [("", "Any"), *((value, words(value)) for value in values)]


def visible(value: object) -> str:
    """Text of others with its control characters made visible: they reorder, hide or break what stands beside them."""
    return escape_control(str(value))


def pretty(value: object) -> str:
    """JSON, indented."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def path_part(value: object) -> str:
    """An id in a path: it may have a slash in it."""
    return quote(str(value), safe="")


def compact(value: object) -> str:
    """JSON, for an attribute."""
    return json.dumps(value, separators=(",", ":"))


def fingerprint(text: str) -> str:
    """A short id, the same for the same text."""
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


FILTERS: Final[tuple[Callable[..., str], ...]] = (
    *(clock, exact, iso, day_clock, size, duration, number, decimal, counted, rate, percent),
    *(tone, words, visible, readable, pretty, path_part, fingerprint),
)
"""Filters of templates, by their names."""
