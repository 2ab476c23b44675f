"""The pump of a process: one task that gives all lanes their turns and makes the calls that they request. It never
waits for a call: replies are events of a later turn, so a server that is down delays its own lanes only.

A turn runs as soon as an event arrives. More events arrive during a turn, so under load turns grow on their own.

The owner of a partition opens a lane here (`OpenLane`): it offers records, and reads the offset to commit.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final

from relay.clock import Clock
from relay.domain.errors import PartitionLost, RecordTooLarge, Unavailable
from relay.engine import attempt, core, parking
from relay.engine.commands import STILL_COUNT, CallQueue, Command
from relay.engine.effects import Effects
from relay.engine.lane import Lane
from relay.engine.order import Order
from relay.engine.quarantine import blamed
from relay.engine.request_limiter import LaneSeats, RequestLimiter
from relay.engine.settlement import LONGEST_CLOSE_S
from relay.engine.supervision import never_in_silence
from relay.engine.work import Call, Work
from relay.log.port import Record, TopicPartition
from relay.state.port import Lane as LaneId
from relay.state.port import State

TURN_S: Final = 0.02
"""Maximum duration of a turn; then other tasks of the event loop run."""

LINGER_S: Final = 30.0
"""How long requests may continue after the lane was given up, so that their outcomes are known."""

LaneEvent = partial[None]
"""A function of `core` with its arguments but the time (monotonic): the lane, the subject of the event, and more."""
OnError = Callable[[Exception, object], None]
"""Gets the exception that was raised in a lane's turn or in a call for it, and the subject of the event."""


@dataclass(slots=True, eq=False)
class Post:
    """A lane in the pump, with the events for its next turn."""

    lane: Lane[Any]
    after_turn: Callable[[], None]
    on_error: OnError
    events: deque[LaneEvent] = field(default_factory=deque)
    calls: dict[asyncio.Task[None], CallQueue] = field(default_factory=dict)
    wake_at: float = inf
    closed: bool = False


class Pump:
    """Runs all lanes of a process."""

    def __init__(self, effects: Effects, clock: Clock, turnstile: RequestLimiter) -> None:
        self.effects = effects
        self._clock = clock
        self._turnstile = turnstile
        self._ready: dict[Post, None] = {}  # in the order of their turns
        self._timers: list[tuple[float, int, Post]] = []
        self._numbers = count()
        self._came = asyncio.Event()
        self._open: set[Post] = set()

    @property
    def shut(self) -> bool:
        """The process sends nothing for now."""
        return self._turnstile.shut

    def lanes(self) -> list[Lane[Any]]:
        """All open lanes."""
        return [post.lane for post in self._open]

    def open(self, make: Callable[[LaneSeats], Lane[Any]], after_turn: Callable[[], None], on_error: OnError) -> Post:
        def seated(work: Work) -> None:
            self.deliver(post, partial(core.seated, post.lane, work))

        post = Post(make(LaneSeats(self._turnstile, seated, lambda: not post.lane.stopping)), after_turn, on_error)
        self._open.add(post)
        self.wake(post)
        return post

    def leave(self, post: Post) -> None:
        """The lane no longer counts for the watermark: only outcomes of attempts are still stored. Other calls in
        flight are cancelled, as the next owner makes them, and may have done so before they arrive."""
        for call, ask in post.calls.items():
            if ask not in STILL_COUNT:
                call.cancel()

    def close(self, post: Post) -> None:
        """Later events of the lane are dropped."""
        post.closed = True
        for call in post.calls:
            call.cancel()
        self._open.discard(post)
        post.events.clear()
        self._ready.pop(post, None)

    def deliver(self, post: Post, event: LaneEvent) -> None:
        if not post.closed:
            post.events.append(event)
            self._ready[post] = None
            self._came.set()

    def wake(self, post: Post) -> None:
        """Give it a turn."""
        self._ready[post] = None
        self._came.set()

    def resumed(self, gate: str) -> None:
        """An operator has resumed an endpoint."""
        for post in self._open:
            self.deliver(post, partial(core.resumed, post.lane, gate))

    async def listen(self) -> None:
        """Run forever: lanes that wait for an endpoint try again as soon as the state reports that they may. A lost
        hint costs time only, as each lane tries again after LONGEST_CLOSE_S."""
        while True:
            with suppress(Unavailable):
                async with self.effects.state.hints("endpoints") as owners:
                    async for owner in owners:
                        self._reopened(owner.decode())
            await self._clock.sleep(LONGEST_CLOSE_S)

    def _reopened(self, gate: str) -> None:
        now = self._clock.monotonic()
        for post in self._open:  # most of thousands do not wait for it, and need no turn
            if post.lane.order.is_closed(gate, now):
                self.deliver(post, partial(core.reopened, post.lane, gate))

    async def run(self) -> None:
        """Run until cancelled."""
        self._loop = asyncio.get_running_loop()  # asking for it is a system call on Python 3.11, per call too much
        try:
            while True:
                if not self._came.is_set():
                    await self._clock.wait(self._came, self._rest_s())
                self._came.clear()
                self._turn()
                if self._ready:
                    self._came.set()
                    await asyncio.sleep(0)  # replies that have arrived become events first
        finally:
            for post in self._open:
                for call in post.calls:
                    call.cancel()

    def _rest_s(self) -> float | None:
        while self._timers and (self._timers[0][2].closed or self._timers[0][0] != self._timers[0][2].wake_at):
            heapq.heappop(self._timers)  # its lane is closed, or has another time now
        return max(0.0, self._timers[0][0] - self._clock.monotonic()) if self._timers else None

    def _turn(self) -> None:
        began = now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._ready[heapq.heappop(self._timers)[2]] = None
        for post in list(self._ready):
            del self._ready[post]
            if not post.closed:
                self._drive(post, now)
            now = self._clock.monotonic()
            if now - began >= TURN_S:
                return

    def _drive(self, post: Post, now: float) -> None:
        """An exception concerns one lane only, and ends it; its other events still count, if they may."""
        for _ in range(len(post.events)):
            event = post.events.popleft()
            try:
                event(now)
            except Exception as error:  # noqa: BLE001
                post.on_error(error, event.args[1])
        try:
            self._take_up(post, now)
        except Exception as error:  # noqa: BLE001
            post.on_error(error, None)
        post.after_turn()

    def _take_up(self, post: Post, now: float) -> None:
        lane = post.lane
        core.take_up(lane, now)
        ran = False
        if lane.to_run:
            for work in attempt.steps(lane):
                self._step(post, work)
                ran = True
        if lane.calls.ready:
            for command in lane.calls.commands():
                self._carry_out(post, command)
        if lane.has_more or ran:  # a step that decided at once may have made room for others
            self._ready[post] = None
        at = core.wake_at(lane)
        if at != post.wake_at:
            post.wake_at = at
            if at < inf:
                heapq.heappush(self._timers, (at, next(self._numbers), post))

    def _step(self, post: Post, work: Work) -> None:
        try:
            call = core.step(post.lane, work, self._clock.monotonic())
            if call is not None:
                self._start(post, work, call)
        except Exception as error:  # noqa: BLE001
            post.on_error(error, work)

    def _start(self, post: Post, work: Work, call: Call[Any]) -> None:
        def replied(reply: object) -> None:
            self.deliver(post, partial(core.replied, post.lane, work, call, reply))

        try:
            call.start(replied)
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            core.not_started(post.lane, work, error, self._clock.monotonic())

    def _carry_out(self, post: Post, command: Command) -> None:
        call = self._loop.create_task(self._carried_out(post, command))
        post.calls[call] = command.ask
        call.add_done_callback(post.calls.pop)

    async def _carried_out(self, post: Post, command: Command) -> None:
        lane = post.lane
        try:
            if command.ask is CallQueue.ALONE:
                start = partial(self._start, post)
                reply = await never_in_silence(self.effects.run_alone(lane, command.items[0], start))
            else:
                reply = await never_in_silence(self.effects.carry_out(lane, command))
        except RecordTooLarge as error:
            self.deliver(post, partial(core.refused, lane, command, error))
        except PartitionLost:
            self.deliver(post, partial(core.lost, lane, command))
        except Exception as error:  # noqa: BLE001  unexpected: it ends the lane
            if not post.closed:
                post.on_error(error, None)
        else:
            self.deliver(post, partial(core.carried_out, lane, command, reply))


class OpenLane:
    """A lane that the pump runs. It ends by `stop`, a fence, or a bug that breaks it: then `on_stop` is called, and the
    caller has to run `finish`. `close` ends it at once."""

    def __init__(self, pump: Pump, clock: Clock, make: Callable[[LaneSeats], Lane[Any]]) -> None:
        self._pump = pump
        self._clock = clock
        self._post = pump.open(make, self._after_turn, self._on_error)
        self.core = self._post.lane
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._grace_until = self._linger_until = inf
        self._is_broken = False
        self._next_offset: int | None = None
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
        return None if self._post.events else self.core.stuck_at

    def sated(self, *, crowded: bool) -> bool:
        """Enough records wait in memory; further ones may stay in the log."""
        return self.core.sated(self._clock.monotonic(), crowded=crowded)

    def offer(self, records: Sequence[Record]) -> None:
        """Take the next records of the partition, in order."""
        core.offer(self.core, records, self._clock.monotonic())
        self._pump.wake(self._post)
        self.progress.set()

    def relieve(self) -> None:
        """At the bound: park works that wait, so that others can go on."""
        if self.left.is_set():
            return
        try:
            parking.relieve(self.core, self._clock.monotonic(), shut=self._pump.shut)
        except Exception as error:  # noqa: BLE001
            self._on_error(error, None)
        self._pump.wake(self._post)

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
        """Drop all that is in flight."""
        core.stop(self.core)
        self._leave()
        self._pump.close(self._post)
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
            self._pump.wake(self._post)
            self.on_stop()

    async def _hand_over(self) -> None:
        lane, effects = self.core, self._pump.effects
        try:
            await never_in_silence(effects.hand_back(lane))
            await never_in_silence(effects.leave(lane))
        except Exception as error:  # noqa: BLE001
            self._on_error(error, None)

    def _leave(self) -> None:
        core.leave(self.core)
        self._pump.leave(self._post)
        self.left.set()

    def _on_error(self, error: Exception, about: object) -> None:
        """A bug. The state of the lane may be wrong: all that it still does is to store the outcomes of its requests,
        which no other process knows."""
        setting, record = self.core.setup, blamed(error, about)
        first, self._is_broken = not self._is_broken, True
        times = setting.breaks.note(record) if first and record is not None else 0
        setting.observer.lane_broken(self.partition, error, record, times)
        if first:
            core.stop(self.core)
            self._leave()
            self.stop(0.0, linger_s=LINGER_S)
            self._pump.wake(self._post)
            self.on_break()

    def _after_turn(self) -> None:
        if self.core.fenced_at is not None:
            self.stop(0.0, linger_s=LINGER_S)
        next_offset = self.core.watermark.next_offset
        if self._next_offset != next_offset:
            self._next_offset = next_offset
            self.progress.set()
        self._changed.set()

    async def _until(self, done: Callable[[], bool], end: Callable[[], float]) -> None:
        """Wait until `done`, or the moment that `end` returns, which may become earlier in the meantime."""
        while not done() and (rest := end() - self._clock.monotonic()) > 0:
            self._changed.clear()
            await self._clock.wait(self._changed, rest)
