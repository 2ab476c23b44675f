"""A message's round trip for a terminal: each step with its time (UTC), and how long after the message's arrival."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.text import Text

from relay.pages.round_trip import Step, Trip, moment, trips_of
from relay.schema.attempts import AttemptItem
from relay.schema.messages import MessageView
from relay.telemetry.redaction import escape_control

_TIME: Final = len("12:00:00.000")
_OFFSET: Final = len("+59 min 59 s")
_NARROWEST: Final = 40
_UNITS: Final = (
    (("min", 60), ("s", 1)),
    (("h", 3_600), ("min", 60)),
    (("d", 86_400), ("h", 3_600)),
)
_MOST: Final = 400
"""Characters of a quoted foreign text."""


def timeline(message: MessageView, attempts: Sequence[AttemptItem], *, now: float, width: int) -> list[str]:
    """Lines of at most `width` columns (40 at least). `attempts`: in any order. `now`: Unix seconds."""
    writer = _Writer(moment(message.received_at), max(width, _NARROWEST))
    for trip in trips_of(message, attempts, now):
        writer.add(trip)
    return writer.lines


class _Writer:
    def __init__(self, began: float | None, width: int) -> None:
        self.lines: list[str] = []
        self._began = began
        self._width = width
        self._console = Console(width=width)

    def add(self, trip: Trip) -> None:
        if self.lines:
            self.lines.append("")
        self._wrapped("", f"to {trip.receiver}, times in UTC:")
        day = ""
        for life in trip.lives:
            if life.generation:
                self._wrapped("  ", f"replay {life.generation}:")
            for step in life.steps:
                day = self._new_day(step.at, day)
                self._step(step)
        if trip.view.advice:
            self._wrapped("  What to do: ", trip.view.advice)

    def _new_day(self, at: float | None, day: str) -> str:
        """The times do not show it, so its begin has a line."""
        if at is None or (today := _moment(at).date().isoformat()) == day:
            return day
        self.lines.append(f"  {today}")
        return today

    def _step(self, step: Step) -> None:
        when = "" if step.at is None else _clock(step.at)
        after = "" if step.at is None or self._began is None else f"+{span(max(0.0, step.at - self._began))}"
        lead = f"  {when:<{_TIME}} {after:>{_OFFSET}}  "
        first, *others = _words(step)
        self._wrapped(lead, first)
        for words in others:
            self._wrapped(" " * len(lead) + "  ", words)

    def _wrapped(self, lead: str, words: str) -> None:
        """`words` behind `lead`, and in the lines after it below each other."""
        found = Text(escape_control(words)).wrap(self._console, self._width - len(lead), overflow="fold")
        for number, line in enumerate(found):
            self.lines.append(f"{lead if number == 0 else ' ' * len(lead)}{line.plain.rstrip()}".rstrip())


def _words(step: Step) -> Iterator[str]:
    """The title, and the details."""
    until = step.wait.until if step.wait is not None else None
    if step.ongoing and until:
        yield f"{step.title}, until {_clock(moment(until) or 0.0)}"
    elif step.seconds is not None:
        yield f"{step.title} ({span(step.seconds)})"
    else:
        yield step.title
    if step.detail:
        line = " ".join(step.detail.split())
        yield f"because {line[:_MOST]}" if step.kind == "wait" else line[:_MOST]
    for attempt in step.attempts[-1:]:
        if attempt["next_attempt_at"]:
            yield f"the next one at {_clock(moment(attempt['next_attempt_at']) or 0.0)}"


def span(seconds: float) -> str:
    """As a person says it: `12 ms`, `1.2 s`, `2 min 3 s`, `5 h 1 min`, `2 d 3 h`."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    large, small = next((pair for pair in _UNITS if whole < 60 * pair[0][1]), _UNITS[-1])
    return f"{whole // large[1]} {large[0]} {whole % large[1] // small[1]} {small[0]}"


def _clock(seconds: float) -> str:
    return _moment(seconds).time().isoformat(timespec="milliseconds")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
