"""Limits how often the same thing is reported. Pure; time is passed in."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Throttled:
    reported_at: float
    suppressed: int = 0


class Throttle:
    """Admits each key once per `every_s`, and at most `overall` reports in any such span over all keys.

    Remembers the `keys` used last; a forgotten key is admitted as a new one, within `overall`.
    """

    def __init__(self, *, every_s: float, overall: int, keys: int) -> None:
        self._every_s = every_s
        self._overall = overall
        self._keys = keys
        self._entries: OrderedDict[Hashable, _Throttled] = OrderedDict()
        self._span_began = float("-inf")
        self._span_count = 0

    def admit(self, key: Hashable, now: float) -> int | None:
        """None if `key` must not be reported now; otherwise the number of its events since its last report, to be
        reported. `now`: monotonic seconds."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._remember(key)
        self._entries.move_to_end(key)
        if now - entry.reported_at < self._every_s or not self._has_room(now):
            entry.suppressed += 1
            return None
        self._span_count += 1
        suppressed, entry.suppressed, entry.reported_at = entry.suppressed, 0, now
        return suppressed

    def _remember(self, key: Hashable) -> _Throttled:
        entry = self._entries[key] = _Throttled(reported_at=float("-inf"))
        if len(self._entries) > self._keys:
            self._entries.popitem(last=False)
        return entry

    def _has_room(self, now: float) -> bool:
        if now - self._span_began >= self._every_s:
            self._span_began, self._span_count = now, 0
        return self._span_count < self._overall
