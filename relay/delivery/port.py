"""The transport port: one HTTP exchange with the outside world."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from relay.domain.exchange import UNAUTHORIZED, Exchange, NoResponse, Request


class Transport(ABC):
    """Makes HTTP requests to receivers and senders.

    Redirects are not followed, nothing is decompressed, no cookie is kept. A request is made at most once: what was
    written and not answered is reported, never repeated. Caps on concurrency are the caller's.
    """

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        """Make `request`. `done` is called once, later, from the event loop; whatever goes wrong is in its argument.

        A callback instead of a coroutine: thousands of requests a second need no task each.
        """

    async def exchange(self, request: Request) -> Exchange:
        """The same for who waits for one; cancelling it leaves the request to its end. What was refused because an
        access token had ended is made once more."""
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
        """Give up what is under way: its `done` is told so."""
