"""What the API does only so many times at once, shared fairly by those who ask for it: by key and by owner.

A caller alone gets about a quarter of the places, and half of them are for callers that have none. Beyond what these
share, administrators that have none find a place in a reserve.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from aiohttp import web

from relay.api.access import access_of
from relay.api.problems import TOO_MANY, UNAVAILABLE, Problem, ProblemKind, busy
from relay.domain.fair_share import OF_RESERVE, FairShare
from relay.domain.scope import Access
from workers.dependencies import Meter

MOST_WAITING: Final = 16
"""Requests of one caller that wait for a place."""
WAIT_S: Final = 10.0
MOST_LIVE_PAGES: Final = 64
LEAST_BETWEEN_S: Final = 1.0
"""From the end of a test of an endpoint to the begin of the next one."""

Leave = Callable[[], None]


class Sharer(NamedTuple):
    """A caller that gets one share. `name`: all that was made with a key has its share, and all keys and links of one
    owner have one."""

    name: str
    is_admin: bool


def sharer_of(request: web.Request) -> Sharer:
    return sharer_with(access_of(request))


def sharer_with(access: Access) -> Sharer:
    if access.may("admin"):
        return Sharer(f"key:{access.key or access.who}", is_admin=True)
    owners = access.owners
    return Sharer(f"owner:{min(owners)}" if len(owners) == 1 else f"key:{access.key or access.who}", is_admin=False)


class Shares:
    """Shares a limited number of places fairly among callers. `what`: name for metrics; `places`: the same, for people.
    `most`: places, including the reserve. `kind`: the problem if no place is free."""

    def __init__(self, what: str, places: str, most: int, meter: Meter, kind: ProblemKind = TOO_MANY) -> None:
        self._what = what
        self._places = places
        self._kind = kind
        self._meter = meter
        self._reserve = most // OF_RESERVE
        self._fair = FairShare(most - self._reserve)
        self._in_reserve: set[str] = set()
        self._waiting: Counter[str] = Counter()
        self._admins: dict[asyncio.Future[Leave], str] = {}

    def take(self, caller: Sharer) -> Leave:
        """Take a place now; the returned function gives it back. Raises a Problem."""
        leave = self._now(caller)
        if leave is None:
            full = f"All {self._places} are taken."
            raise self._refused(f"This caller has as many {self._places} as one may have." if self._fair.free else full)
        return leave

    @asynccontextmanager
    async def turn(self, caller: Sharer, check_again: Callable[[], None]) -> AsyncIterator[None]:
        """A place, as soon as it is this caller's turn. `check_again`: called after a wait, in which the caller may
        have lost its rights. Raises a Problem where that takes long."""
        leave = at_once = self._now(caller)
        if leave is None:
            leave = await self._wait(caller)
        try:
            if at_once is None:
                check_again()
            yield
        finally:
            leave()

    def _now(self, caller: Sharer) -> Leave | None:
        if self._fair.take(caller.name):
            return partial(self._leave, caller.name)
        if caller.is_admin and self._may_have_of_reserve(caller.name):
            return self._of_reserve(caller.name)
        return None

    def _may_have_of_reserve(self, name: str) -> bool:
        return len(self._in_reserve) < self._reserve and name not in self._in_reserve and not self._fair.has(name)

    def _of_reserve(self, name: str) -> Leave:
        self._in_reserve.add(name)
        return partial(self._leave_reserve, name)

    async def _wait(self, caller: Sharer) -> Leave:
        name, loop = caller.name, asyncio.get_running_loop()
        if self._waiting[name] >= MOST_WAITING:
            raise self._refused(f"This caller has as many requests waiting for {self._places} as one may have.")
        began, place = loop.time(), asyncio.Future[Leave]()
        self._waiting[name] += 1
        self._fair.wait(name, lambda: _give(place, partial(self._leave, name)))
        if caller.is_admin:
            self._admins[place] = name
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait([place])
        except BaseException as error:
            if place.done():
                place.result()()
            if isinstance(error, TimeoutError):
                raise self._refused(f"None of the {self._places} was free for this caller in {WAIT_S:g} s.") from None
            raise
        finally:
            place.cancel()
            self._admins.pop(place, None)
            self._waiting -= Counter({name: 1})
        self._meter.queued(self._what, loop.time() - began)
        return place.result()

    def _leave(self, name: str) -> None:
        self._fair.leave(name)
        self._fair.call_up()
        self._call_admins()

    def _leave_reserve(self, name: str) -> None:
        self._in_reserve.discard(name)
        self._call_admins()

    def _call_admins(self) -> None:
        for place, name in self._admins.items():
            if not place.done() and self._may_have_of_reserve(name):
                _give(place, self._of_reserve(name))

    def _refused(self, detail: str) -> Problem:
        self._meter.over_share(self._what)
        return busy(detail, self._kind)


def shares_of_live_pages(meter: Meter) -> Shares:
    return Shares("page", "places of live pages", MOST_LIVE_PAGES, meter, UNAVAILABLE)


def _give(place: "asyncio.Future[Leave]", leave: Leave) -> bool:
    """False: it is not waited for any more, or was found elsewhere."""
    if place.done():
        return False
    place.set_result(leave)
    return True


class Turns:
    """Limits how often an endpoint is tested, by its owner. Pure."""

    def __init__(self) -> None:
        self._in_progress: set[str] = set()
        self._ended: dict[str, float] = {}  # in the order of these moments

    def take(self, name: str, now: float) -> float:
        """0: it may begin, and has to `end`. Otherwise the seconds for which it may not, an estimate."""
        while self._ended and (first := next(iter(self._ended))) and now - self._ended[first] >= LEAST_BETWEEN_S:
            del self._ended[first]
        if name in self._ended:
            return LEAST_BETWEEN_S - (now - self._ended[name])
        if name in self._in_progress:
            return LEAST_BETWEEN_S
        self._in_progress.add(name)
        return 0.0

    def end(self, name: str, now: float) -> None:
        self._in_progress.discard(name)
        self._ended[name] = now
