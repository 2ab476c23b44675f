"""What a look at a relay has found: a line for each thing that was looked at. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["ok", "warning", "error", "skipped"]
"""`error`: messages are lost, late or refused as things are. `warning`: they may be, together with something else, or
soon. `skipped`: it could not be looked at, because of something that another line tells."""

URGENCY: Final[tuple[Severity, ...]] = ("error", "warning", "skipped", "ok")


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a check. `name`: which, of `relay/checks/registry.py`; `subject`: of what, as a receiver or a topic;
    `what`: what is there, or what is wrong; `todo`: what to do about it, as a command or a setting. One line each."""

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
    """All that was found, and when: Unix seconds."""

    at: float
    checks: Sequence[Checked]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong as things are: there may be warnings."""
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
