"""The transport port: one HTTP exchange with the outside world."""

from typing import Protocol

from relay.domain.exchange import Exchange, Request


class Transport(Protocol):
    """Makes HTTP requests to receivers and senders.

    Redirects are not followed, nothing is decompressed, no cookie is kept. A request is made at most once: what was
    written and not answered is reported, never repeated. No exception but CancelledError comes out of `exchange`.
    Caps on concurrency are the caller's.
    """

    async def start(self) -> None: ...

    async def exchange(self, request: Request) -> Exchange: ...

    async def close(self) -> None: ...
