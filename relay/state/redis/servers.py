"""The state's Redis servers, by the form of the URL: a single server, Sentinel, or a cluster; and subscriptions to the
hints that they publish."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot
from redis.exceptions import ConnectionError, MovedError, RedisError, ResponseError

from relay.domain.errors import StateUnavailable, UserError
from relay.state.redis.connection import (
    ConnectionFactory,
    IdentifiedConnection,
    ServerAddress,
    factory_of,
    packed,
    port_of,
)
from relay.state.redis.shared import Ask, Connections, Part, SharedConnection, unavailable
from relay.state.rows import TAGS

T = TypeVar("T")

_FOR_SENTINELS: Final = {"username": "sentinel_username", "password": "sentinel_password"}
"""Options of a connection to a sentinel -> their names in the URL, whose main login is for the master."""

_SENTINEL_PORT: Final = 26_379
_SERVER_PORT: Final = 6_379
_SLOTS: Final = [key_slot(b"{%02d}" % tag) for tag in range(TAGS)]
"""Hash slots by tag. The only braces in a key are those of its tag: prefixes have none."""
_MOVES: Final = 2
"""Maximum number of redirections (MOVED) that a call follows."""

_SILENCE_S: Final = 300.0
"""After this long without any hint the connection is reopened, because a vanished peer is silent, too."""
_SUBSCRIBED_S: Final = 5.0


class Sentinels:
    """Finds the master chosen by Sentinel at each connection. `factory`: has the options for the master, and
    except for the login also those for the sentinels. `name`: of the master."""

    def __init__(self, factory: ConnectionFactory, sentinels: Iterable[ServerAddress], name: str) -> None:
        login = {option: factory.options.get(called) for option, called in _FOR_SENTINELS.items()}
        self._to_sentinel = factory.without_options("db", *_FOR_SENTINELS.values()).with_options(**login)
        self._to_master = factory.without_options(*_FOR_SENTINELS.values()).checked()
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
                master = await self._ask_sentinel(self._to_sentinel.plain(sentinel))
            except (RedisError, OSError) as error:
                failure = error
                continue
            if master is not None:
                return master
        raise failure

    async def _ask_sentinel(self, connection: AbstractConnection) -> ServerAddress | None:
        try:
            await connection.connect_check_health()
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
            reply = await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)
        return ServerAddress(reply[0].decode(), int(reply[1])) if reply else None


class RedisCluster:
    """One shared connection to each master. An unavailable server affects only calls for its tags.

    A migrating slot is unavailable until the migration ends: its rows are on two servers, and no script could see all
    of them. On the new server the tag's memory counts as lost.
    """

    apart: Final = True
    replicated: Final = True

    def __init__(self, factory: ConnectionFactory, seeds: Iterable[ServerAddress]) -> None:
        self._factory = factory
        self._seeds = list(seeds)
        self._servers: dict[ServerAddress, Connections] = {}
        self._masters: dict[int, ServerAddress] = {}  # by tag
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshes = 0

    async def ask(self, parts: Sequence[Part], ask: Ask) -> list[Any]:
        try:
            if not self._masters:
                await self._await_masters()
        except StateUnavailable as error:
            return [error] * len(parts)
        replies = await self._round(parts, range(len(parts)), ask)
        for _ in range(_MOVES):
            moved = [n for n, reply in replies.items() if isinstance(reply, MovedError)]
            if not moved:
                break
            replies |= await self._round(parts, moved, ask)
        in_order = (replies[n] for n in range(len(parts)))
        return [unavailable(reply) if isinstance(reply, RedisError) else reply for reply in in_order]

    async def each(self, work: Callable[[SharedConnection], Awaitable[T]]) -> Mapping[str, T]:
        await self._await_masters()
        masters = sorted(set(self._masters.values()))
        return {f"{host}:{port}": await self._server(ServerAddress(host, port)).use(work) for host, port in masters}

    async def connected(self) -> IdentifiedConnection:
        await self._await_masters()
        return await self._factory.connected(random.choice(sorted(set(self._masters.values()))))

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        for server in self._servers.values():
            await server.close()

    async def _round(self, parts: Sequence[Part], numbers: Iterable[int], ask: Ask) -> dict[int, Any]:
        """Call each tag's server once for these parts, concurrently; replies by index."""
        of_servers: dict[ServerAddress, list[int]] = {}
        replies: dict[int, Any] = {}
        for n in numbers:
            tag, _ = parts[n]
            if tag in self._masters:
                of_servers.setdefault(self._masters[tag], []).append(n)
            else:
                replies[n] = StateUnavailable(f"Redis: no server of the cluster serves slot {_SLOTS[tag]}")
        async with asyncio.TaskGroup() as tasks:
            asked = [
                (of_server, tasks.create_task(self._from(address, [parts[n] for n in of_server], ask)))
                for address, of_server in of_servers.items()
            ]
        for of_server, each in asked:
            replies.update(zip(of_server, each.result(), strict=True))
        if any(isinstance(reply, Exception) for reply in replies.values()):
            self._refresh()
        return replies

    async def _from(self, address: ServerAddress, parts: Sequence[Part], ask: Ask) -> list[Any]:
        try:
            replies = await ask(self._server(address), parts)
        except StateUnavailable as error:
            return [error] * len(parts)
        for (tag, _), reply in zip(parts, replies, strict=True):
            if isinstance(reply, MovedError):
                self._masters[tag] = ServerAddress(reply.host or address.host, reply.port)
        return replies

    def _server(self, address: ServerAddress) -> Connections:
        server = self._servers.get(address)
        if server is None:
            connect = partial(self._factory.connected, address)
            server = self._servers[address] = Connections(connect, replicated=True)
        return server

    async def _await_masters(self) -> None:
        """Wait until the masters of all slots are known. Raises StateUnavailable."""
        try:
            await asyncio.shield(self._refresh())
        except (RedisError, OSError) as error:
            raise unavailable(error) from error

    def _refresh(self) -> asyncio.Task[None]:
        """Refresh the masters in the background; calls to working servers continue meanwhile."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._read_masters())
            self._refreshing.add_done_callback(_retrieved)
        return self._refreshing

    async def _read_masters(self) -> None:
        known = list(dict.fromkeys([*self._masters.values(), *self._seeds]))
        self._refreshes += 1  # each refresh starts with another server, because one may be outdated or unavailable
        failure: Exception = ConnectionError("no address of the cluster is known")
        for place in range(len(known)):
            address = known[(place + self._refreshes) % len(known)]
            try:
                self._masters = dict(_masters(await self._server(address).once(_slots), address))
            except (RedisError, OSError) as error:
                failure = error
            else:
                return
        raise failure


def _retrieved(looking: asyncio.Task[None]) -> None:
    """Retrieve the task's exception, because no task may be waiting for it."""
    if not looking.cancelled():
        looking.exception()


async def _slots(shared: SharedConnection) -> list[list[Any]]:
    (reply,) = await shared.exchange([(b"CLUSTER", b"SLOTS")])
    if isinstance(reply, ResponseError):
        raise reply
    return cast(list[list[Any]], reply)


def _masters(slots: list[list[Any]], asked: ServerAddress) -> Iterator[tuple[int, ServerAddress]]:
    """The master of each tag, from CLUSTER SLOTS: {first, last, {host, port, ...} of the master, ... of replicas}, ...

    An empty host means the server that replied.
    """
    for tag, slot in enumerate(_SLOTS):
        for first, last, (host, port, *_), *_ in slots:
            if first <= slot <= last:
                yield tag, ServerAddress(host.decode() if host else asked.host, port)


_FORMS: Final = {
    "sentinel": "redis+sentinel://user:password@host1:26379,host2:26379/<name of the master>/0",
    "cluster": "redis+cluster://user:password@host1:6379,host2:6379",
}


class Servers(Protocol):
    """The Redis servers that have the state: one, a cluster, or one behind sentinels. `apart`: each tag needs its own
    call. `replicated`: a replica may take over for a server."""

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
        return Connections(factory_of(url).checked().connected)
    group = _group_of(url, security, kind)
    if kind == "cluster":
        if group.path not in ("", "/", "/0"):
            raise UserError(f"Redis URL: a cluster has only one database; write {_FORMS[kind]}")
        return RedisCluster(group.factory.checked(), group.addresses)
    name, _, db = group.path.removeprefix("/").partition("/")
    if not name or not (db or "0").isdecimal():
        raise UserError(f"Redis URL: it has to name the master; write {_FORMS[kind]}")
    factory = group.factory.with_options(db=int(db or 0))
    return Connections(Sentinels(factory, group.addresses, unquote(name)).connected, replicated=True)


class _ServerGroup(NamedTuple):
    """A parsed URL with several hosts. `factory`: connects to any of them."""

    factory: ConnectionFactory
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
    return _ServerGroup(factory_of(plain.geturl()), addresses, parts.path)


def _address(host: str, default_port: int) -> ServerAddress:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return ServerAddress(parts.hostname, port_of(parts) or default_port)


# Hints: deliveries that have ended and that a client's request waits for, and endpoints that may be tried again. A
# script publishes on a channel of its hash tag; in a cluster all servers forward it, so one can subscribe on any. A
# hint without a subscriber is lost.


@asynccontextmanager
async def hints(servers: Servers, channels: Sequence[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """The messages on `channels` from now on. Raises StateUnavailable, also while iterating."""
    try:
        async with asyncio.timeout(_SUBSCRIBED_S):
            connection = await servers.connected()
    except (RedisError, OSError) as error:
        raise unavailable(error) from error
    connection.socket_timeout = None  # silence is no error here
    try:
        await _subscribe(connection, channels)
        yield _messages(connection)
    except (RedisError, OSError) as error:
        raise unavailable(error) from error
    finally:
        await connection.disconnect(nowait=True)


async def _subscribe(connection: IdentifiedConnection, channels: Sequence[bytes]) -> None:
    async with asyncio.timeout(_SUBSCRIBED_S):
        await connection.send_packed_command(packed([(b"SUBSCRIBE", *channels)]), check_health=False)
        for _ in channels:
            reply = await connection.read_reply()
            if isinstance(reply, ResponseError):  # an ACL may allow no channels
                raise reply


async def _messages(connection: IdentifiedConnection) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(_SILENCE_S):
                reply = await connection.read_reply()
        except TimeoutError as error:
            raise unavailable(ConnectionError("no hint was received for a long time")) from error
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        kind, _, data = cast(list[bytes], reply)
        if kind == b"message":
            yield data
