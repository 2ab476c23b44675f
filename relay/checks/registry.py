"""The registry of checks: how a check is declared, above the function that makes it. `runner.py` collects and runs
them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from relay.checks.context import CheckContext
from relay.domain.diagnosis import Checked

Look = Callable[[CheckContext], Awaitable[Sequence[Checked]]]
Dependency = Literal["log", "state"]
ReadyPart = Literal["start", "receivers", "log", "state", "stopping", "disk"]
"""The parts of a process that /readyz lists. Scripts read these names, so they never change."""
ReadyWarning = Literal["parked", "clock", "topics", "configuration"]
"""The warnings of /readyz and of the overview; likewise."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check. docs/doctor.md has what it looks at and finds, and the other places that report the same problem.

    `also`: the names of checks that the same function makes. `per_receiver`: it is also made for a single receiver.
    `limit_s`: its longest duration. `needs`: without these it is skipped, which is no failure of its own. `if_away`:
    advice if it fails itself.
    """

    name: str
    also: tuple[str, ...] = ()
    per_receiver: bool = False
    limit_s: float = 8.0
    needs: tuple[Dependency, ...] = ()
    if_away: str | None = None

    def __call__(self, look: Look) -> "Probe":
        """Declares the function below as the one that makes this check."""
        return Probe(self, look)


class Probe(NamedTuple):
    """A function that makes a check."""

    check: Check
    look: Look
