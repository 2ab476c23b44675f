"""What a worker's step decides about a work."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from relay.domain.outcome import Ruling
from relay.log.port import NewRecord
from relay.state.attempts import Change
from relay.state.rows import Result, Stage

R = TypeVar("R")


class Done(Struct, frozen=True):
    """The step succeeded.

    `result` is stored before `records` are appended; when they are acknowledged the row is marked with `stage`.
    Without `result` nothing is stored first: right only where repeating the step is harmless.
    """

    records: tuple[NewRecord, ...] = ()
    stage: Stage = Stage.DONE
    code: int = 0
    result: Result | None = None
    healthy: bool | None = None
    up: bool = False
    """It answered a GET: see `Settlement`."""
    ruling: Ruling | None = None
    """The rule that decided about the response; None for the usual table."""
    pause_s: float = 0.0
    """Infinite: the endpoint gets nothing more until an operator resumes it. No other value has a meaning."""
    beside: tuple[NewRecord, ...] = ()
    """Appended after `records`, and also after the dead letter if one of those is too large."""


class Later(Struct, frozen=True):
    """Not now; again in `due_in_s`. `change`: RETRY (not processed), DOUBT (unknown), RELEASED (never sent).
    `detail`: the cause, in words. `up`: it answered a GET. `park`: its record has changed, so it is parked even for a
    short wait: then the change is on the log. `may_arrive`: its request had no response, and may still arrive."""

    due_in_s: float
    reason: str
    change: Change = Change.RETRY
    counted: bool = True
    last_status: int | None = None
    healthy: bool | None = None
    up: bool = False
    pause_s: float = 0.0
    detail: str | None = None
    park: bool = False
    may_arrive: bool = False
    ruling: Ruling | None = None


class Dead(Struct, frozen=True):
    """Given up: a dead letter. `reason` is one of `relay.domain.reasons.REASONS`. `may_arrive`: as in `Later`."""

    reason: str
    detail: str = ""
    last_status: int | None = None
    healthy: bool | None = None
    pause_s: float = 0.0
    may_arrive: bool = False
    ruling: Ruling | None = None
    beside: tuple[NewRecord, ...] = ()
    """Appended after the dead letter."""


class Resend(Struct, frozen=True):
    """The doubt is resolved, or the receiver accepts duplicates: begin another attempt although one is in doubt."""


Decision = Done | Later | Dead | Resend


class Call(Struct, Generic[R], frozen=True):
    """A request of the step. `start(replied)` calls `replied` with the reply, once, later; `decide` turns that into a
    decision. No task waits for it: thousands of these are in flight."""

    start: Callable[[Callable[[R], None]], None]
    decide: Callable[[R], Decision]


Step = Decision | Call[Any]
