"""Reads the topics from their ends while there are listeners, once for all listeners of the process.

Each read takes a bounded number of records: if there are more, the older ones are skipped, and the listeners get their
number. Pauses between the reads keep listeners from slowing down deliveries.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from relay.api.problems import UNAVAILABLE, busy
from relay.api.shares import Sharer, Shares
from relay.api.tail.event import Read, TailedEvent, encoded_event, readers
from relay.clock import set_within
from relay.config.limits import ApiLimits
from relay.domain.directory import Directory
from relay.domain.errors import Unavailable
from relay.domain.topics import Topics
from relay.engine.supervision import end
from relay.log.port import Log, TopicPartition
from relay.telemetry.logging import get_logger
from workers.dependencies import Meter

LOOK_S: Final = 0.2
REST: Final = 3
"""A pause is this many times as long as the read before it, so reads take at most a quarter of the time..."""
LONGEST_REST_S: Final = 1.0
"""... unless reads are slow because the process is busy: listeners want to see that work."""
AWAY_S: Final = 1.0
HOLD_S: Final = 0.4
"""Attempts are written each quarter of a second."""
MOST_AT_ONCE: Final = 1_000
"""Records of one read, of all partitions together."""
TOPICS_S: Final = 30.0
"""Between two lookups of the partitions."""
_BATCH: Final = 20
"""Records in memory at a time: each may be as large as the log accepts."""
MOST_BYTES: Final = 1024**2
"""Bytes of events that wait for one listener, at most; further events are dropped."""

LISTENING: Final = encoded_event("listening", {})
"""Events are streamed from now on."""
AWAY: Final = encoded_event("away", {})
"""The log does not answer."""

Shown = Callable[[TailedEvent], TailedEvent | None]
"""Returns the part of an event that a listener may see and asked for; None if there is none."""

_log = get_logger("relay.api.tail")


class TailQueue:
    """The bounded queue of one listener. A listener that reads too slowly misses events, and gets their number."""

    def __init__(self, shown: Shown, most_bytes: int = MOST_BYTES) -> None:
        self.shown = shown
        self.closed = False
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._missed = 0
        self._wake = asyncio.Event()

    def put_event(self, event: TailedEvent) -> None:
        """Queue the part of an event that this listener may see and asked for."""
        shown = self.shown(event)
        if shown is not None:
            self.put(shown.encoded())

    def put(self, event: bytes, count: int = 1) -> None:
        """Queue an encoded event, unless too many bytes are waiting. `count`: how many are missed then."""
        if self._missed or self._bytes + len(event) > self._most_bytes:
            self._missed += count  # until the queue is taken, which ends with the number of missed events
        else:
            self._waiting.append(event)
            self._bytes += len(event)
        self._wake.set()

    def miss(self, count: int) -> None:
        """Queue the number of records that were not read from the log."""
        self.put(skipped(count), count)

    async def take(self, patience_s: float) -> bytes:
        """All queued events, once there are any; empty after `patience_s` without one, or if the queue is closed."""
        await set_within(self._wake, patience_s)
        if not self._wake.is_set():
            return b""
        if not self.closed:
            self._wake.clear()
        taken = b"".join(self._waiting)
        if self._missed:
            taken += skipped(self._missed)
        self._waiting.clear()
        self._bytes = self._missed = 0
        return taken

    def close(self) -> None:
        """End the stream; wakes a waiting `take`."""
        self.closed = True
        self._wake.set()


def skipped(count: int) -> bytes:
    """The event with the number of those that were dropped."""
    return encoded_event("skipped", {"count": count})


class InOrder:
    """Holds events for a moment, so that records that are written later are sent in the order of their time. Pure.

    Attempts are written in batches, after the answers and dead letters that they led to.
    """

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._held: list[tuple[TailedEvent, float]] = []

    def put(self, found: Iterable[TailedEvent], now: float) -> None:
        """Add events that were read at `now`, in seconds of a monotonic clock."""
        self._held += [(event, now) for event in found]
        self._held.sort(key=lambda held: held[0].place)

    def due(self, now: float) -> list[TailedEvent]:
        """The events to send now: those that were held long enough, and all earlier ones."""
        last = max((n for n, (_, read_at) in enumerate(self._held) if read_at <= now - self._hold_s), default=-1)
        due, self._held = self._held[: last + 1], self._held[last + 1 :]
        return [event for event, _ in due]


class Reading:
    """Reads the records that were appended to some topics, from the ends that the first read finds. `readers`: by
    topic, in the order in which a message passes them."""

    def __init__(self, log: Log, readers: Mapping[str, Read], most: int = MOST_AT_ONCE) -> None:
        self._log = log
        self._readers = readers
        self._most = most
        self._partitions: list[TopicPartition] = []
        self._look_at_topics = 0.0
        self._next: dict[TopicPartition, int] | None = None

    async def look(self, now: float) -> tuple[Sequence[TailedEvent], int]:
        """The events since the last read, in order, and the number of older records that were skipped. `now`: seconds
        of a monotonic clock. Raises LogUnavailable."""
        if now >= self._look_at_topics:
            self._partitions = await self._existing()
            self._look_at_topics = now + TOPICS_S
        ends = await self._log.ends(self._partitions)
        if self._next is None:
            self._next = dict(ends)
            return [], 0
        return await self._up_to(ends, self._next)

    async def _existing(self) -> list[TopicPartition]:
        """The partitions, those of the topics that a message passes last first: if ends are read one by one, later
        events of a message are not seen before its earlier ones."""
        states = await self._log.describe(list(self._readers))
        return [
            TopicPartition(topic, number)
            for topic in reversed(list(self._readers))
            if topic in states
            for number in range(states[topic].spec.partitions)
        ]

    async def _up_to(
        self, ends: Mapping[TopicPartition, int], following: dict[TopicPartition, int]
    ) -> tuple[Sequence[TailedEvent], int]:
        """`following`: the next offset to read of each partition; is advanced, also past skipped records."""
        grown = {at: last for at, last in ends.items() if last > following.get(at, 0)}
        share, passed = _share([last - following.get(at, 0) for at, last in grown.items()], self._most), 0
        found: list[TailedEvent] = []
        for at, grown_to in reversed(grown.items()):  # in the order in which a message passes them
            start = max(following.get(at, 0), grown_to - share)
            passed += start - following.get(at, 0)
            found += await self._between(at, start, grown_to)
            following[at] = grown_to
        following |= ends  # a topic that was created again begins again
        return sorted(found, key=lambda event: event.place), passed

    async def _between(self, at: TopicPartition, start: int, end: int) -> list[TailedEvent]:
        read = self._readers[at.topic]
        events = [
            read(record)
            async for batch in self._log.scan(*at, start=start, end=end, batch=_BATCH)
            for record in batch
            if record.value is not None  # a tombstone has no event
        ]
        return [event for event in events if event is not None]


def _share(waiting: Sequence[int], most: int) -> int:
    """The number of records to read of each partition: at most `most` in all, but at least one of each."""
    return max(waiting, default=0) if sum(waiting) <= most else max(1, most // len(waiting))


class Tail:
    """The live tail of one process: one reading, and a queue for each listener."""

    def __init__(self, log: Log, topics: Topics, directory: Directory, limits: ApiLimits, meter: Meter) -> None:
        self._log = log
        self._readers = readers(topics, directory)
        self._shares = Shares("tail", "places of the live tail", limits.listeners, meter, UNAVAILABLE)
        self._places: set[TailQueue] = set()
        self._reading: asyncio.Task[None] | None = None
        self._listening = False
        self._closed = False

    @contextmanager
    def listen(self, caller: Sharer, shown: Shown) -> Iterator[TailQueue]:
        """A listener's queue, until the context ends. Raises a Problem if no place is free."""
        if self._closed:
            raise busy("The live tail ends: the process stops.")
        leave, place = self._shares.take(caller), TailQueue(shown)
        self._places.add(place)
        if self._listening:
            place.put(LISTENING)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        try:
            yield place
        finally:
            self._places.discard(place)
            leave()

    async def close(self, _app: web.Application | None = None) -> None:
        """End all streams, and accept no more: the server stops."""
        self._closed = True
        for place in self._places:
            place.close()
        if self._reading is not None:
            await end([self._reading])

    async def _read(self) -> None:
        """Read while there are listeners."""
        try:
            await self._read_in_turns()
        except Exception:  # noqa: BLE001 - it is logged; otherwise the listeners would wait for ever
            _log.exception("tail_broken")
            for place in self._places:  # clients connect again, which starts a new reading
                place.close()
        finally:
            self._listening = False

    async def _read_in_turns(self) -> None:
        """Reads the topics in turns. After an outage it continues at its positions, within one read."""
        reading, held = Reading(self._log, self._readers), InOrder()
        clock = asyncio.get_running_loop().time
        while self._places:
            began = clock()
            try:
                found, passed = await reading.look(began)
            except Unavailable as error:
                self._report(listening=False, why=str(error))
                await asyncio.sleep(AWAY_S)
                continue
            self._report(listening=True)
            held.put(found, began)
            self._send(held.due(began), passed)
            await asyncio.sleep(max(LOOK_S, min(REST * (clock() - began), LONGEST_REST_S)))

    def _send(self, found: Sequence[TailedEvent], passed: int) -> None:
        for place in self._places:
            if passed:
                place.miss(passed)
            for event in found:
                place.put_event(event)

    def _report(self, *, listening: bool, why: str = "") -> None:
        """Send whether events are streamed from now on, if that has changed."""
        if listening == self._listening:
            return
        self._listening = listening
        if not listening:
            _log.warning("tail_away", why=why)
        for place in self._places:
            place.put(LISTENING if listening else AWAY)
