"""The registry of checks: how a check is declared, above the function that makes it. `runner.py` collects and runs
them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from relay.checks.context import CheckContext
from relay.domain.diagnosis import Checked

Look = Callable[[CheckContext], Awaitable[Sequence[Checked]]]
Dependency = Literal["log", "state"]
AtStart = Literal["fails", "waits", "logs"]
ReadyPart = Literal["start", "receivers", "log", "state", "stopping", "disk"]
"""The parts of a process that /readyz lists. Scripts read these names, so they never change."""
ReadyWarning = Literal["parked", "clock", "topics", "configuration"]
"""The warnings of /readyz and of the overview; likewise."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check, with one name for all places that report its problem.

    `looks_at`: its subject. `error`, `warning`: what these severities mean. `todo`: what to do then. `at_start`: what
    the start of a process does about an error: it fails, waits, or only logs it; None: it does not make this check.
    `ready`: the problem's names on /readyz. `alerts`: Prometheus alerts about it, each with a runbook of the same name.
    `per_receiver`: it is also made for a single receiver. `limit_s`: its longest duration. `needs`: without these it is
    skipped, which is no failure of its own. `if_away`: advice if it fails itself.
    """

    name: str
    looks_at: str
    todo: str
    error: str | None = None
    warning: str | None = None
    at_start: AtStart | None = None
    ready: tuple[ReadyPart | ReadyWarning, ...] = ()
    alerts: tuple[str, ...] = ()
    per_receiver: bool = False
    limit_s: float = 8.0
    needs: tuple[Dependency, ...] = ()
    if_away: str | None = None

    def __call__(self, look: Look) -> "Probe":
        """Declares the function below as the one that makes this check."""
        return Probe((self,), look)

    def row(self) -> str:
        """Its row in docs/doctor.md."""
        meanings = (("error", self.error), ("warning", self.warning))
        finds = "; ".join(f"{severity}: {meaning}" for severity, meaning in meanings if meaning is not None)
        elsewhere = [] if self.at_start is None else [f"start {self.at_start}"]
        elsewhere += [f"`{name}` on `/readyz`" for name in self.ready]
        elsewhere += [f"[{alert}](runbooks/{alert}.md)" for alert in self.alerts]
        return f"| `{self.name}` | {self.looks_at} | {finds} | {self.todo} | {', '.join(elsewhere)} |"


class Probe(NamedTuple):
    """A function that makes `checks`. Its limit and needs are those of the first, for which its own failure is
    reported."""

    checks: tuple[Check, ...]
    look: Look


def together(*checks: Check) -> Callable[[Look], Probe]:
    """Declares the function below as the one that makes all these checks."""
    return lambda look: Probe(checks, look)


NO_CHECK: Final[Mapping[str, str]] = {
    "start": "on /readyz while the process connects",
    "receivers": "on /readyz while the process reads the receivers",
    "stopping": "on /readyz while the process ends",
    "process": "on /readyz, another process of the same `relay run`",
    "RelayTargetDown": "about one process, while the doctor looks at the whole relay",
    "RelayProcessSilent": "about one process, while the doctor looks at the whole relay",
    "RelayBug": "about an event, which no later look can find",
    "RelayLogTruncated": "about an event, which no later look can find",
    "RelayReceiverHot": "about what was sent in the last minute; the metric and the log name the receiver",
    "RelayHeadOfLine": "about one message; the overview and the log name it",
}
"""Names on /readyz and alerts that belong to no check, and why."""
