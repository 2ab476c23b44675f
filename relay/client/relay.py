"""The client of the relay's API, for asyncio programs (`AsyncRelay`) and others (`Relay`)."""

from collections.abc import Mapping
from typing import Self

import aiohttp

from relay.client.api import RelayApi
from relay.client.call import Asyncio, Blocking, Loop
from relay.client.http import Http


class AsyncRelay(RelayApi[Asyncio]):
    """A relay, by its HTTP API.

    `url`: default RELAY_API_URL, or http://127.0.0.1:8080. `key`: default RELAY_API_KEY; "" for none. `timeout_s`: of
    each try of a request; `tries`: how many there are in all. `session`: an aiohttp session to use, which stays open,
    for example one with a connector to a unix socket. `headers`: of each request.

    Every method raises ApiError for what the API refuses, and RelayUnreachable if no relay answers.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout_s: float = 30.0,
        tries: int = 5,
        session: aiohttp.ClientSession | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(Http(url, key, tries=tries, timeout_s=timeout_s, session=session, headers=headers or {}))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. A session that was given stays open."""
        await self._http.close()


class Relay(RelayApi[Blocking]):
    """A relay, by its HTTP API. Arguments, methods and errors are those of `AsyncRelay`; threads may share it."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, timeout_s: float = 30.0, tries: int = 5
    ) -> None:
        http = Http(url, key, tries=tries, timeout_s=timeout_s)
        self._own_loop = Loop(http.close)
        super().__init__(http, self._own_loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._own_loop.close()
