"""What needs somebody's attention although all goes on: for /readyz and the overview."""

from relay.watch.parked import ParkedWatch
from relay.watch.shared_clock import SharedClock, off
from relay.watch.topics import TopicWatch


def warnings_of(parked: ParkedWatch, topics: TopicWatch, clock: SharedClock) -> dict[str, str | None]:
    """For people, by what it is about; None: nothing."""
    return {"parked": parked.warning, "clock": off(clock.ahead_s), "topics": topics.warning}
