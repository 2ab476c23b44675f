"""Keeps connections open between requests, for as long as their servers probably do."""

import asyncio
from itertools import takewhile
from math import inf
from typing import Final

from relay.delivery.connection import ClientConnection, Origin

_IDLE_S: Final = 4.0
"""Idle connections are closed before common servers close them (5 s): a request that races with a server's close is
ambiguous."""

_AGE_S: Final = 60.0
"""Older connections are not used again, however busy they are. So a name that moves to another address, a certificate
that was replaced, or a new server behind a load balancer is noticed while the old server still responds."""

_HASTY_S: Final = 0.5
_HASTY_KEPT_S: Final = 60.0
"""A server that closes connections within `_HASTY_S` after their first response does so after each one, without having
announced it. For `_HASTY_KEPT_S`, its connections are not used again: a request could race with the close. Those of one
that closes idle ones later are used for half of that time."""

_UNUSED_S: Final = 60.0
_UNUSED: Final = 4096
"""How long, and how many, connections are kept that were too late for a slot of a rate. The next slot may be later than
`_IDLE_S`, or than other origins would leave them: each slot would find none, and be missed."""

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
        self._since: dict[ClientConnection, float] = {}
        """Since when each idle connection is idle, in the loop's time; longest first."""
        self._unused: dict[Origin, ClientConnection] = {}
        """A connection of each origin that has not been used yet; longest open first."""
        self._limits: dict[Origin, tuple[float, float]] = {}
        """Of origins that close connections early: seconds for which an idle one can be used, and when that was
        noticed."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None

    def take(self, origin: Origin, now: float) -> ClientConnection | None:
        """An idle connection that appears usable; None if there is none."""
        idle = self._idle.get(origin)
        if not idle:
            return self._take_unused(origin, now) if self._unused else None
        limit_s = self._limits[origin][0] if origin in self._limits else _IDLE_S
        for _ in range(min(_STALE_TRIES, len(idle))):
            connection = idle.pop()
            since = self._since.pop(connection)
            if connection.is_stale():
                self._note_idle_close(connection, since, now)
            elif now - since < limit_s:
                connection.idle_at = since if connection.idle_at is None else -inf
                return connection
            connection.close()
        return self._take_unused(origin, now)

    def _take_unused(self, origin: Origin, now: float) -> ClientConnection | None:
        connection = self._unused.pop(origin, None)
        if connection is None:
            return None
        if now - connection.opened_at < _UNUSED_S and not connection.is_stale():
            return connection
        connection.close()
        return None

    def keep_unused(self, connection: ClientConnection) -> None:
        """The connection is new, and too late for its request, which will be made again."""
        if connection.origin in self._unused or self._all_lost is not None:
            self.keep(connection)
            return
        self._unused[connection.origin] = connection
        if len(self._unused) > _UNUSED:
            self._drop_unused()
        self._sweep_later()

    def keep(self, connection: ClientConnection) -> None:
        now = self._loop.time()
        is_old = now - connection.opened_at >= _AGE_S
        is_hasty = connection.origin in self._limits and not self._limits[connection.origin][0]
        if is_old or is_hasty or self._all_lost is not None:
            connection.close()
            return
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = []
        idle.append(connection)
        self._since[connection] = now
        if len(idle) > _PER_ORIGIN:
            self._drop(idle[0])
        elif len(self._since) > _IN_ALL:
            self._drop_oldest()
        self._sweep_later()

    def make_room(self, opening: int) -> None:
        """Evict idle connections before `opening` new ones are opened."""
        excess = len(self._open) + opening - self._most_open
        for _ in range(min(len(self._since) + len(self._unused), excess)):
            self._drop_oldest()

    def drop_idle(self) -> None:
        """Close all idle connections, because the process has no resources left."""
        while self._since or self._unused:
            self._drop_oldest()

    def opened(self, connection: ClientConnection) -> None:
        """Called once the dial has ended: after one that was cancelled, uvloop closes the connection without a
        `connection_lost`."""
        connection.opened_at = self._loop.time()
        if not connection.is_closing():
            self._open.add(connection)

    def unanswered(self, connection: ClientConnection) -> None:
        if connection.idle_at is not None:
            now = self._loop.time()
            self._note_close(connection.origin, now - connection.idle_at, now)

    def lost(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        since = self._since.pop(connection, None)
        if since is not None:
            self._idle[connection.origin].remove(connection)
            self._note_idle_close(connection, since, self._loop.time())
        elif self._unused.get(connection.origin) is connection:
            del self._unused[connection.origin]
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

    def _note_idle_close(self, connection: ClientConnection, since: float, now: float) -> None:
        """The server has closed a connection that was idle."""
        if connection.idle_at is None or now - since >= _HASTY_S:
            self._note_close(connection.origin, now - since, now)

    def _note_close(self, origin: Origin, idle_s: float, now: float) -> None:
        """A server has closed a connection after it was idle for so long."""
        limit_s = 0.0 if idle_s < _HASTY_S else idle_s / 2
        if limit_s < _IDLE_S:
            known_s = self._limits[origin][0] if origin in self._limits else _IDLE_S
            self._limits[origin] = min(limit_s, known_s), now
            self._sweep_later()

    def _drop_oldest(self) -> None:
        if self._since:
            self._drop(next(iter(self._since)))
        else:
            self._drop_unused()

    def _drop_unused(self) -> None:
        self._unused.pop(next(iter(self._unused))).close()

    def _drop(self, connection: ClientConnection) -> None:
        self._idle[connection.origin].remove(connection)
        del self._since[connection]
        connection.close()

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and forget origins of which there is nothing to remember."""
        now = self._loop.time()
        for connection in [each for each, _ in takewhile(lambda idle: idle[1] <= now - _IDLE_S, self._since.items())]:
            self._drop(connection)
        while self._unused and next(iter(self._unused.values())).opened_at <= now - _UNUSED_S:
            self._drop_unused()
        self._idle = {origin: idle for origin, idle in self._idle.items() if idle}
        self._limits = {origin: limit for origin, limit in self._limits.items() if limit[1] > now - _HASTY_KEPT_S}
        self._sweeper = None
        if self._idle or self._limits or self._unused:
            self._sweep_later()

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._all_lost is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
