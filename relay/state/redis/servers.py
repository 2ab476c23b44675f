"""The state's Redis servers, by the form of the URL: a single server, Sentinel, or a cluster."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, RedisError

from relay.domain.errors import UserError
from relay.state.redis.cluster import RedisCluster
from relay.state.redis.connection import ConnectionFactory, IdentifiedConnection, ServerAddress, maker_of
from relay.state.redis.shared import Ask, Connections, Part, SharedConnection

_FOR_SENTINELS: Final = {"username": "sentinel_username", "password": "sentinel_password"}
"""Options of a connection to a sentinel -> their names in the URL, whose main login is for the master."""


class Sentinels:
    """Finds the master chosen by Sentinel at each connection. `maker`: options for the master, and except for the login
    also for the sentinels. `name`: of the master."""

    def __init__(self, maker: ConnectionFactory, sentinels: Iterable[ServerAddress], name: str) -> None:
        login = {option: maker.options.get(called) for option, called in _FOR_SENTINELS.items()}
        self._to_sentinel = maker.without_options("db", *_FOR_SENTINELS.values()).with_options(**login)
        self._to_master = maker.without_options(*_FOR_SENTINELS.values())
        self._sentinels = deque(sentinels)
        self._name = name

    async def connected(self) -> IdentifiedConnection:
        """A connection to the master. Raises the library's errors, and ConnectionError if it has become a replica."""
        return await self._to_master.connected(await self._master())

    async def _master(self) -> ServerAddress:
        failure: Exception = ConnectionError(f"no sentinel knows a master called {self._name}")
        for sentinel in list(self._sentinels):
            self._sentinels.rotate(-1)  # the next query starts with another one, because this one may be outdated
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


T = TypeVar("T")

_SENTINEL_PORT: Final = 26_379
_SERVER_PORT: Final = 6_379
_FORMS: Final = {
    "sentinel": "redis+sentinel://user:password@host1:26379,host2:26379/<name of the master>/0",
    "cluster": "redis+cluster://user:password@host1:6379,host2:6379",
}


class Servers(Protocol):
    """`apart`: each tag needs its own call. `replicated`: a replica may take over for a server."""

    @property
    def apart(self) -> bool: ...

    @property
    def replicated(self) -> bool: ...

    async def ask(self, parts: Sequence[Part], ask: Ask) -> list[Any]:
        """A reply for each part, in order; StateUnavailable instead if a server did not answer."""
        ...

    async def each(self, work: Callable[[SharedConnection], Awaitable[T]]) -> Mapping[str, T]:
        """Run `work` on each server with our data; results by server name ("" for the only one)."""
        ...

    async def connected(self) -> IdentifiedConnection:
        """A new connection for the caller, to a server that receives published messages of all. Raises
        StateUnavailable, or the client library's errors."""
        ...

    async def close(self) -> None: ...


def servers_of(url: str) -> Servers:
    """The servers of a URL: redis://, rediss://, unix://, or with several hosts redis+sentinel://, redis+cluster://, or
    with TLS rediss+...://. Does not connect yet. Raises UserError."""
    scheme, _, _ = url.partition("://")
    security, _, kind = scheme.partition("+")
    if kind not in _FORMS or security not in ("redis", "rediss"):
        return Connections(maker_of(url).connected)
    group = _group_of(url, security, kind)
    if kind == "cluster":
        if group.path not in ("", "/", "/0"):
            raise UserError(f"Redis URL: a cluster has only one database; write {_FORMS[kind]}")
        return RedisCluster(group.maker, group.addresses)
    name, _, db = group.path.removeprefix("/").partition("/")
    if not name or not (db or "0").isdecimal():
        raise UserError(f"Redis URL: it has to name the master; write {_FORMS[kind]}")
    maker = group.maker.with_options(db=int(db or 0))
    return Connections(Sentinels(maker, group.addresses, unquote(name)).connected, replicated=True)


class _ServerGroup(NamedTuple):
    """A parsed URL with several hosts. `maker`: connects to any of them."""

    maker: ConnectionFactory
    addresses: list[ServerAddress]
    path: str


def _group_of(url: str, security: str, kind: str) -> _ServerGroup:
    try:
        parts = urlsplit(url)
        login, at, hosts = parts.netloc.rpartition("@")
        addresses = [
            _address(host, _SENTINEL_PORT if kind == "sentinel" else _SERVER_PORT) for host in hosts.split(",")
        ]
    except ValueError as error:
        raise UserError(f"Redis URL: {error}; write {_FORMS[kind]}") from error
    plain = SplitResult(security, f"{login}{at}{hosts.partition(',')[0]}", "", parts.query, "")
    return _ServerGroup(maker_of(plain.geturl()), addresses, parts.path)


def _address(host: str, default_port: int) -> ServerAddress:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return ServerAddress(parts.hostname, parts.port or default_port)
