"""Places for live streams: bounded for each browser, and shared fairly by keys and owners; each stream costs a query a
second."""

import asyncio
from dataclasses import dataclass, field

from relay.domain.fair_share import FairShare


@dataclass(eq=False, slots=True)
class StreamPlace:
    """`ended`: set when the stream has to end. `party`: whose share it takes; None once a newer stream has it."""

    party: str | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Streams:
    """`most`: of all together; `each`: of one browser, whose oldest stream is evicted for its newest."""

    def __init__(self, *, most: int, each: int) -> None:
        self._fair = FairShare(most)
        self._each = each
        self._places: dict[str, list[StreamPlace]] = {}
        self._ended = False

    def enter(self, browser: str, party: str) -> StreamPlace | None:
        """A place, or None if there is none left. `party`: the key or owner that the browser acts for."""
        own = self._places.get(browser, [])
        if self._ended:
            return None
        if len(own) >= self._each:
            oldest = own.pop(0)
            place, oldest.party = StreamPlace(oldest.party), None
            oldest.ended.set()
        elif self._fair.take(party):
            place = StreamPlace(party)
        else:
            return None
        self._places[browser] = [*own, place]
        return place

    def leave(self, browser: str, place: StreamPlace) -> None:
        if place.party is not None:
            self._fair.leave(place.party)
        left = [each for each in self._places.get(browser, ()) if each is not place]
        if left:
            self._places[browser] = left
        else:
            self._places.pop(browser, None)

    def end(self) -> None:
        """The server stops: all streams end, and no new one begins."""
        self._ended = True
        for place in [place for own in self._places.values() for place in own]:
            place.ended.set()
