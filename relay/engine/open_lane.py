"""A lane from its opening to its end, for the owner of its partition."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

from relay.clock import Clock
from relay.engine import core, parking
from relay.engine.lane import Lane
from relay.engine.order import Order
from relay.engine.pump import Pump
from relay.engine.quarantine import blamed
from relay.engine.request_limiter import LaneSeats
from relay.engine.supervision import raising_stray_cancels
from relay.engine.work import Work
from relay.log.port import Record, TopicPartition
from relay.state.port import Lane as LaneId
from relay.state.port import State

LINGER_S: Final = 30.0
"""How long requests may continue after the lane was given up, so that their outcomes are known."""


class OpenLane:
    """A lane that the pump runs. It ends by `stop`, a fence, or a bug that breaks it: then `on_stop` is called, and the
    caller has to run `finish`. `close` ends it at once."""

    def __init__(self, pump: Pump, clock: Clock, make: Callable[[LaneSeats], Lane[Any]]) -> None:
        self._pump = pump
        self._clock = clock
        self._mailbox = pump.open(make, self._after_turn, self._on_error)
        self.core = self._mailbox.lane
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._grace_until = self._linger_until = inf
        self._is_broken = False
        self.progress = asyncio.Event()
        """Set when records were offered or have ended; the lanes of a runner share one event."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called once when it begins to stop: the caller runs `finish`, which waits for requests in flight."""
        self.on_break: Callable[[], None] = lambda: None
        """Called when a bug has broken it: it does nothing more, and has to be opened again."""
        self.left = asyncio.Event()
        """Set when the lane no longer counts for the watermark; requests may still be in flight."""

    @property
    def order(self) -> Order[Any]:
        return self.core.order

    @property
    def in_flight(self) -> int:
        return self.core.running

    def parked_keys(self, limit: int) -> Sequence[tuple[bytes, str]]:
        return self.core.parked_keys.parked(limit)

    def oldest(self, before_ms: float, limit: int) -> Sequence[Work]:
        """Of each endpoint of a lane of many, the first work in memory whose record was appended before `before_ms`."""
        return self.core.works.oldest(before_ms, limit) if self.core.policy.isolates_endpoints else ()

    def counts(self, limit: int) -> Mapping[str, int]:
        """Works in memory of each endpoint of a lane of many."""
        return self.core.works.counts(limit) if self.core.policy.isolates_endpoints else {}

    # for the runner

    @property
    def lane(self) -> LaneId:
        return self.core.setup.lane

    @property
    def partition(self) -> TopicPartition:
        return self.core.partition

    @property
    def tags(self) -> tuple[int, ...]:
        """The hash tags that may hold its fence."""
        return self.core.setup.tags

    @property
    def state(self) -> State:
        return self._pump.effects.state

    @property
    def stuck_at(self) -> int | None:
        """The lowest unfinished offset, if nothing known will end it. None otherwise."""
        return None if self._mailbox.events else self.core.stuck_at

    def has_enough(self, *, crowded: bool) -> bool:
        """Enough records wait in memory; further ones may stay in the log."""
        return self.core.has_enough(self._clock.monotonic(), crowded=crowded)

    def offer(self, records: Sequence[Record]) -> None:
        """Take the next records of the partition, in order."""
        core.offer(self.core, records, self._clock.monotonic())
        self._pump.wake(self._mailbox)
        self.progress.set()

    def relieve(self) -> None:
        """At the bound: park works that wait, so that others can go on."""
        if self.left.is_set():
            return
        try:
            parking.relieve(self.core, self._clock.monotonic(), paused=self._pump.paused)
        except Exception as error:  # noqa: BLE001
            self._on_error(error, None)
        self._pump.wake(self._mailbox)

    # its end

    async def finish(self) -> None:
        """Wait until calls and requests in flight have ended, or for the time that `stop` got."""
        lane = self.core
        try:
            await self._until(lambda: self._is_broken or lane.idle, lambda: self._grace_until)
            if lane.fenced_at is None:
                await self._hand_over()
            self._leave()
            await self._until(lambda: not lane.attempting, lambda: self._linger_until)
        finally:
            self.close()

    def close(self) -> None:
        """End the lane at once: calls and requests in flight are not awaited, and their results are ignored."""
        core.stop(self.core)
        self._leave()
        self._pump.close(self._mailbox)
        core.abandon(self.core)

    def stop(self, grace_s: float, *, linger_s: float = 0.0) -> None:
        """Start nothing new; `left` is set when everything in flight has ended, or after `grace_s`. The next owner
        reads unfinished records again; requests may take `linger_s` more, so that it finds their outcomes."""
        now = self._clock.monotonic()
        self._grace_until = min(self._grace_until, now + grace_s)
        self._linger_until = min(self._linger_until, now + grace_s + linger_s)
        self._changed.set()
        if not self._is_stopping:
            self._is_stopping = True
            core.stop(self.core)
            self._pump.wake(self._mailbox)
            self.on_stop()

    async def _hand_over(self) -> None:
        lane, effects = self.core, self._pump.effects
        try:
            await raising_stray_cancels(effects.hand_back(lane))
            await raising_stray_cancels(effects.leave(lane))
        except Exception as error:  # noqa: BLE001
            self._on_error(error, None)

    def _leave(self) -> None:
        core.leave(self.core)
        self._pump.leave(self._mailbox)
        self.left.set()

    def _on_error(self, error: Exception, about: object) -> None:
        """A bug. The state of the lane may be wrong: all that it still does is to store the outcomes of its requests,
        which no other process knows."""
        setup, record = self.core.setup, blamed(error, about)
        first, self._is_broken = not self._is_broken, True
        times = setup.breaks.note(record) if first and record is not None else 0
        setup.observer.lane_broken(self.partition, error, record, times)
        if first:
            core.stop(self.core)
            self._leave()
            self.stop(0.0, linger_s=LINGER_S)
            self._pump.wake(self._mailbox)
            self.on_break()

    def _after_turn(self) -> None:
        """Records have ended, or the lane is ending."""
        if self.core.fenced_at is not None:
            self.stop(0.0, linger_s=LINGER_S)
        self.progress.set()
        self._changed.set()

    async def _until(self, done: Callable[[], bool], end: Callable[[], float]) -> None:
        """Wait until `done`, or the moment that `end` returns, which may become earlier in the meantime."""
        while not done() and (rest := end() - self._clock.monotonic()) > 0:
            self._changed.clear()
            await self._clock.wait(self._changed, rest)
