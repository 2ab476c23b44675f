"""Reads the topics from their ends while there are listeners, once for all listeners of the process.

It reads a bounded number of records now and then: if there are more, the older ones are skipped, and the listeners get
their number. It pauses in between, so that listeners do not slow down deliveries.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from relay.api.limits import ApiLimits
from relay.api.problems import RETRY_AFTER_S, UNAVAILABLE, Problem
from relay.api.shares import Sharer, Shares
from relay.api.tail.event import TailedEvent, encoded_event, readers
from relay.api.tail.order import InOrder
from relay.api.tail.place import Shown, TailQueue
from relay.api.tail.reading import Reading
from relay.domain.directory import Directory
from relay.domain.errors import Unavailable
from relay.domain.topics import Topics
from relay.engine.supervision import end
from relay.log.port import Log
from relay.telemetry.logging import get_logger
from workers.dependencies import Meter

LOOK_S: Final = 0.2
REST: Final = 3
"""It rests so many times as long as its last look took, so that it takes a quarter of the time at most..."""
LONGEST_REST_S: Final = 1.0
"""... but where a look takes long only as others are at work: who listens wants to see what they do."""
AWAY_S: Final = 1.0

LISTENING: Final = encoded_event("listening", {})
"""Events are streamed from now on."""
AWAY: Final = encoded_event("away", {})
"""The log does not answer."""

_log = get_logger("relay.api.tail")


class Tail:
    """Of one process."""

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
        """A place, as long as it is used. Raises a Problem where there is none."""
        if self._closed:
            raise _full("The live tail ends: the process stops.")
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
        """As long as anybody listens."""
        try:
            await self._look_again_and_again()
        except Exception:  # noqa: BLE001 - it is logged; those who listen would wait for ever
            _log.exception("tail_broken")
            for place in self._places:  # they may come back, to a new reading
                place.close()
        finally:
            self._listening = False

    async def _look_again_and_again(self) -> None:
        """After an outage it continues at its positions, within one read."""
        reading, held = Reading(self._log, self._readers), InOrder()
        clock = asyncio.get_running_loop().time
        while self._places:
            began = clock()
            try:
                found, passed = await reading.look(began)
            except Unavailable as error:
                self._say(listening=False, why=str(error))
                await asyncio.sleep(AWAY_S)
                continue
            self._say(listening=True)
            held.put(found, began)
            self._tell(held.due(began), passed)
            await asyncio.sleep(max(LOOK_S, min(REST * (clock() - began), LONGEST_REST_S)))

    def _tell(self, found: Sequence[TailedEvent], passed: int) -> None:
        for place in self._places:
            if passed:
                place.miss(passed)
            for happening in found:
                place.tell(happening)

    def _say(self, *, listening: bool, why: str = "") -> None:
        """Whether events are streamed from now on, if that has changed."""
        if listening == self._listening:
            return
        self._listening = listening
        if not listening:
            _log.warning("tail_away", why=why)
        for place in self._places:
            place.put(LISTENING if listening else AWAY)


def _full(detail: str) -> Problem:
    return Problem(UNAVAILABLE, detail, headers={"Retry-After": str(RETRY_AFTER_S)})
