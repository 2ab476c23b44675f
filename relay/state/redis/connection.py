"""Redis connections that know the server run they are connected to."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError, ResponseError

from relay.domain.errors import UserError

Command = Sequence[bytes]

_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""Options of a rediss:// URL that name a file, which the client library would only open at each connection."""

_ENCODE: Final = "; percent-encode special characters of the password"

IDENTITY_COMMANDS: Final[Sequence[Command]] = (
    (b"INFO", b"server"),
    (b"INFO", b"replication"),
    (b"INFO", b"persistence"),
    (b"CONFIG", b"GET", b"appendfsync"),
)


def packed(commands: Iterable[Command]) -> list[bytes]:
    """`commands` in the wire protocol. redis-py's own `pack_commands` accepts any type, but is several times slower."""
    chunks = []
    for command in commands:
        chunks.append(b"*%d\r\n" % len(command))
        chunks += [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
    return chunks


class Node(NamedTuple):
    """A server run. `id`: its run and replication ids; another id means other memory.

    `durable`: it fsyncs on every write, and was never promoted from a replica. So acknowledged writes survive a
    restart, and it has loaded everything that the previous run acknowledged.
    """

    id: str
    durable: bool


def field(info: object, name: bytes) -> str:
    """A field of an INFO reply; "" if it is missing. Raises an error reply."""
    if isinstance(info, ResponseError):
        raise info
    for line in bytes(cast(bytes, info)).split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key == name:
            return value.decode()
    return ""


def unix_seconds(reply: object) -> float:
    """Unix seconds of a TIME reply. Raises an error reply."""
    if isinstance(reply, ResponseError):
        raise reply
    seconds, microseconds = cast(list[bytes], reply)
    return int(seconds) + int(microseconds) / 1e6


def identified(replies: Sequence[object]) -> Node:
    """The node with these replies to `IDENTITY_COMMANDS`. Raises a ResponseError among required replies, and
    ConnectionError for a replica.
    """
    server, replication, persistence, policy = replies
    if field(replication, b"role") == "slave":
        raise ConnectionError("the server is a replica, not a master")
    fsyncs = field(persistence, b"aof_enabled") == "1" and isinstance(policy, list) and policy[1:] == [b"always"]
    promoted = field(replication, b"master_replid2").strip("0") != ""
    node_id = f"{field(server, b'run_id')}:{field(replication, b'master_replid')}"
    return Node(node_id, fsyncs and not promoted)  # a forbidden CONFIG leaves it unknown: not durable


class IdentifiedConnection(AbstractConnection):
    """Reads the identity of the server first, each time it connects.

    A server run cannot change during a connection. So a script that gets the connection's node as argument, and finds
    the same node in the tag's `life` key, works on memory that was declared complete.
    """

    node = Node("", durable=False)

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        if self.is_connected:
            return
        await super().connect_check_health(check_health, retry_socket_connect)
        try:
            await self.send_packed_command(packed(IDENTITY_COMMANDS), check_health=False)
            self.node = identified([await self.read_reply() for _ in IDENTITY_COMMANDS])
        except BaseException:
            await self.disconnect(nowait=True)
            raise

    async def read_reply(self) -> object:
        """The next reply; an error reply is returned, so that none is left unread."""
        try:
            return await self.read_response()
        except ResponseError as error:
            return error


class _Tcp(IdentifiedConnection, Connection):
    pass


class _Tls(IdentifiedConnection, SSLConnection):
    pass


class _Unix(IdentifiedConnection, UnixDomainSocketConnection):
    async def on_connect(self) -> None:
        """Does nothing: `connect_check_health` does the handshake for every kind; a second one would hide its error."""


_KINDS = {Connection: _Tcp, SSLConnection: _Tls, UnixDomainSocketConnection: _Unix}


class ServerAddress(NamedTuple):
    host: str
    port: int


Connect = Callable[[], Awaitable[IdentifiedConnection]]
"""Opens a connection to the current server. Raises the client library's errors."""


class ConnectionFactory(NamedTuple):
    """Creates connections. `kind`: of transport. `options`: of redis-py's connections, from the URL."""

    kind: type[AbstractConnection]
    options: dict[str, Any]

    def with_options(self, **options: Any) -> "ConnectionFactory":
        return ConnectionFactory(self.kind, {**self.options, **options})

    def checked(self) -> "ConnectionFactory":
        """Itself. Raises UserError if no connection can have these options."""
        try:
            self.kind(**self.options)
        except TypeError as error:
            name = str(error).rpartition(" ")[2]
            advice = "; write rediss:// for TLS" if name.startswith("'ssl_") else ""
            raise UserError(f"Redis URL: it cannot have the option {name}{advice}") from error
        except RedisError as error:
            raise UserError(f"Redis URL: {error}") from error
        return self

    def without_options(self, *names: str) -> "ConnectionFactory":
        return ConnectionFactory(self.kind, {name: value for name, value in self.options.items() if name not in names})

    def plain(self, address: ServerAddress) -> AbstractConnection:
        """A connection that does not read the server's identity."""
        return self.kind(**{**self.options, **address._asdict()})

    async def connected(self, address: ServerAddress | None = None) -> IdentifiedConnection:
        """A connection to the server of the URL, or with the same options to another one."""
        elsewhere = address._asdict() if address else {}
        connection: IdentifiedConnection = _KINDS[self.kind](**{**self.options, **elsewhere})
        try:
            await connection.connect_check_health(retry_socket_connect=False)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


def factory_of(url: str) -> ConnectionFactory:
    """A factory of connections to the server at `url`. Raises UserError."""
    try:
        _check_parts(urlsplit(url))
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise UserError(f"Redis URL: {error}") from error
    for name in _TLS_FILES:
        if (path := options.get(name)) is not None and not Path(path).is_file():
            raise UserError(f"Redis URL: {name}={path}: there is no such file")
    defaults: dict[str, Any] = {"socket_timeout": 1, "socket_connect_timeout": 3}
    ours: dict[str, Any] = {
        "protocol": 2,  # push messages are not needed, and plain replies parse faster
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),  # retries are made elsewhere, where the connection's node is known
    }
    kind = options.pop("connection_class", Connection)
    for of_a_pool in ("max_connections", "timeout"):
        options.pop(of_a_pool, None)
    return ConnectionFactory(kind, {**defaults, **options, **ours})


def port_of(parts: SplitResult) -> int | None:
    """The port of a URL. Raises ValueError, which does not quote it: it may be the beginning of a password."""
    try:
        return parts.port
    except ValueError:
        raise ValueError(f"the port is no number up to 65535{_ENCODE}") from None


def _check_parts(parts: SplitResult) -> None:
    """Raises ValueError where the client library would guess."""
    port_of(parts)
    if parts.fragment:
        raise ValueError(f"it has a '#'{_ENCODE}")
    database = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and database and not database.isdecimal():
        raise ValueError(f"the part behind the host is no number of a database{_ENCODE}")
