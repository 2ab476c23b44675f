"""The endpoints that are down, so that the log has each outage once."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from relay.state.attempts import WaitReason

MOST: Final = 10_000
"""Endpoints remembered at a time; the oldest is forgotten first, and may be reported again."""
SLACK_S: Final = 60.0
"""Largest difference between the begins of one outage, by different clocks."""
HELD_S: Final = 60.0
"""A held endpoint is reported every few seconds: without a report for so long it is not held, or is another
process's."""


@dataclass(slots=True)
class Outages:
    """The endpoints that are down, by their ids: each outage is reported once, and shown while it lasts. Pure; times
    are monotonic seconds."""

    began: dict[str, float] = field(default_factory=dict)
    """The begins of reported outages."""
    _held: dict[tuple[str, WaitReason], float] = field(default_factory=dict)

    def begins(self, endpoint_id: str, now: float, down_for_s: float) -> bool:
        """Whether this is the first report of an outage that has lasted `down_for_s`."""
        began, known = now - down_for_s, self.began.get(endpoint_id)
        if known is not None and began <= known + SLACK_S:
            return False
        if len(self.began) >= MOST:
            del self.began[next(iter(self.began))]
        self.began[endpoint_id] = began
        return True

    def ends(self, endpoint_id: str) -> float | None:
        """The begin of the reported outage that has ended now; None if there was none."""
        return self.began.pop(endpoint_id, None)

    def hold(self, endpoint_id: str, why: WaitReason, now: float) -> None:
        """Note that the endpoint gets no requests now."""
        key = endpoint_id, why
        if key in self._held or len(self._held) < MOST:
            self._held[key] = now

    @property
    def held(self) -> Collection[tuple[str, WaitReason]]:
        """Id and reason of each held endpoint."""
        return self._held.keys()

    def let_go(self, now: float) -> None:
        """Drop endpoints that are no longer reported as held."""
        self._held = {key: told_at for key, told_at in self._held.items() if now - told_at <= HELD_S}
