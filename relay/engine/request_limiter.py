"""Limits the requests in flight of a process: each attempt takes a seat before it begins, fairly over the endpoints.
There are no seats while the process lacks a resource of its own.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.domain.exchange import LATE, UNAUTHORIZED, Exchange, NoResponse
from relay.domain.fair_share import FairShare
from relay.domain.resource_exhaustion import HOLD_S, Shortage
from relay.engine.decision import Later
from relay.engine.observer import Observer
from relay.engine.work import Work
from relay.state.attempts import Change
from relay.state.port import State

SEATS: Final = 10_000
"""Default limit of the requests in flight in one process."""


class RequestLimiter:
    """One for all lanes of a process. `most`: requests in flight at a time."""

    def __init__(self, clock: Clock, observer: Observer | None = None, most: int = SEATS) -> None:
        self._clock = clock
        self._observer = observer or Observer()
        self.share = FairShare(most)
        self.paused = False
        """Nothing is sent for now: works that wait had better stay in memory."""
        self._shortage = Shortage()
        self._opening: asyncio.TimerHandle | None = None

    def on_reply(self, party: str, url: str, exchange: Exchange) -> Later | None:
        """Called with the outcome of each request of `party` to `url`. If this process caused its failure, returns the
        decision: it counts as no attempt, and waits; without a wait if a token had expired."""
        shortage, now = self._shortage, self._clock.monotonic()
        ours = shortage.is_ours(party, url, exchange, now)
        if shortage.since is not None:
            self._report(exchange, ours=ours, now=now)
        if not isinstance(exchange, NoResponse):
            return None
        if exchange.kind in (LATE, UNAUTHORIZED):  # a POST, too, was surely not processed: it begins anew, in its turn
            return Later(0.0, exchange.detail, Change.RELEASED)
        if not ours:
            return None
        return Later(HOLD_S, f"could not be sent: {exchange.detail}", Change.RELEASED)

    def _report(self, exchange: Exchange, *, ours: bool, now: float) -> None:
        if ours and isinstance(exchange, NoResponse):
            self._observer.sending_paused(exchange.kind, exchange.detail)
        lasted_s = self._shortage.over(now)
        if lasted_s is not None:
            self._observer.sending_resumed(lasted_s)
        self._look(now)

    def _look(self, now: float) -> None:
        """Open as much as the shortage permits, and look again when that changes."""
        wait_s = self._shortage.changes_in(now)
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self.paused = wait_s > 0
        if self.paused:
            self._opening = asyncio.get_running_loop().call_later(wait_s, self._open_further)
        elif self.share.waiting:
            self.share.call_up()

    def _open_further(self) -> None:
        now = self._clock.monotonic()
        if self._shortage.gate(now) == "ajar":
            self.share.call_up(1)
        self._look(now)


class LaneSeats:
    """The seats of a lane's attempts; see `relay.engine.lane.RequestSeats`."""

    def __init__(
        self, request_limiter: RequestLimiter, seated: Callable[[Any], None], wanted: Callable[[], bool]
    ) -> None:
        """`seated` is called for each work that had to wait and gets a seat, while the lane has `wanted` them."""
        self._request_limiter = request_limiter
        self._share = request_limiter.share
        self._seated = seated
        self._wanted = wanted
        self._taken: set[Work] = set()

    def take(self, work: Work) -> bool:
        if not self._request_limiter.paused and self._share.take(work.endpoint_id):
            self._taken.add(work)
            return True
        self._share.wait(work.endpoint_id, partial(self._sit, work))
        return False

    def _sit(self, work: Work) -> bool:
        wanted = self._wanted()
        if wanted:
            self._taken.add(work)
            self._seated(work)
        return wanted

    def leave(self, work: Work) -> None:
        if work in self._taken:
            self._taken.discard(work)
            if self._share.leave(work.endpoint_id) and not self._request_limiter.paused:
                self._share.call_up()

    def leave_all(self) -> None:
        for work in list(self._taken):
            self.leave(work)


ATTEND_EVERY_S: Final = 2.0
NOTEWORTHY_S: Final = 1.0
"""Smaller corrections are normal."""


async def attend(
    state: State, clock: Clock, request_limiter: RequestLimiter, tags: Sequence[int], observer: Observer | None = None
) -> None:
    """Report to the state regularly that attempts are made, so that the absence of all processes is no part of a
    receiver's outage; not while this process sends nothing. Reports to `observer` when the state's clock was set back.
    """
    before_s = inf
    while True:
        if not request_limiter.paused:
            with suppress(Unavailable):
                set_back_s = await state.attend(tags)
                if observer is not None and set_back_s - before_s >= NOTEWORTHY_S:
                    observer.state_clock_set_back(set_back_s - before_s)
                before_s = set_back_s
        await clock.sleep(ATTEND_EVERY_S)
