"""The lag of the history behind its source topics."""

from typing import Final

from relay.clock import Clock
from relay.domain.coordinate import Coordinate
from relay.domain.errors import LogUnavailable
from relay.domain.topics import Topics
from relay.history.port import HistoryReader
from relay.log.port import Log

_GOOD_FOR_S: Final = 1.0


class Behind:
    """Measures the lag, at most once a second."""

    def __init__(self, history: HistoryReader, log: Log, topics: Topics, clock: Clock) -> None:
        self._history = history
        self._log = log
        self._groups = {topic: topics.group("history") for topic in topics_read(topics)}
        self._clock = clock
        self._measured: tuple[float, float | None] | None = None

    async def seconds(self) -> float | None:
        """Age of the oldest record that the history lacks; 0 if it lacks none, None if unknown. Raises
        HistoryUnavailable."""
        now = self._clock.monotonic()
        if self._measured is None or now - self._measured[0] >= _GOOD_FOR_S:
            self._measured = now, await self._measure()
        return self._measured[1]

    async def _measure(self) -> float | None:
        taken = await self._history.next_offsets()
        try:
            spans = await self._log.backlogs(self._groups)
            next_ones = [
                Coordinate(*span.partition, offset)
                for span in spans
                if (offset := max(span.first, taken.get(span.partition, 0))) < span.end
            ]
            records = await self._log.read([(at, None) for at in next_ones]) if next_ones else []
        except LogUnavailable:
            return None
        oldest_ms = min((record.timestamp_ms for record in records if record is not None), default=None)
        if oldest_ms is None:
            return None if next_ones else 0.0  # the next records no longer exist, or are not data
        return round(max(0.0, self._clock.time() - oldest_ms / 1000), 3)


def topics_read(topics: Topics) -> tuple[str, ...]:
    """The topics from which the history is built."""
    return topics.from_sender, topics.to_sender, topics.failed_messages, topics.delivery_attempts
