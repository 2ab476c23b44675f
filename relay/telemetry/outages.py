"""Which endpoints are down, as far as this process has heard: so that each outage is told of once, and shown while it
lasts. Pure; times are monotonic seconds.
"""

from dataclasses import dataclass, field
from typing import Final

from relay.state.attempts import WaitReason

MOST: Final = 10_000
"""Endpoints remembered at a time; the one that was told of first is forgotten first, and may be told of again."""
SLACK_S: Final = 60.0
"""How far the begins of one and the same outage may differ, as they are counted by different clocks."""
HELD_S: Final = 60.0
"""Who is held is told about every few seconds: nothing for so long means that it is not, or is another process's."""


@dataclass(slots=True)
class Outages:
    """What is known of endpoints, by their gates."""

    began: dict[str, float] = field(default_factory=dict)
    """When the outages began that were told of."""
    _held: dict[tuple[str, WaitReason], float] = field(default_factory=dict)

    def begins(self, gate: str, now: float, down_for_s: float) -> bool:
        """Whether this is the first that is heard of an outage which has lasted `down_for_s`."""
        began, known = now - down_for_s, self.began.get(gate)
        if known is not None and began <= known + SLACK_S:
            return False
        if len(self.began) >= MOST:
            del self.began[next(iter(self.began))]
        self.began[gate] = began
        return True

    def ends(self, gate: str) -> float | None:
        """When the outage began that was told of and is over now; None: there was none."""
        return self.began.pop(gate, None)

    def hold(self, gate: str, why: WaitReason, now: float) -> bool:
        """The endpoint is sent nothing now; whether that is new."""
        key = gate, why
        new = key not in self._held and len(self._held) < MOST
        if new or key in self._held:
            self._held[key] = now
        return new

    def released(self, now: float) -> list[tuple[str, WaitReason]]:
        """Who was held, and is not any more; each is named once."""
        over = [key for key, told_at in self._held.items() if now - told_at > HELD_S]
        for key in over:
            del self._held[key]
        return over
