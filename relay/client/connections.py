"""The connections of a client to its relay."""

import asyncio
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from relay.client.errors import ClientError

CLOSED: Final = "the client is closed"


class LoopSessions:
    """The connections of a client: a session for each event loop, because one belongs to the loop that created it.
    `given`: the session for all of them, which stays open. `url`: of the relay."""

    def __init__(self, url: str, given: aiohttp.ClientSession | None) -> None:
        self._url = url
        self._given = given
        self._by_loop: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        self._closed = False

    async def current(self) -> aiohttp.ClientSession:
        """That of the running loop. Raises ClientError if the client is closed."""
        if self._closed:
            raise ClientError(CLOSED)
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            await self._close_of([each for each in self._by_loop if each.is_closed()])
            proxy = _proxy_for(self._url)
            self._by_loop[loop] = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), proxy=proxy)
        return self._by_loop[loop]

    async def close(self) -> None:
        """Loops that run in other threads keep theirs: only they may close it."""
        self._closed = True
        own = asyncio.get_running_loop()
        await self._close_of([each for each in self._by_loop if each is own or each.is_closed()])

    async def _close_of(self, loops: Iterable[asyncio.AbstractEventLoop]) -> None:
        for session in [self._by_loop.pop(loop) for loop in loops]:
            await session.close()


def _proxy_for(url: str) -> str | None:
    """The environment's proxy. `trust_env` would also send what a netrc has for the host, in place of the key."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
