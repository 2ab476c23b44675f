"""Connections shared by many tasks, with pipelining; translates redis-py's exceptions."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError

from relay.domain.errors import StateUnavailable
from relay.domain.redis_errors import plain
from relay.state.redis.connection import IDENTITY_COMMANDS, Command, Connect, IdentifiedConnection, identified, packed

T = TypeVar("T")
Part = tuple[int, bytes]
"""(hash tag, script arguments for it). A call may have several parts of one tag, which are processed in order."""
Ask = Callable[["Connections", Sequence[Part]], Awaitable[list[Any]]]
"""Calls one server; returns a reply for each part, in order."""

_CHECKS_PER_TIMEOUT = 4


class _Exchange:
    """Commands of one task, until all have replies. `done` has no value: the replies are in `replies`."""

    __slots__ = ("done", "missing", "replies")

    def __init__(self, commands: int, loop: asyncio.AbstractEventLoop) -> None:
        self.missing = commands
        self.replies: list[object] = []
        self.done: asyncio.Future[None] = loop.create_future()


class SharedConnection:
    """Sends the commands of all tasks in one iteration of the event loop with one write; replies arrive in order.

    It ends with its first failure, which fails every exchange in progress: unread replies would be assigned to later
    commands. `connection` is connected, and owned by this object from now on.
    """

    def __init__(self, connection: IdentifiedConnection) -> None:
        self.node = connection.node
        self._connection = connection
        self._timeout_s: float = connection.socket_timeout or float("inf")
        connection.socket_timeout = None  # `_watch` checks it instead, for all exchanges together
        self._unsent: list[bytes] = []
        self._queued = asyncio.Event()
        self._unread: deque[_Exchange] = deque()
        self._waiting_since = 0.0
        self._retired = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def usable(self) -> bool:
        """Whether it accepts new exchanges."""
        return not self._retired

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def exchange(self, commands: Sequence[Command]) -> list[object]:
        """The replies to `commands`, including error replies. Raises redis-py's ConnectionError if the connection
        ends."""
        if self._retired:
            raise ConnectionError("the connection has ended")
        exchange = _Exchange(len(commands), self._loop)
        if not self._unread:
            self._waiting_since = self._loop.time()
        self._unread.append(exchange)
        self._unsent += packed(commands)
        self._queued.set()
        await exchange.done
        return exchange.replies

    async def identify(self) -> None:
        """Read `node` again: a replication id also changes when its backlog is freed. Leaves a demoted server."""
        try:
            self.node = identified(await self.exchange(IDENTITY_COMMANDS))
        except ConnectionError:
            self.retire()
            raise

    def retire(self) -> None:
        """Accept no new exchanges; end once those in progress are complete."""
        self._retired = True
        if not self._unread:
            self._task.cancel()

    async def close(self) -> None:
        """End now; exchanges in progress fail."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        reason: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                tasks.create_task(self._read())
                tasks.create_task(self._watch())
        except* (RedisError, OSError) as group:
            reason = group.exceptions[0]
        finally:
            self._retired = True
            self._fail(reason)
            await self._connection.disconnect(nowait=True)

    def _fail(self, reason: BaseException | None) -> None:
        for exchange in self._unread:
            if not exchange.done.done():
                error = ConnectionError(f"{reason or 'the connection was closed'}")
                error.__cause__ = reason
                exchange.done.set_exception(error)
        self._unread.clear()

    async def _write(self) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            if not self._connection.is_connected:  # sending would reconnect and mix up the replies
                raise ConnectionError("the connection was lost")
            chunks, self._unsent = self._unsent, []
            await self._connection.send_packed_command(chunks, check_health=False)

    async def _read(self) -> None:
        clock = self._loop.time
        while not (self._retired and not self._unread):
            reply = await self._connection.read_reply()
            if not self._unread:
                raise ConnectionError("an unexpected reply")
            self._waiting_since = clock()
            exchange = self._unread[0]
            exchange.replies.append(reply)
            exchange.missing -= 1
            if exchange.missing == 0:
                self._unread.popleft()
                if not exchange.done.done():
                    exchange.done.set_result(None)
        raise ConnectionError("the connection was retired")

    async def _watch(self) -> None:
        """Fail the connection if the server owes replies and is silent for the timeout."""
        clock = self._loop.time
        while True:
            await asyncio.sleep(min(self._timeout_s / _CHECKS_PER_TIMEOUT, 60))
            if self._unread and clock() - self._waiting_since > self._timeout_s:
                raise TimeoutError(f"no reply within {self._timeout_s:g} s")


def unavailable(error: Exception) -> StateUnavailable:
    """The error for callers, translated from the client library's `error`."""
    translated = StateUnavailable(f"Redis: {plain(error)}")
    translated.__cause__ = error
    return translated


class Connections:
    """The shared connection to one server, reopened whenever it has ended. One call can have any number of tags.

    `replicated`: a replica may take over for the server of `connect`.
    """

    apart: Final = False

    def __init__(self, connect: Connect, *, replicated: bool = False) -> None:
        self.replicated = replicated
        self._connect = connect
        self._retry = Retry(ExponentialWithJitterBackoff(), 2)
        self._shared: SharedConnection | None = None
        self._opening: asyncio.Task[SharedConnection] | None = None
        self._living: set[SharedConnection] = set()

    async def ask(self, parts: Sequence[Part], ask: Ask) -> list[Any]:
        try:
            return await ask(self, parts)
        except StateUnavailable as error:
            return [error] * len(parts)

    async def each(self, work: Callable[[SharedConnection], Awaitable[T]]) -> Mapping[str, T]:
        return {"": await self.use(work)}

    async def connected(self) -> IdentifiedConnection:
        """A new connection to the server, not shared. Raises the client library's errors."""
        return await self._connect()

    async def use(self, work: Callable[[SharedConnection], Awaitable[T]]) -> T:
        """Run `work` on the connection, with up to two retries after connection errors, so it must be repeatable.

        Every exception of the client library becomes StateUnavailable.
        """
        try:
            return await self._retry.call_with_retry(lambda: self.once(work), _nothing_to_undo)
        except (RedisError, OSError) as error:
            raise unavailable(error) from error

    async def once(self, work: Callable[[SharedConnection], Awaitable[T]]) -> T:
        """Run `work` on the connection, without retries. Raises the client library's errors."""
        shared = self._shared
        if shared is None or not shared.usable:
            shared = await self._opened()
        try:
            return await work(shared)
        except ResponseError:
            shared.retire()  # the server may have been demoted (READONLY), so reconnect
            raise

    async def _opened(self) -> SharedConnection:
        """The connection, opened once for all waiting tasks, which share its failure."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opening_ended)
        return await asyncio.shield(self._opening)

    def _opening_ended(self, opening: asyncio.Task[SharedConnection]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._shared = opening.result()
            self._living = {one for one in self._living if not one.ended} | {self._shared}

    async def _open(self) -> SharedConnection:
        return SharedConnection(await self._connect())

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for shared in self._living:
            await shared.close()


async def _nothing_to_undo(_error: Exception) -> None:
    return
