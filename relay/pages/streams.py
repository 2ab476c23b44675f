"""The places of live streams: a few for each browser, and a fair share for each caller; each stream costs a look a
second."""

import asyncio

from relay.api.problems import RETRY_AFTER_S, UNAVAILABLE, Problem
from relay.api.shares import Leave, Sharer, Shares


class Streams:
    """`each`: of one browser, whose oldest stream is evicted for its newest."""

    def __init__(self, shares: Shares, *, each: int) -> None:
        self._shares = shares
        self._each = each
        self._places: dict[str, dict[asyncio.Event, Leave]] = {}
        self._ended = False

    def enter(self, browser: str, caller: Sharer) -> asyncio.Event:
        """A place: an event that is set when the stream has to end. Raises a Problem where there is none."""
        if self._ended:
            detail = "The live pages end: the process stops."
            raise Problem(UNAVAILABLE, detail, headers={"Retry-After": str(RETRY_AFTER_S)})
        own = self._places.get(browser, {})
        if len(own) >= self._each:
            oldest = next(iter(own))
            leave = own.pop(oldest)  # taken over: given back, others might have it before this browser does
            oldest.set()
        else:
            leave = self._shares.take(caller)
        place = asyncio.Event()
        self._places.setdefault(browser, {})[place] = leave
        return place

    def leave(self, browser: str, place: asyncio.Event) -> None:
        own = self._places.get(browser, {})
        if (leave := own.pop(place, None)) is not None:
            leave()
        if not own:
            self._places.pop(browser, None)

    def end(self) -> None:
        """The server stops: what would go on for ever ends, and nothing begins."""
        self._ended = True
        for place in [place for own in self._places.values() for place in own]:
            place.set()
