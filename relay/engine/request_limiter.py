"""Every attempt goes through here before it begins: a seat for each request that a process has under way, fair over the
endpoints, and none while the process is short of something of its own.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.domain.exchange import LATE, UNAUTHORIZED, Exchange, NoResponse
from relay.domain.fair_share import FairShare
from relay.domain.resource_exhaustion import HOLD_S, Shortage
from relay.engine.observer import Observer
from relay.engine.work import Later, Work
from relay.state.attempts import Change
from relay.state.port import State

SEATS: Final = 10_000
"""Requests under way in one process, unless it is told otherwise."""


class RequestLimiter:
    """One for all lanes of a process. `most`: requests under way at a time."""

    def __init__(self, clock: Clock, observer: Observer | None = None, most: int = SEATS) -> None:
        self._clock = clock
        self._observer = observer or Observer()
        self._share = FairShare(most)
        self._shortage = Shortage()
        self._opening: asyncio.TimerHandle | None = None

    @property
    def shut(self) -> bool:
        """Nothing is sent for now: what waits had better stay where it is."""
        return self._opening is not None

    def pass_through(self, party: str, sit: Callable[[], bool]) -> bool:
        """Whether `party` has a seat at once; else `sit` is called when it has one."""
        if self._opening is None and self._share.take(party):
            return True
        self._share.wait(party, sit)
        return False

    def leave(self, party: str) -> None:
        """A seat is free again."""
        self._share.leave(party)
        if self._opening is None and self._share.waiting:
            self._share.call_up()

    def heard(self, party: str, url: str, exchange: Exchange) -> Later | None:
        """What came of each request to `url`, of `party`. Where that it failed is our own doing, what follows is
        this: nobody's attempt, and a wait; after a token that had ended, none."""
        shortage, now = self._shortage, self._clock.monotonic()
        ours = shortage.is_ours(party, url, exchange, now)
        if shortage.since is not None:
            self._tell(exchange, ours=ours, now=now)
        if not isinstance(exchange, NoResponse):
            return None
        if exchange.kind in (LATE, UNAUTHORIZED):  # a POST, too, was surely not processed: it begins anew, in its turn
            return Later(0.0, exchange.detail, Change.RELEASED)
        if not ours:
            return None
        return Later(HOLD_S, f"could not be sent: {exchange.detail}", Change.RELEASED)

    def _tell(self, exchange: Exchange, *, ours: bool, now: float) -> None:
        if ours and isinstance(exchange, NoResponse):
            self._observer.short_of(exchange.kind, exchange.detail)
        lasted_s = self._shortage.over(now)
        if lasted_s is not None:
            self._observer.enough_again(lasted_s)
        self._look(now)

    def _look(self, now: float) -> None:
        """Open as far as may be, and come back when that changes."""
        wait_s = self._shortage.changes_in(now)
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if wait_s > 0:
            self._opening = asyncio.get_running_loop().call_later(wait_s, self._open_further)
            if self._shortage.gate(now) == "ajar":
                return
        elif self._share.waiting:
            self._share.call_up()

    def _open_further(self) -> None:
        now = self._clock.monotonic()
        if self._shortage.gate(now) == "ajar":
            self._share.call_up(1)
        self._look(now)


class LaneSeats:
    """The seats that a lane's attempts have; see `relay.engine.settling.Seats`."""

    def __init__(self, turnstile: RequestLimiter, seated: Callable[[Any], None], wanted: Callable[[], bool]) -> None:
        """`seated` is called for each work that had to wait and has a seat now, while it is `wanted`."""
        self._turnstile = turnstile
        self._seated = seated
        self._wanted = wanted
        self._taken: set[Work] = set()

    def take(self, work: Work) -> bool:
        def sit() -> bool:
            wanted = self._wanted()
            if wanted:
                self._taken.add(work)
                self._seated(work)
            return wanted

        seated = self._turnstile.pass_through(work.gate, sit)
        if seated:
            self._taken.add(work)
        return seated

    def leave(self, work: Work) -> None:
        if work in self._taken:
            self._taken.discard(work)
            self._turnstile.leave(work.gate)

    def leave_all(self) -> None:
        for work in list(self._taken):
            self.leave(work)


ATTEND_EVERY_S: Final = 2.0
NOTEWORTHY_S: Final = 1.0
"""By less a clock is set to keep it right."""


async def attend(
    state: State, clock: Clock, turnstile: RequestLimiter, tags: Sequence[int], observer: Observer | None = None
) -> None:
    """Tell the state, for ever, that attempts are made, so that our own absence is no part of a receiver's outage; not
    while this process sends nothing. Reports to `observer` when the clock of the state was set back."""
    before_s = inf
    while True:
        if not turnstile.shut:
            with suppress(Unavailable):
                set_back_s = await state.attend(tags)
                if observer is not None and set_back_s - before_s >= NOTEWORTHY_S:
                    observer.state_clock_set_back(set_back_s - before_s)
                before_s = set_back_s
        await clock.sleep(ATTEND_EVERY_S)
