"""The server, or servers, that hold the state: what Redis URLs there are, and who is asked about a hash tag."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from relay.domain.errors import UserError
from relay.state.redis.cluster import RedisCluster
from relay.state.redis.connection import ConnectionFactory, IdentifiedConnection, ServerAddress, maker_of
from relay.state.redis.sentinel import Sentinels
from relay.state.redis.shared import Ask, Connections, Part, SharedConnection

T = TypeVar("T")

_SENTINEL_PORT: Final = 26_379
_SERVER_PORT: Final = 6_379
_FORMS: Final = {
    "sentinel": "redis+sentinel://user:password@host1:26379,host2:26379/<name of the master>/0",
    "cluster": "redis+cluster://user:password@host1:6379,host2:6379",
}


class Servers(Protocol):
    """`apart`: each tag needs a call of its own. `replicated`: a replica may stand in for a server."""

    @property
    def apart(self) -> bool: ...

    @property
    def replicated(self) -> bool: ...

    async def ask(self, parts: Sequence[Part], ask: Ask) -> list[Any]:
        """A reply for each part, in their order; StateUnavailable in its place where a server did not answer."""
        ...

    async def each(self, work: Callable[[SharedConnection], Awaitable[T]]) -> Mapping[str, T]:
        """`work` on each server that holds something of ours, by its name ("" for the only one)."""
        ...

    async def connected(self) -> IdentifiedConnection:
        """A connection of the caller's own, to one that hears what any of them publishes. Raises StateUnavailable, or
        the client library's errors."""
        ...

    async def close(self) -> None: ...


def servers_of(url: str) -> Servers:
    """redis://, rediss://, unix://; and, with several hosts, redis+sentinel://, redis+cluster:// and the same with TLS,
    rediss+...://. Nothing is connected yet. Raises UserError."""
    scheme, _, _ = url.partition("://")
    security, _, kind = scheme.partition("+")
    if kind not in _FORMS or security not in ("redis", "rediss"):
        return Connections(maker_of(url).connected)
    group = _group_of(url, security, kind)
    if kind == "cluster":
        if group.path not in ("", "/", "/0"):
            raise UserError(f"Redis URL: a cluster has one database only; write {_FORMS[kind]}")
        return RedisCluster(group.maker, group.addresses)
    name, _, db = group.path.removeprefix("/").partition("/")
    if not name or not (db or "0").isdecimal():
        raise UserError(f"Redis URL: it has to name the master; write {_FORMS[kind]}")
    maker = group.maker.with_options(db=int(db or 0))
    return Connections(Sentinels(maker, group.addresses, unquote(name)).connected, replicated=True)


class _ServerGroup(NamedTuple):
    """What a URL of several hosts says. `maker`: how to connect to any of them."""

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
