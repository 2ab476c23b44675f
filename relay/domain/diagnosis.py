"""Diagnosis: the findings of `relay doctor`, one line for each check. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["ok", "warning", "error", "skipped"]
"""`error`: messages are being lost, delayed or rejected. `warning`: they may be soon, or together with another failure.
`skipped`: the check could not run, for a reason that another line gives."""

URGENCY: Final[tuple[Severity, ...]] = ("error", "warning", "skipped", "ok")


@dataclass(frozen=True, slots=True)
class Checked:
    """The finding of a check. `name`: the check's, in `relay/checks/context.py`; `subject`: the receiver or topic that
    was checked; `what`: the finding; `todo`: what to do about it, as a command or a setting. One line each."""

    name: str
    severity: Severity
    what: str
    todo: str | None = None
    subject: str | None = None

    @property
    def ok(self) -> bool:
        return self.severity == "ok"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, and when they were made (Unix seconds)."""

    at: float
    checks: Sequence[Checked]

    @property
    def ok(self) -> bool:
        """Whether there are no errors; there may be warnings."""
        return not self.count("error")

    def count(self, severity: Severity) -> int:
        return sum(each.severity == severity for each in self.checks)


def fine(name: str, what: str, subject: str | None = None) -> Checked:
    return Checked(name, "ok", what, None, subject)


def warning(name: str, what: str, todo: str | None = None, subject: str | None = None) -> Checked:
    return Checked(name, "warning", what, todo, subject)


def error(name: str, what: str, todo: str | None = None, subject: str | None = None) -> Checked:
    return Checked(name, "error", what, todo, subject)


def skipped(name: str, what: str) -> Checked:
    return Checked(name, "skipped", what)
