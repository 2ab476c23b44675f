"""Requests in flight, and their timeouts."""

import asyncio
from collections.abc import Callable
from itertools import chain, takewhile
from typing import Final, Protocol

from relay.domain.exchange import Exchange

_TICK_S: Final = 0.001
"""An event loop may have millisecond resolution and call a timer slightly early."""


class Carrier(Protocol):
    """The current stage of a request: dialling or a connection."""

    def abandon(self, kind: str, detail: str) -> Exchange:
        """Stop working on the request. Returns its result so far; a NoResponse of `kind` if it has no response."""


class OpenRequest:
    """One request. `deadline`: when it times out, in the loop's time."""

    __slots__ = ("carrier", "deadline", "done", "timeout_s")

    carrier: Carrier

    def __init__(self, done: Callable[[Exchange], None], timeout_s: float, now: float) -> None:
        self.done = done
        self.timeout_s = timeout_s
        self.deadline = now + timeout_s


class OpenRequests:
    """All requests of a transport. Requests with the same timeout expire in the order in which they began, so each
    timeout needs only one timer, which fires about once per timeout however many requests there are."""

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
        # Not called directly: it may start another request or raise while our caller is in an inconsistent state.
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
