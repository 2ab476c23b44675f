"""Finds the subscribers of a message, among the receivers in memory and those in the shared lane."""

from collections.abc import Callable
from typing import Final, NamedTuple

from relay.control.shared_receivers import SharedReceivers
from relay.control.subscriptions import MAX_MATCHES, Subscriptions, too_many
from relay.domain.receiver import Receiver

KEPT: Final = 16_384
"""Pairs of source and event type whose subscribers are cached."""


class Subscribed(NamedTuple):
    """Subscribers of a message. `names`: sorted. `filtered`: those that have a filter."""

    names: tuple[str, ...]
    filtered: frozenset[str]


class Subscribers:
    """Caches results until `forget`. `own`: the subscriptions of receivers in memory. `receiver`: any receiver by
    name."""

    def __init__(
        self, own: Callable[[], Subscriptions], shared: SharedReceivers, receiver: Callable[[str], Receiver | None]
    ) -> None:
        self._own = own
        self._shared = shared
        self._receiver = receiver
        self._known: dict[tuple[str, str | None], Subscribed] = {}

    def of(self, source_id: str, event_type: str | None) -> Subscribed:
        """The subscribers. Raises InvalidRecord if there are too many."""
        found = self._known.get((source_id, event_type))
        if found is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            found = self._known[source_id, event_type] = self._found(source_id, event_type)
        return found

    def forget(self) -> None:
        """Clear the cache, because a receiver has changed."""
        self._known.clear()

    def _found(self, source_id: str, event_type: str | None) -> Subscribed:
        own = self._own().match(source_id, event_type)
        shared = self._shared.matching(source_id, event_type or "", MAX_MATCHES + 1)
        if len(own) + len(shared) > MAX_MATCHES:
            raise too_many(f"at least {len(own) + len(shared)}")
        names = tuple(sorted((*own, *shared)))
        found = [self._receiver(name) for name in names]
        return Subscribed(names, frozenset(one.name for one in found if one is not None and one.filter is not None))
