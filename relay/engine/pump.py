"""The pump of a process: gives all lanes their turns and makes the calls that they request. It never waits for a call:
replies are events of a later turn, so a server that is down delays its own lanes only.

A turn is a callback of the event loop, and runs as soon as an event arrives. More events arrive during a turn, so under
load turns grow on their own.

The owner of a partition opens a lane here (`relay.engine.open_lane`): it offers records, and reads the offset to
commit.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final

from relay.clock import Clock
from relay.domain.errors import PartitionLost, RecordTooLarge, Unavailable
from relay.engine import attempt, core
from relay.engine.commands import STILL_COUNT, CallQueue, Command
from relay.engine.decision import Call
from relay.engine.effects import Effects
from relay.engine.lane import Lane
from relay.engine.request_limiter import LaneSeats, RequestLimiter
from relay.engine.settlement import LONGEST_CLOSE_S
from relay.engine.slices import SLICE_BYTES
from relay.engine.supervision import stray_cancel
from relay.engine.work import Work

TURN_S: Final = 0.02
"""Maximum duration of a turn; then other tasks of the event loop run."""

LaneEvent = partial[None]
"""A function of `core` with its arguments but the time (monotonic): the lane, the subject of the event, and more."""
OnError = Callable[[Exception, object], None]
"""Gets the exception that was raised in a lane's turn or in a call for it, and the subject of the event."""


@dataclass(slots=True, eq=False)
class Mailbox:
    """A lane in the pump, with the events for its next turn and its calls in flight."""

    lane: Lane[Any]
    after_turn: Callable[[], None]
    on_error: OnError
    events: deque[LaneEvent] = field(default_factory=deque)
    calls: dict[CallQueue, asyncio.Task[None]] = field(default_factory=dict)
    """In flight."""
    wake_at: float = inf
    next_offset: int | None = None
    closed: bool = False


class Pump:
    """Runs all lanes of a process."""

    def __init__(self, effects: Effects, clock: Clock, request_limiter: RequestLimiter) -> None:
        self.effects = effects
        self._clock = clock
        self._request_limiter = request_limiter
        self._ready: dict[Mailbox, None] = {}  # in the order of their turns
        self._timers: list[tuple[float, int, Mailbox]] = []
        self._numbers = count()
        self._open: set[Mailbox] = set()
        self._runs = False
        self._turn_is_due = True
        """Set while no further turn may be called: none is called twice, nor while the pump does not run."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    @property
    def paused(self) -> bool:
        """The process sends nothing for now."""
        return self._request_limiter.paused

    def lanes(self) -> list[Lane[Any]]:
        """All open lanes."""
        return [mailbox.lane for mailbox in self._open]

    def open(
        self, make: Callable[[LaneSeats], Lane[Any]], after_turn: Callable[[], None], on_error: OnError
    ) -> Mailbox:
        def seated(work: Work) -> None:
            self.deliver(mailbox, partial(core.seated, mailbox.lane, work))

        mailbox = Mailbox(
            make(LaneSeats(self._request_limiter, seated, lambda: not mailbox.lane.stopping)), after_turn, on_error
        )
        self._open.add(mailbox)
        self.wake(mailbox)
        return mailbox

    def leave(self, mailbox: Mailbox) -> None:
        """The lane no longer counts for the watermark: only outcomes of attempts are still stored. Other calls in
        flight are cancelled, as the next owner makes them, and may have done so before they arrive. A copy that is on
        its way to the log cannot be called back: its call goes on, to remove it if it comes too late."""
        for ask, call in mailbox.calls.items():
            if ask not in STILL_COUNT and ask is not CallQueue.PARK:
                call.cancel()

    def close(self, mailbox: Mailbox) -> None:
        """Later events of the lane are dropped."""
        mailbox.closed = True
        for call in mailbox.calls.values():
            call.cancel()
        self._open.discard(mailbox)
        mailbox.events.clear()
        self._ready.pop(mailbox, None)

    def deliver(self, mailbox: Mailbox, event: LaneEvent) -> None:
        if not mailbox.closed:
            mailbox.events.append(event)
            self._ready[mailbox] = None
            if not self._turn_is_due:
                self._turn_is_due = True
                self._loop.call_soon(self._turn, context=self._context)

    def wake(self, mailbox: Mailbox) -> None:
        """Give it a turn."""
        self._ready[mailbox] = None
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn, context=self._context)

    def resumed(self, endpoint_id: str) -> None:
        """An operator has resumed an endpoint."""
        for mailbox in self._open:
            self.deliver(mailbox, partial(core.resumed, mailbox.lane, endpoint_id))

    async def listen(self) -> None:
        """Run forever: lanes that wait for an endpoint try again as soon as the state reports that they may. A lost
        hint costs time only, as each lane tries again after LONGEST_CLOSE_S."""
        while True:
            with suppress(Unavailable):
                async with self.effects.state.hints("endpoints") as owners:
                    async for owner in owners:
                        self._reopened(owner.decode())
            await self._clock.sleep(LONGEST_CLOSE_S)

    def _reopened(self, endpoint_id: str) -> None:
        now = self._clock.monotonic()
        for mailbox in self._open:  # most of thousands do not wait for it, and need no turn
            if mailbox.lane.order.is_closed(endpoint_id, now):
                self.deliver(mailbox, partial(core.reopened, mailbox.lane, endpoint_id))

    async def run(self) -> None:
        """Run until cancelled. Raises the exception of a turn, which ends the process."""
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._runs = True
        self._loop.call_soon(self._turn, context=self._context)
        self._look_at_timers()
        try:
            await self._failed
        finally:
            self._runs = False
            if self._timer is not None:
                self._timer.cancel()
            for mailbox in self._open:
                for call in mailbox.calls.values():
                    call.cancel()

    def _look_at_timers(self) -> None:
        """Give a turn to each lane whose time has come. Called again at the next time."""
        now, timers = self._clock.monotonic(), self._timers
        while timers:
            at, _, mailbox = timers[0]
            is_current = at == mailbox.wake_at and not mailbox.closed
            if at > now and is_current:
                break
            heapq.heappop(timers)
            if is_current:
                self.wake(mailbox)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, inf
        if self._timers:
            self._timer_at = self._timers[0][0]
            self._timer = self._loop.call_later(self._timer_at - now, self._look_at_timers, context=self._context)

    def _turn(self) -> None:
        """What becomes ready meanwhile is in this turn, or in the next one."""
        if not self._runs:
            return
        ready, clock = self._ready, self._clock.monotonic
        try:
            began = now = clock()
            for mailbox in list(ready):
                del ready[mailbox]
                if not mailbox.closed:
                    self._drive(mailbox, now)
                now = clock()
                if now - began >= TURN_S:
                    break
        except Exception as error:  # noqa: BLE001  `run` raises it
            if not self._failed.done():
                self._failed.set_exception(error)
        self._turn_is_due = bool(ready)
        if ready:  # replies that have arrived become events first
            self._loop.call_soon(self._turn, context=self._context)

    def _drive(self, mailbox: Mailbox, now: float) -> None:
        """An exception concerns one lane only, and ends it; its other events still count, if they may."""
        events, lane = mailbox.events, mailbox.lane
        full_since = lane.full_since
        for _ in range(len(events)):
            event = events.popleft()
            try:
                event(now)
            except Exception as error:  # noqa: BLE001
                mailbox.on_error(error, event.args[1])
        try:
            core.take_turn(lane, now)
            while lane.to_run and (lane.to_append <= SLICE_BYTES or not attempt.holds_back(lane)):
                self._step(mailbox, lane.to_run.popleft())
                lane.has_more = True  # a step that decided at once may have made room for others
            if lane.calls.ready:
                for command in lane.calls.commands():
                    mailbox.calls[command.ask] = self._loop.create_task(self._carried_out(mailbox, command))
        except Exception as error:  # noqa: BLE001
            mailbox.on_error(error, None)
        if lane.has_more:
            self._ready[mailbox] = None
        if lane.wake_at != mailbox.wake_at:
            self._wake_at(mailbox, lane.wake_at, now)
        next_offset = next(iter(lane.watermark.unfinished), lane.watermark.seen_next)
        has_room_again = full_since is not None and lane.full_since is None
        if next_offset != mailbox.next_offset or has_room_again or lane.stopping or lane.fenced_at is not None:
            mailbox.next_offset = next_offset
            mailbox.after_turn()

    def _wake_at(self, mailbox: Mailbox, at: float, now: float) -> None:
        mailbox.wake_at = at
        if at < inf:
            heapq.heappush(self._timers, (at, next(self._numbers), mailbox))
            if at < self._timer_at:
                self._set_timer(now)

    def _step(self, mailbox: Mailbox, work: Work) -> None:
        try:
            found = attempt.run_step(mailbox.lane, work, self._clock.monotonic())
            if isinstance(found, Call):
                self._start(mailbox, work, found)
            else:
                core.decided(mailbox.lane, work, found, self._clock.monotonic())
        except Exception as error:  # noqa: BLE001
            mailbox.on_error(error, work)

    def _start(self, mailbox: Mailbox, work: Work, call: Call[Any]) -> None:
        def replied(reply: object) -> None:
            self.deliver(mailbox, partial(core.replied, mailbox.lane, work, call, reply))

        try:
            call.start(replied)
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            core.not_started(mailbox.lane, work, error, self._clock.monotonic())

    async def _carried_out(self, mailbox: Mailbox, command: Command) -> None:
        lane = mailbox.lane
        try:
            if command.ask is CallQueue.ALONE:
                reply = await self.effects.run_alone(lane, command.items[0], partial(self._start, mailbox))
            else:
                reply = await self.effects.execute[command.ask](lane, command.items)
        except asyncio.CancelledError as error:
            if (stray := stray_cancel(error)) is None:
                raise
            if not mailbox.closed:
                mailbox.on_error(stray, None)
        except RecordTooLarge as error:
            self.deliver(mailbox, partial(core.refused, lane, command, error))
        except PartitionLost:
            self.deliver(mailbox, partial(core.lost, lane, command))
        except Exception as error:  # noqa: BLE001  unexpected: it ends the lane
            if not mailbox.closed:
                mailbox.on_error(error, None)
        else:
            self.deliver(mailbox, partial(core.carried_out, lane, command, reply))
        finally:
            mailbox.calls.pop(command.ask, None)
