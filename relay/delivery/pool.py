"""Pool of connections that are kept open between requests."""

import asyncio
from typing import Final

from relay.delivery.connection import ClientConnection, Origin

_IDLE_S: Final = 4.0
"""Idle connections are closed before common servers close them (5 s): a request that races with a server's close is
ambiguous."""

_PER_ORIGIN: Final = 256
_IN_ALL: Final = 512
MOST_OPEN: Final = 10_000

_STALE_TRIES: Final = 3
"""A restarted server leaves several dead connections. After this many, a new connection is the better choice."""

_SWEEP_S: Final = 1.0


class ConnectionPool:
    """All connections of a transport, with idle ones by origin, most recently used first. Idle connections count
    towards `most_open` and are evicted first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most_open: int) -> None:
        self._loop = loop
        self._most_open = most_open
        self._open: set[ClientConnection] = set()
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._idle_count = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None

    def take(self, origin: Origin, now: float) -> ClientConnection | None:
        """An idle connection that appears usable; None if there is none."""
        idle = self._idle.get(origin)
        if not idle:
            return None
        for _ in range(min(_STALE_TRIES, len(idle))):
            connection = idle.pop()
            since, connection.idle_since = connection.idle_since, None
            self._idle_count -= 1
            if since is not None and now - since < _IDLE_S and not connection.is_stale():
                return connection
            connection.close()
        return None

    def keep(self, connection: ClientConnection) -> None:
        if self._all_lost is not None:
            connection.close()
            return
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = []
        connection.idle_since = self._loop.time()
        idle.append(connection)
        self._idle_count += 1
        if len(idle) > _PER_ORIGIN:
            self._drop_first(idle)
        elif self._idle_count > _IN_ALL:
            self._drop_oldest()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def make_room(self, opening: int) -> None:
        """Evict idle connections before `opening` new ones are opened."""
        for _ in range(min(self._idle_count, len(self._open) + opening - self._most_open)):
            self._drop_oldest()

    def drop_idle(self) -> None:
        """Close all idle connections, because the process has no resources left."""
        for idle in self._idle.values():
            while idle:
                self._drop_first(idle)

    def opened(self, connection: ClientConnection) -> None:
        self._open.add(connection)

    def lost(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        if connection.idle_since is not None:
            self._idle[connection.origin].remove(connection)
            connection.idle_since = None
            self._idle_count -= 1
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)

    async def close(self) -> None:
        """Close every connection, and wait until the event loop has released them."""
        self._all_lost = self._loop.create_future()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._open:
            connection.close()
        if self._open:
            await self._all_lost

    def _drop_oldest(self) -> None:
        self._drop_first(min(filter(None, self._idle.values()), key=lambda idle: idle[0].idle_since or 0.0))

    def _drop_first(self, idle: list[ClientConnection]) -> None:
        connection = idle.pop(0)
        connection.idle_since = None
        self._idle_count -= 1
        connection.close()

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and remove origins without connections."""
        until = self._loop.time() - _IDLE_S
        for origin, idle in list(self._idle.items()):
            while idle and (idle[0].idle_since or 0.0) <= until:
                self._drop_first(idle)
            if not idle:
                del self._idle[origin]
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep) if self._idle else None
