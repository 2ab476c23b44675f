"""The transport port: a single HTTP exchange."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from relay.domain.exchange import UNAUTHORIZED, Exchange, NoResponse, Request


class Transport(ABC):
    """Makes HTTP requests to receivers and senders.

    Redirects are not followed, and no cookies are kept. A response that is compressed, though no request asks for that,
    is decompressed. A request is sent at most once: one that was written and not answered is reported, never repeated.
    Callers limit the concurrency.
    """

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        """Send `request`. `done` is called once, later, from the event loop; any failure is in its argument.

        A callback instead of a coroutine, so that thousands of requests per second need no task each.
        """

    async def exchange(self, request: Request) -> Exchange:
        """Send `request` and wait for the result. Cancellation does not stop the request. It is sent once more if it
        was rejected because its access token had expired."""
        exchange = await self._exchange(request)
        if isinstance(exchange, NoResponse) and exchange.kind == UNAUTHORIZED:
            return await self._exchange(request)
        return exchange

    async def _exchange(self, request: Request) -> Exchange:
        outcome: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        self.send(request, lambda exchange: None if outcome.done() else outcome.set_result(exchange))
        return await outcome

    @abstractmethod
    async def close(self) -> None:
        """Abandon requests in flight; their `done` is called."""
