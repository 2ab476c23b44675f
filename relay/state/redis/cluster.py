"""Redis Cluster: sends each hash tag's calls to the known master of its slot."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from redis.crc import key_slot
from redis.exceptions import ConnectionError, MovedError, RedisError, ResponseError

from relay.domain.errors import StateUnavailable
from relay.state.redis.connection import ConnectionFactory, IdentifiedConnection, ServerAddress
from relay.state.redis.shared import Ask, Connections, Part, SharedConnection, unavailable
from relay.state.rows import TAGS

T = TypeVar("T")

_SLOTS: Final = [key_slot(b"{%02d}" % tag) for tag in range(TAGS)]
"""By tag. The only braces in a key are those of its tag: prefixes have none."""
_MOVES: Final = 2
"""Maximum number of redirections (MOVED) that a call follows."""


class RedisCluster:
    """One shared connection to each master. An unavailable server affects only calls for its tags.

    A migrating slot is unavailable until the migration ends: its rows are on two servers, and no script could see all
    of them. On the new server the tag's memory counts as lost.
    """

    apart: Final = True
    replicated: Final = True

    def __init__(self, maker: ConnectionFactory, seeds: Iterable[ServerAddress]) -> None:
        self._maker = maker
        self._seeds = list(seeds)
        self._servers: dict[ServerAddress, Connections] = {}
        self._masters: dict[int, ServerAddress] = {}  # by tag
        self._looking: asyncio.Task[None] | None = None
        self._looks = 0

    async def ask(self, parts: Sequence[Part], ask: Ask) -> list[Any]:
        try:
            if not self._masters:
                await self._found()
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
        await self._found()
        masters = sorted(set(self._masters.values()))
        return {f"{host}:{port}": await self._server(ServerAddress(host, port)).use(work) for host, port in masters}

    async def connected(self) -> IdentifiedConnection:
        await self._found()
        return await self._maker.connected(random.choice(sorted(set(self._masters.values()))))

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
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
            self._look()
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
            connect = partial(self._maker.connected, address)
            server = self._servers[address] = Connections(connect, replicated=True)
        return server

    async def _found(self) -> None:
        """Wait until the masters of all slots are known. Raises StateUnavailable."""
        try:
            await asyncio.shield(self._look())
        except (RedisError, OSError) as error:
            raise unavailable(error) from error

    def _look(self) -> asyncio.Task[None]:
        """Refresh the masters in the background; calls to working servers continue meanwhile."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._learn())
            self._looking.add_done_callback(_retrieved)
        return self._looking

    async def _learn(self) -> None:
        known = list(dict.fromkeys([*self._masters.values(), *self._seeds]))
        self._looks += 1  # each refresh starts with another server, because one may be outdated or unavailable
        failure: Exception = ConnectionError("no address of the cluster is known")
        for place in range(len(known)):
            address = known[(place + self._looks) % len(known)]
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
