"""Who wants a message that names no receiver: of those in memory, and of those in the shared lane."""

from collections.abc import Callable
from typing import Final

from relay.config.shared import SharedReceivers
from relay.config.subscriptions import MAX_MATCHES, Subscriptions, too_many

KEPT: Final = 16_384
"""Pairs of source and event type whose subscribers are remembered."""


class Subscribers:
    """Remembers what it found until `forget`. `own`: the subscriptions of those in memory."""

    def __init__(self, own: Callable[[], Subscriptions], shared: SharedReceivers) -> None:
        self._own = own
        self._shared = shared
        self._known: dict[tuple[str, str | None], tuple[str, ...]] = {}

    def of(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names, sorted. Raises InvalidRecord where there are too many."""
        found = self._known.get((source_id, event_type))
        if found is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            found = self._known[source_id, event_type] = self._found(source_id, event_type)
        return found

    def forget(self) -> None:
        """Some receiver has changed."""
        self._known.clear()

    def _found(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        own = self._own().match(source_id, event_type)
        shared = self._shared.matching(source_id, event_type or "", MAX_MATCHES + 1)
        if len(own) + len(shared) > MAX_MATCHES:
            raise too_many(f"at least {len(own) + len(shared)}")
        return tuple(sorted((*own, *shared)))
