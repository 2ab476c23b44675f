"""Live parts of pages: server-sent events with HTML that is rendered again on events of the API's live tail."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler as WebHandler

from relay.api.problems import Problem, busy
from relay.api.shares import Leave, Sharer, Shares, sharer_with
from relay.client import ApiError, ClientError
from relay.client.sse import ServerSentEvent
from relay.domain.scope import Access, parse_scope
from relay.pages.page import Fragment, Tail
from relay.pages.visit import Visit, result_of

LINGER_S: Final = 5.0
"""The history lags the events: for this time after the last one the part is rendered each `every_s`."""
IDLE_S: Final = 15.0
"""Between two renderings without events: some may have been missed."""
_LISTEN_AGAIN_S: Final = 30.0
"""Seconds until the next attempt to listen after one was rejected."""
_CHANGES: Final = frozenset({"message", "attempt", "answer", "failed", "skipped"})
_EVENT: Final = "message"
_KEEP_ALIVE_S: Final = 15.0
"""Proxies close a stream without data after some 30 s."""
_REFUSED: Final = frozenset({401, 403, 429})
_STREAMS_EACH: Final = 8
"""Streams of one session, or of one browser, at most."""


class Wakes:
    """`run` listens until it is cancelled; `wait` returns when the next rendering is due.

    One is due each `every_s` while it cannot listen, because all places are taken or the log is away, and without
    `listen`, which begins a stream of events.
    """

    def __init__(self, listen: Callable[[], AsyncIterator[ServerSentEvent]] | None, every_s: float) -> None:
        self._listen = listen
        self._every_s = every_s
        self._listens = False
        self._quiet_from = 0.0
        self._woken = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._listen is not None:
            try:
                async for event in self._listen():
                    if not self._listens or event.name in _CHANGES:
                        self._quiet_from = loop.time() + LINGER_S
                        self._woken.set()
                    self._listens = event.name != "away"
                self._listens = False  # the API ends each stream after some minutes
                await asyncio.sleep(self._every_s)
            except ClientError:
                self._listens = False
                await asyncio.sleep(_LISTEN_AGAIN_S)

    async def wait(self, ended: asyncio.Event) -> None:
        """Waits until the next rendering is due, or until `ended` is set."""
        is_quiet = self._listens and asyncio.get_running_loop().time() >= self._quiet_from
        self._woken.clear()
        waits = [asyncio.ensure_future(ended.wait())]
        if is_quiet:
            waits.append(asyncio.ensure_future(self._woken.wait()))
        try:
            await asyncio.wait(
                waits, timeout=IDLE_S if is_quiet else self._every_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for each in waits:
                each.cancel()


class Streams:
    """The places of live streams: `each` browser has a few, each caller a fair share."""

    def __init__(self, shares: Shares, *, each: int = _STREAMS_EACH) -> None:
        self._shares = shares
        self._each = each
        self._places: dict[str, dict[asyncio.Event, Leave]] = {}
        self._ended = False

    def enter(self, browser: str, caller: Sharer) -> asyncio.Event:
        """A place: an event that is set when the stream has to end, because the browser's newest stream evicts its
        oldest, or the server stops. Raises a Problem if no place is free."""
        if self._ended:
            raise busy("The live pages end: the process stops.")
        own = self._places.get(browser, {})
        if len(own) >= self._each:
            oldest = next(iter(own))
            leave = own.pop(oldest)  # passed on: once released, another browser could take it first
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
        """End all streams, and admit no more: the server stops."""
        self._ended = True
        for place in [place for own in self._places.values() for place in own]:
            place.set()


class _Refused(Exception):
    """The caller may not see this part: as a rule the session has ended."""


def live_handler(
    visit_of: Callable[[web.Request], Visit], streams: Streams, fragment: Fragment, every_s: float, tail: Tail | None
) -> WebHandler:
    """The handler of a live part. Without `tail` the part is rendered each `every_s`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        visit = visit_of(request)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        try:
            caller = await _sharer(visit)
            pieces = await _pieces(visit, fragment, {})
            place = streams.enter(visit.seed, caller)
        except _Refused:
            return web.Response(status=204)  # the browser does not connect again
        except Problem as problem:
            return web.Response(status=problem.kind.status, headers=problem.headers)
        wakes = Wakes(None if tail is None else partial(tail, visit), every_s)
        listening = asyncio.create_task(wakes.run())
        try:
            await stream.prepare(request)
            with suppress(ConnectionError, _Refused):  # the client has left, or may not see this part any more
                await _write(visit, stream, fragment, pieces, wakes, place)
        finally:
            streams.leave(visit.seed, place)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        return stream

    return handle


async def _write(
    visit: Visit,
    stream: web.StreamResponse,
    fragment: Fragment,
    pieces: Mapping[str, str],
    wakes: Wakes,
    place: asyncio.Event,
) -> None:
    """Write `pieces`, and each later rendering that differs, until the client leaves or `place` is set."""
    loop = asyncio.get_running_loop()
    sent: dict[str, str] = {}
    written_at = 0.0
    while True:
        changed = {name: text for name, text in pieces.items() if sent.get(name) != text}
        if changed or loop.time() - written_at > _KEEP_ALIVE_S:
            await stream.write(b"".join(map(_event, changed, changed.values())) or b": still here\n\n")
            sent, written_at = {**sent, **changed}, loop.time()
        await wakes.wait(place)
        if place.is_set() or visit.request.transport is None:
            return
        pieces = await _pieces(visit, fragment, sent)


async def _pieces(visit: Visit, fragment: Fragment, sent: Mapping[str, str]) -> Mapping[str, str]:
    """HTML by event name. An error replaces the first piece, and the others are empty. Raises _Refused."""
    made = await result_of(fragment(visit))
    if isinstance(made, ApiError):
        if made.status in _REFUSED:
            raise _Refused
        line = visit.fragment("problem_line.html", problem=made)
        return {name: line if n == 0 else "" for n, name in enumerate(sent or (_EVENT,))}
    return {_EVENT: made} if isinstance(made, str) else made


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode()


async def _sharer(visit: Visit) -> Sharer:
    """The caller that has a share of the live pages. Raises _Refused, or a Problem if the API does not answer."""
    session = await result_of(visit.api.sessions.get())
    if isinstance(session, ApiError):
        raise _Refused if session.status in _REFUSED else busy(session.detail)
    if session["proof"] == "nothing":  # without keys all callers are one: there each browser has a share
        return Sharer(f"browser:{visit.seed}", is_admin=False)
    return sharer_with(Access(session["who"], frozenset(map(parse_scope, session["scopes"])), session["key"]))
