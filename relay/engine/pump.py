"""The pump of a process: one task that takes what came for all its lanes, feeds their cores, and makes the calls that
they ask for. It never waits for a call: replies come back as events, so that whoever is away holds its own lanes only.

A turn runs at once when something came. While one is under way more comes, so under load turns grow by themselves.

Whoever owns a partition opens a lane here (`OpenLane`): what is read goes in, what may be committed comes out.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final

from relay.clock import Clock
from relay.domain.errors import PartitionLost, RecordTooLarge, Unavailable
from relay.engine.commands import STILL_COUNT, CallQueue, Command
from relay.engine.core import Lane
from relay.engine.effects import Effects
from relay.engine.intake import blamed
from relay.engine.order import Order
from relay.engine.request_limiter import LaneSeats, RequestLimiter
from relay.engine.settling import LONGEST_CLOSE_S
from relay.engine.supervision import never_in_silence
from relay.engine.work import Call, Work
from relay.log.port import Record, TopicPartition
from relay.state.port import Lane as LaneId
from relay.state.port import State

TURN_S: Final = 0.02
"""A turn goes on for so long at most: then the event loop does what else there is to do."""

LINGER_S: Final = 30.0
"""How long requests may go on after the lane was given up, so that their outcomes are known."""

Came = partial[None]
"""Something that came for a lane; it is told the time (monotonic). What it is about is its first argument."""
Broke = Callable[[Exception, object], None]
"""Told what was raised in a lane's turn or in a call for it, and what that was about."""


class Post:
    """What came for one lane and was not taken up yet."""

    __slots__ = ("broke", "calls", "closed", "events", "lane", "told", "wake_at")

    def __init__(self, lane: Lane[Any], told: Callable[[], None], broke: Broke) -> None:
        self.lane = lane
        self.events: deque[Came] = deque()
        self.calls: dict[asyncio.Task[None], CallQueue] = {}
        self.wake_at = inf
        self.closed = False
        self.told = told
        """Called after each turn of the lane."""
        self.broke = broke


class Pump:
    """Runs the cores of all lanes of a process."""

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
        """All that are open."""
        return [post.lane for post in self._open]

    def open(self, make: Callable[[LaneSeats], Lane[Any]], told: Callable[[], None], broke: Broke) -> Post:
        def seated(work: Work) -> None:
            self.tell(post, partial(post.lane.seated, work))

        post = Post(make(LaneSeats(self._turnstile, seated, lambda: not post.lane.stopping)), told, broke)
        self._open.add(post)
        self.wake(post)
        return post

    def leave(self, post: Post) -> None:
        """Nothing of it counts for the watermark any more: only what came of attempts is still stored. What else is
        under way is the next owner's business, who may have done it by the time that it comes through."""
        for call, ask in post.calls.items():
            if ask not in STILL_COUNT:
                call.cancel()

    def close(self, post: Post) -> None:
        """What still comes for it is nobody's business here."""
        post.closed = True
        for call in post.calls:
            call.cancel()
        self._open.discard(post)
        post.events.clear()
        self._ready.pop(post, None)

    def tell(self, post: Post, event: Came) -> None:
        if not post.closed:
            post.events.append(event)
            self.wake(post)

    def wake(self, post: Post) -> None:
        """Give it a turn."""
        self._ready[post] = None
        self._came.set()

    def resumed(self, gate: str) -> None:
        """Somebody has resumed an endpoint."""
        for post in self._open:
            self.tell(post, partial(post.lane.resumed, gate))

    async def listen(self) -> None:
        """For ever: lanes that wait for an endpoint ask again as soon as the state says that they may. A hint that is
        lost costs time only, as each lane looks again after LONGEST_CLOSE_S."""
        while True:
            with suppress(Unavailable):
                async with self.effects.state.hints("endpoints") as owners:
                    async for owner in owners:
                        self._woken(owner.decode())
            await self._clock.sleep(LONGEST_CLOSE_S)

    def _woken(self, gate: str) -> None:
        now = self._clock.monotonic()
        for post in self._open:  # most of thousands do not wait for it, and need no turn
            if post.lane.order.is_closed(gate, now):
                self.tell(post, partial(post.lane.order.reopen, gate))

    async def run(self) -> None:
        """For ever; ends by cancellation."""
        try:
            while True:
                await self._clock.wait(self._came, self._rest_s())
                self._came.clear()
                self._turn()
                if self._ready:
                    self._came.set()
                    await asyncio.sleep(0)  # replies that are there become events first
        finally:
            for post in self._open:
                for call in post.calls:
                    call.cancel()

    def _rest_s(self) -> float | None:
        while self._timers and (self._timers[0][2].closed or self._timers[0][0] != self._timers[0][2].wake_at):
            heapq.heappop(self._timers)  # its lane is gone, or looks at another time now
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
        """What is raised is about one lane only, and ends it; what else came for it still counts, as far as it may."""
        for _ in range(len(post.events)):
            event = post.events.popleft()
            try:
                event(now)
            except Exception as error:  # noqa: BLE001
                post.broke(error, event.args[0])
        try:
            self._take_up(post, now)
        except Exception as error:  # noqa: BLE001
            post.broke(error, None)
        post.told()

    def _take_up(self, post: Post, now: float) -> None:
        lane = post.lane
        lane.take_up(now)
        ran = False
        for work in lane.steps():
            self._step(post, work)
            ran = True
        for command in lane.commands():
            self._carry_out(post, command)
        if lane.has_more or ran:  # a step that decided at once may have made way for others
            self._ready[post] = None
        self._set_timer(post, lane.wake_at())

    def _step(self, post: Post, work: Work) -> None:
        try:
            call = post.lane.step(work, self._clock.monotonic())
            if call is not None:
                self._start(post, work, call)
        except Exception as error:  # noqa: BLE001
            post.broke(error, work)

    def _set_timer(self, post: Post, at: float) -> None:
        if at != post.wake_at:
            post.wake_at = at
            if at < inf:
                heapq.heappush(self._timers, (at, next(self._numbers), post))

    def _start(self, post: Post, work: Work, call: Call[Any]) -> None:
        def replied(reply: object) -> None:
            self.tell(post, partial(post.lane.replied, work, call, reply))

        try:
            call.start(replied)
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            post.lane.not_started(work, error, self._clock.monotonic())

    # calls to the ports

    def _carry_out(self, post: Post, command: Command) -> None:
        call = asyncio.create_task(self._carried_out(post, command))
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
            self.tell(post, partial(lane.refused, command, error))
        except PartitionLost:
            self.tell(post, partial(lane.lost, command))
        except Exception as error:  # noqa: BLE001  unexpected: whoever runs the lane is told
            if not post.closed:
                post.broke(error, None)
        else:
            self.tell(post, partial(lane.carried_out, command, reply))


class OpenLane:
    """The pump runs it from the start. It ends by `stop`, a fence, or a bug that breaks it: then `on_stop` is called,
    and `finish` has to be run. `close` ends it at once."""

    def __init__(self, pump: Pump, clock: Clock, make: Callable[[LaneSeats], Lane[Any]]) -> None:
        self._pump = pump
        self._clock = clock
        self._post = pump.open(make, self._told, self._broke)
        self.core = self._post.lane
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._grace_until = self._linger_until = inf
        self._is_broken = False
        self._next_offset: int | None = None
        self.progress = asyncio.Event()
        """Set when records were offered or have ended; the lanes of a runner share one."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called when it begins to stop, once: what is in flight has to be seen to its end."""
        self.on_break: Callable[[], None] = lambda: None
        """Called when a bug has broken it: nothing more comes of it, and it has to be made anew."""
        self.left = asyncio.Event()
        """Set when nothing of this lane counts for the watermark any more; requests may still be under way."""

    @property
    def order(self) -> Order[Any]:
        return self.core.order

    @property
    def in_flight(self) -> int:
        return self.core.in_flight

    def parked_keys(self, limit: int) -> Sequence[tuple[bytes, str]]:
        return self.core.parked_keys(limit)

    # what the runner sees

    @property
    def lane(self) -> LaneId:
        return self.core.setting.lane

    @property
    def partition(self) -> TopicPartition:
        return self.core.partition

    @property
    def tags(self) -> tuple[int, ...]:
        """Where its fence may stand."""
        return self.core.setting.tags

    @property
    def state(self) -> State:
        return self._pump.effects.state

    @property
    def stuck_at(self) -> int | None:
        """The lowest unfinished offset, where nothing is known that will come for it: it would stay for ever."""
        return None if self._post.events else self.core.stuck_at

    def sated(self, *, crowded: bool) -> bool:
        """There is enough at hand: intake may wait, with its records still in the log."""
        return self.core.sated(self._clock.monotonic(), crowded=crowded)

    def offer(self, records: Sequence[Record]) -> None:
        """Take the next records of the partition, in order."""
        self.core.offer(records, self._clock.monotonic())
        self._pump.wake(self._post)
        self.progress.set()

    def relieve(self) -> None:
        """At the bound: park what waits, so that the rest can go on."""
        if self.left.is_set():
            return
        try:
            self.core.relieve(self._clock.monotonic(), shut=self._pump.shut)
        except Exception as error:  # noqa: BLE001
            self._broke(error, None)
        self._pump.wake(self._post)

    # its life

    async def finish(self) -> None:
        """Wait until what is in flight has ended, or for as long as `stop` said."""
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
        """Whatever is in flight is nobody's business here any more."""
        self.core.stop()
        self._leave()
        self._pump.close(self._post)
        self.core.abandon()

    def stop(self, grace_s: float, *, linger_s: float = 0.0) -> None:
        """Start nothing new; `left` is set when what is in flight has ended, or after `grace_s`. What is not finished
        then is read again by the next owner; requests may take `linger_s` more, so that it finds their outcomes."""
        now = self._clock.monotonic()
        self._grace_until = min(self._grace_until, now + grace_s)
        self._linger_until = min(self._linger_until, now + grace_s + linger_s)
        self._changed.set()
        if not self._is_stopping:
            self._is_stopping = True
            self.core.stop()
            self._pump.wake(self._post)
            self.on_stop()

    async def _hand_over(self) -> None:
        lane, effects = self.core, self._pump.effects
        try:
            await never_in_silence(effects.hand_back(lane))
            await never_in_silence(effects.leave(lane))
        except Exception as error:  # noqa: BLE001
            self._broke(error, None)

    def _leave(self) -> None:
        self.core.leave()
        self._pump.leave(self._post)
        self.left.set()

    def _broke(self, error: Exception, about: object) -> None:
        """A bug. Nobody knows what the lane would do next: all that it does any more is to store what comes of its
        requests, which it knows best."""
        setting, record = self.core.setting, blamed(error, about)
        first, self._is_broken = not self._is_broken, True
        times = setting.breaks.note(record) if first and record is not None else 0
        setting.observer.lane_broken(self.partition, error, record, times)
        if first:
            self.core.stop()
            self._leave()
            self.stop(0.0, linger_s=LINGER_S)
            self._pump.wake(self._post)
            self.on_break()

    def _told(self) -> None:
        """The lane had a turn."""
        if self.core.fenced_at is not None:
            self.stop(0.0, linger_s=LINGER_S)
        if self._next_offset != self.core.next_offset:
            self._next_offset = self.core.next_offset
            self.progress.set()
        self._changed.set()

    async def _until(self, done: Callable[[], bool], end: Callable[[], float]) -> None:
        """Until `done`, or the moment that `end` tells, which may come nearer meanwhile."""
        while not done() and (rest := end() - self._clock.monotonic()) > 0:
            self._changed.clear()
            await self._clock.wait(self._changed, rest)
