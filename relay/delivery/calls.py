"""Requests under way, and what ends those that take too long."""

import asyncio
from collections.abc import Callable
from itertools import chain, takewhile
from typing import Final, Protocol

from relay.domain.exchange import Exchange

_TICK_S: Final = 0.001
"""A loop may count in milliseconds, and call a timer a little early."""


class Carrier(Protocol):
    """Where a call is at present."""

    def abandon(self, kind: str, detail: str) -> Exchange:
        """Do no more for the call; what came of it so far, of that kind if there is no response."""


class OpenRequest:
    """One request. `deadline`: the loop's time by which it ends."""

    __slots__ = ("carrier", "deadline", "done", "timeout_s")

    carrier: Carrier

    def __init__(self, done: Callable[[Exchange], None], timeout_s: float, now: float) -> None:
        self.done = done
        self.timeout_s = timeout_s
        self.deadline = now + timeout_s


class OpenRequests:
    """All calls of a transport. Those of one timeout end in the order in which they began, hence need one timer only,
    and that fires about once per timeout however many calls there are."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lanes: dict[float, dict[OpenRequest, None]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def begin(self, done: Callable[[Exchange], None], timeout_s: float, now: float) -> OpenRequest:
        call = OpenRequest(done, timeout_s, now)
        lane = self._lanes.get(timeout_s)
        if lane is None:
            lane = self._lanes[timeout_s] = {}
            self._timers[timeout_s] = self._loop.call_at(call.deadline, self._sweep, timeout_s)
        lane[call] = None
        return call

    def finish(self, call: OpenRequest, exchange: Exchange) -> None:
        del self._lanes[call.timeout_s][call]
        # Not called from here: it may begin the next call or raise, and our caller is in the middle of something.
        self._loop.call_soon(call.done, exchange)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for call in list(chain.from_iterable(self._lanes.values())):
            self.finish(call, call.carrier.abandon("disconnected", "the transport was closed"))

    def _sweep(self, timeout_s: float) -> None:
        lane = self._lanes[timeout_s]
        by = self._loop.time() + _TICK_S
        for call in list(takewhile(lambda call: call.deadline <= by, lane)):
            self.finish(call, call.carrier.abandon("timeout", f"no answer within {timeout_s:g} s"))
        first = next(iter(lane), None)
        if first is not None:
            self._timers[timeout_s] = self._loop.call_at(first.deadline, self._sweep, timeout_s)
        else:
            del self._lanes[timeout_s], self._timers[timeout_s]
