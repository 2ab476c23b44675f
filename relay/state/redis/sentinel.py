"""Finds the master that Sentinel has chosen, each time a connection is made."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, RedisError

from relay.state.redis.connection import ConnectionFactory, IdentifiedConnection, ServerAddress

_FOR_SENTINELS: Final = {"username": "sentinel_username", "password": "sentinel_password"}
"""Options of a connection to a sentinel, and what the URL calls them: its own login is for the master."""


class Sentinels:
    """`maker`: connects to the master; to the sentinels likewise, but for the login. `name`: of the master."""

    def __init__(self, maker: ConnectionFactory, sentinels: Iterable[ServerAddress], name: str) -> None:
        login = {option: maker.options.get(called) for option, called in _FOR_SENTINELS.items()}
        self._to_sentinel = maker.without_options("db", *_FOR_SENTINELS.values()).with_options(**login)
        self._to_master = maker.without_options(*_FOR_SENTINELS.values())
        self._sentinels = deque(sentinels)
        self._name = name

    async def connected(self) -> IdentifiedConnection:
        """A connection to the master. Raises ConnectionError where it is a replica by now, as all the library's."""
        return await self._to_master.connected(await self._master())

    async def _master(self) -> ServerAddress:
        failure: Exception = ConnectionError(f"no sentinel knows a master called {self._name}")
        for sentinel in list(self._sentinels):
            self._sentinels.rotate(-1)  # the next look begins with another one: this may be behind the rest
            try:
                master = await self._asked(self._to_sentinel.plain(sentinel))
            except (RedisError, OSError) as error:
                failure = error
                continue
            if master is not None:
                return master
        raise failure

    async def _asked(self, connection: AbstractConnection) -> ServerAddress | None:
        try:
            await connection.connect_check_health()
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
            reply = await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)
        return ServerAddress(reply[0].decode(), int(reply[1])) if reply else None
