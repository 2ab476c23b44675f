"""Connections that know which server run they lead to, and the one place where redis-py's exceptions are translated."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from redis.asyncio.connection import (
    AbstractConnection,
    BlockingConnectionPool,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from relay.domain.errors import StateUnavailable, UserError

T = TypeVar("T")
Command = tuple[str | bytes | int, ...]


class Node(NamedTuple):
    """A server run. `id`: its run and replication ids; another one means another memory.

    `durable`: it fsyncs on every write, and was never promoted from a replica. So what it acknowledges outlives it,
    and what it has read back is all that the run before it acknowledged.
    """

    id: str
    durable: bool


def _field(info: object, name: bytes) -> str:
    """A field of an INFO reply; "" where it has none. Raises what the server answered instead."""
    if isinstance(info, ResponseError):
        raise info
    for line in bytes(cast(bytes, info)).split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key == name:
            return value.decode()
    return ""


class IdentifiedConnection(AbstractConnection):
    """Asks for the identity of the server before anything else, each time it connects.

    A server run cannot change under an open connection. So a script that is told the connection's node, and finds
    the same one in the tag's `life` key, works on memory that was declared complete.
    """

    node = Node("", durable=False)

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        if self.is_connected:
            return
        await super().connect_check_health(check_health, retry_socket_connect)
        try:
            await self.identify()
        except BaseException:
            await self.disconnect(nowait=True)
            raise

    async def identify(self) -> None:
        """Set `node`. Needed again now and then: a replication id also changes when its backlog is freed."""
        server, replication, persistence, policy = await self.exchange(
            [("INFO", "server"), ("INFO", "replication"), ("INFO", "persistence"), ("CONFIG", "GET", "appendfsync")]
        )
        fsyncs = _field(persistence, b"aof_enabled") == "1" and isinstance(policy, list) and policy[1:] == [b"always"]
        promoted = _field(replication, b"master_replid2").strip("0") != ""
        node_id = f"{_field(server, b'run_id')}:{_field(replication, b'master_replid')}"
        self.node = Node(node_id, fsyncs and not promoted)  # a forbidden CONFIG leaves it unknown: not durable

    async def exchange(self, commands: Sequence[Command]) -> list[object]:
        """Send commands in one go; error replies are returned, so that none is left unread."""
        await self.send_packed_command(self.pack_commands(commands), check_health=False)
        replies: list[object] = []
        for _ in commands:
            try:
                replies.append(await self.read_response())
            except ResponseError as error:
                replies.append(error)
        return replies


class _Tcp(IdentifiedConnection, Connection):
    pass


class _Tls(IdentifiedConnection, SSLConnection):
    pass


class _Unix(IdentifiedConnection, UnixDomainSocketConnection):
    async def on_connect(self) -> None:
        """Nothing: `connect_check_health` shakes hands for every kind; doing it here too would hide why it failed."""


_KINDS = {None: _Tcp, SSLConnection: _Tls, UnixDomainSocketConnection: _Unix}


def _pool(url: str) -> BlockingConnectionPool:
    try:
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise UserError(f"Redis URL: {error}") from error
    defaults: dict[str, Any] = {
        "max_connections": 16,
        "timeout": 2,
        "socket_timeout": 1,
        "socket_connect_timeout": 3,
        "protocol": 2,  # nothing here needs pushes, and plain replies parse faster
        "retry": Retry(NoBackoff(), 0),  # repeats are made here, where the connection's node is known
    }
    return BlockingConnectionPool(
        **{**defaults, **options, "connection_class": _KINDS[options.get("connection_class")]}
    )


class Connections:
    """A pool of identified connections to one server."""

    def __init__(self, url: str) -> None:
        self._pool = _pool(url)
        self._retry = Retry(ExponentialWithJitterBackoff(), 2)

    async def use(self, work: Callable[[IdentifiedConnection], Awaitable[T]]) -> T:
        """`work` on a connection; repeated twice if that fails in transit, so it must be repeatable.

        Every exception of the client library becomes StateUnavailable.
        """
        try:
            return await self._retry.call_with_retry(lambda: self._once(work), _nothing_to_undo)
        except (RedisError, OSError) as error:
            raise StateUnavailable(f"Redis: {error or type(error).__name__}") from error

    async def _once(self, work: Callable[[IdentifiedConnection], Awaitable[T]]) -> T:
        connection = cast(IdentifiedConnection, await self._pool.get_connection())  # type: ignore[no-untyped-call]
        try:
            return await work(connection)
        except BaseException:
            # Replies may be unread, or the server demoted (READONLY): never hand this connection to anybody else.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self._pool.release(connection)

    async def eviction_policy(self) -> str:
        """`maxmemory-policy` of the server. Raises UserError where it lets us not in, or not see it."""
        try:
            return await self.use(_eviction_policy)
        except StateUnavailable as error:
            if isinstance(error.__cause__, AuthenticationError | NoPermissionError):
                raise UserError(f"{error}; see the user and password in the Redis URL, and the user's ACL") from error
            raise

    async def close(self) -> None:
        await self._pool.aclose()


async def _eviction_policy(connection: IdentifiedConnection) -> str:
    (memory,) = await connection.exchange([("INFO", "memory")])
    return _field(memory, b"maxmemory_policy")


async def _nothing_to_undo(_error: Exception) -> None:
    return
