"""Conditions that need attention although messages are still delivered, for /readyz and the overview."""

from relay.clock.shared import SharedClock, off
from relay.control.registry import Registry
from relay.watch.parked import ParkedWatch
from relay.watch.topics import TopicWatch


def warnings_of(
    parked: ParkedWatch, topics: TopicWatch, clock: SharedClock, registry: Registry
) -> dict[str, str | None]:
    """For operators, by subject; None: no problem."""
    return {
        "parked": parked.warning,
        "clock": off(clock.ahead_s),
        "topics": topics.warning,
        "configuration": _unusable(registry),
    }


def _unusable(registry: Registry) -> str | None:
    if not registry.refused:
        return None
    entries = "1 entry" if registry.refused == 1 else f"{registry.refused} entries"
    first = next((f"; {why.splitlines()[0]}" for why in registry.problems.values()), "")
    return f"this process cannot use {entries} of receivers or sources, whose messages may wait{first}"
