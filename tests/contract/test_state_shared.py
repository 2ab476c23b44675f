"""Tests of the connection that many callers share: order, failures in transit, and which caller gets which error. The
server is scripted."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import (
    AskError,
    ConnectionError,
    InvalidResponse,
    MovedError,
    OutOfMemoryError,
    ResponseError,
    TimeoutError,
)

from relay.domain.errors import StateUnavailable
from relay.state.redis.connection import factory_of
from relay.state.redis.shared import Connections, SharedConnection, unavailable

_INFO = b"run_id:1\r\nmaster_replid:2\r\nmaster_replid2:0\r\naof_enabled:0\r\n"
_WHO = (b"$%d\r\n%b\r\n" % (len(_INFO), _INFO)) * 3 + b"*2\r\n$11\r\nappendfsync\r\n$8\r\neverysec\r\n"


class Server:
    """Greets as Redis does. `batches`: what came in one read each, as words; `answer` says what to do with it."""

    def __init__(self, answer: Callable[["Server", list[bytes], asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.connections = 0
        self.batches: list[list[bytes]] = []
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while sent := await reader.read(1 << 16):
            lines = sent.split(b"\r\n")
            if b"appendfsync" in lines:
                writer.write(_WHO)
            elif b"SETINFO" in lines:
                writer.write(b"+OK\r\n" * lines.count(b"SETINFO"))
            else:
                words = [line[5:] for line in lines if line.startswith(b"call-")]
                self.batches.append(words)
                await self._answer(self, words, writer)
        writer.close()


async def echo(_server: Server, words: list[bytes], writer: asyncio.StreamWriter) -> None:
    writer.writelines(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


@asynccontextmanager
async def connected(server: Server, options: str = "?socket_timeout=30") -> AsyncIterator[Connections]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="sc-") as directory:
        path = str(Path(directory) / "s")
        listening = await asyncio.start_unix_server(server.serve, path)
        connections = Connections(factory_of(f"unix://{path}{options}").connected)
        try:
            yield connections
        finally:
            await connections.close()
            listening.close()
            await listening.wait_closed()


def call(word: bytes) -> Callable[[SharedConnection], Awaitable[object]]:
    async def work(shared: SharedConnection) -> object:
        (reply,) = await shared.exchange([[b"call-" + word]])
        return reply

    return work


async def test_calls_of_one_turn_go_out_together_and_each_gets_its_own_reply() -> None:
    server = Server(echo)
    async with connected(server) as connections:
        await connections.use(call(b"first"))
        words = [b"%d" % number for number in range(200)]
        assert await asyncio.gather(*(connections.use(call(word)) for word in words)) == words
    assert server.connections == 1
    assert server.batches == [[b"first"], words]


async def test_callers_that_come_while_it_connects_share_the_connection() -> None:
    server = Server(echo)
    async with connected(server) as connections:
        assert await asyncio.gather(*(connections.use(call(b"%d" % number)) for number in range(9)))
    assert server.connections == 1


async def test_a_connection_that_dies_with_replies_owed_is_left_and_every_call_repeated() -> None:
    async def dying(server: Server, words: list[bytes], writer: asyncio.StreamWriter) -> None:
        if server.connections == 1:
            await echo(server, words[:3], writer)
            writer.close()
        else:
            await echo(server, words, writer)

    server, words = Server(dying), [b"%d" % number for number in range(9)]
    async with connected(server) as connections:
        assert await asyncio.gather(*(connections.use(call(word)) for word in words)) == words
    assert server.connections == 2
    assert (
        sorted(word for batch in server.batches[1:] for word in batch) == words[3:]
    )  # those answered are not repeated


async def test_calls_are_unavailable_after_two_repeats() -> None:
    async def dead(_server: Server, _words: list[bytes], writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = Server(dead)
    async with connected(server) as connections:
        with pytest.raises(StateUnavailable):
            await connections.use(call(b"x"))
    assert server.batches == [[b"x"]] * 3


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ConnectionError("Error while reading from 127.0.0.1:6379 : (104, 'Connection reset by peer')"),
            "Redis: connection reset by peer: 127.0.0.1:6379",
        ),
        (
            OutOfMemoryError("command not allowed when used memory > 'maxmemory'. script: on @user_script:279."),
            "Redis: the server has reached maxmemory and refuses writes",
        ),
        (
            ResponseError("Not enough good replicas to write. script: on @user_script:269."),
            "Redis: Not enough good replicas to write.",
        ),
        (
            ResponseError(
                "ACL failure in script: User ci has no permissions to run the 'hset' command script: on @user_script:1."
            ),
            "Redis: User ci has no permissions to run the 'hset' command",
        ),
        (
            ResponseError("Wrong number of args calling command from script script: 1f0a, on @user_script:7."),
            "Redis: Wrong number of args calling command from script",
        ),
        (
            ConnectionError("Error UNKNOWN while writing to socket. Connection lost."),
            "Redis: the server has closed the connection, as it does at maxclients: connection lost",
        ),
        (
            ResponseError(
                "WRONGTYPE Operation against a key holding the wrong kind of value script: on @user_script:1."
            ),
            "Redis: WRONGTYPE Operation against a key holding the wrong kind of value"
            "; if another program has overwritten a key of the relay, delete it, and run `relay recover`",
        ),
        (
            ResponseError("user_script:83: attempt to perform arithmetic on a nil value script: on @user_script:83."),
            "Redis: user_script:83: attempt to perform arithmetic on a nil value"
            "; if another program has overwritten a key of the relay, delete it, and run `relay recover`",
        ),
        (
            ConnectionError("Connection closed by server."),
            "Redis: the server has closed the connection, as it does when it stops, or as one with TLS does at redis://",
        ),
        (
            ConnectionError("Error connecting to 127.0.0.1:6379."),
            "Redis: 127.0.0.1:6379 has closed the connection, as a server without TLS does at rediss://",
        ),
        (
            InvalidResponse("Protocol Error: b'HTTP/1.1 400 Bad Request'"),
            "Redis: another kind of server answers there: b'HTTP/1.1 400 Bad Request'",
        ),
        (
            TimeoutError("Timeout connecting to server"),
            "Redis: the server does not answer in time, as one without TLS does at rediss://",
        ),
        (AskError("4996 127.0.0.1:6381"), "Redis: slot 4996 is being moved to 127.0.0.1:6381"),
        (MovedError("4996 127.0.0.1:6381"), "Redis: slot 4996 has moved to 127.0.0.1:6381"),
    ],
)
def test_errors_of_the_client_library_are_worded_for_operators(error: Exception, words: str) -> None:
    assert str(unavailable(error)) == words


async def test_silence_is_unavailable_for_all_that_wait() -> None:
    async def silent(_server: Server, _words: list[bytes], _writer: asyncio.StreamWriter) -> None:
        return

    server = Server(silent)
    async with connected(server, "?socket_timeout=0.05") as connections:
        ends = await asyncio.gather(*(connections.use(call(b"%d" % one)) for one in range(5)), return_exceptions=True)
    assert [type(end) for end in ends] == [StateUnavailable] * 5


async def test_a_caller_that_gives_up_leaves_the_order_of_the_others() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(server: Server, words: list[bytes], writer: asyncio.StreamWriter) -> None:
        asked.set()
        await go_on.wait()
        await echo(server, words, writer)

    server = Server(slow)
    async with connected(server) as connections:
        calls = [asyncio.create_task(connections.use(call(word))) for word in (b"a", b"b", b"c")]
        await asked.wait()
        calls[1].cancel()
        go_on.set()
        assert [await calls[0], await calls[2]] == [b"a", b"c"]
        assert calls[1].cancelled()
        assert await connections.use(call(b"d")) == b"d"
    assert server.connections == 1


async def test_an_error_reply_is_told_to_its_caller_alone_and_the_connection_left() -> None:
    async def readonly(server: Server, words: list[bytes], writer: asyncio.StreamWriter) -> None:
        for word in words:
            if word == b"write":
                writer.write(b"-READONLY You can't write against a read only replica.\r\n")
            else:
                await echo(server, [word], writer)

    async def write(shared: SharedConnection) -> None:
        (reply,) = await shared.exchange([[b"call-write"]])
        assert isinstance(reply, Exception)
        raise reply

    server = Server(readonly)
    async with connected(server) as connections:
        await connections.use(call(b"first"))
        ends = await asyncio.gather(
            connections.use(call(b"a")), connections.use(write), connections.use(call(b"b")), return_exceptions=True
        )
        assert [ends[0], type(ends[1]), ends[2]] == [b"a", StateUnavailable, b"b"]
        assert await connections.use(call(b"c")) == b"c"
    assert server.connections == 2
