"""The places of live streams: a few for each browser, some for all; each stream costs a look a second."""

import asyncio


class Streams:
    """`most`: of all together; `each`: of one browser, whose oldest stream is evicted for its newest."""

    def __init__(self, *, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._places: dict[str, list[asyncio.Event]] = {}
        self._ended = False

    def enter(self, who: str) -> asyncio.Event | None:
        """A place: an event that is set when the stream has to end. None: there is none left."""
        own = self._places.get(who, [])
        if self._ended or (len(own) < self._each and sum(map(len, self._places.values())) >= self._most):
            return None
        if len(own) >= self._each:
            own.pop(0).set()
        place = asyncio.Event()
        self._places[who] = [*own, place]
        return place

    def leave(self, who: str, place: asyncio.Event) -> None:
        left = [each for each in self._places.get(who, ()) if each is not place]
        if left:
            self._places[who] = left
        else:
            self._places.pop(who, None)

    def end(self) -> None:
        """The server stops: what would go on for ever ends, and nothing begins."""
        self._ended = True
        for place in [place for own in self._places.values() for place in own]:
            place.set()
