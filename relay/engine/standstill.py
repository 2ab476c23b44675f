"""Notices a lane that does not go on although nothing keeps it: a record that is unfinished and in nobody's hands.

All that waits knows for what: a time, a request under way, a call to the log or the state that is being repeated. What
does not is a bug, or a call that never returned. Pure; times are monotonic seconds.
"""

from typing import Final, NamedTuple

STALLED_S: Final = 60.0


class Hands(NamedTuple):
    """What a lane has to do. `head`: the lowest unfinished offset, None when nothing is.

    `busy`: it waits for something that will come: a due time, a request, a server that is away.
    """

    head: int | None
    busy: bool


class Standstill:
    """Judges looks at one lane, about a second apart."""

    def __init__(self) -> None:
        self._head: int | None = None
        self._since = float("inf")

    def look(self, hands: Hands, now: float) -> float | None:
        """For how long it has stood still, once that is a minute; said once a minute."""
        if hands.busy or hands.head is None or hands.head != self._head:
            self._head, self._since = None if hands.busy else hands.head, now
            return None
        stood = now - self._since
        if stood < STALLED_S:
            return None
        self._since = now
        return stood
