"""Tests of the fault harness's proxy, which stands between the relay and servers, on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.faults.harness.proxy import Proxy

BIG = bytes(range(256)) * 8_000


class Echo:
    """An echo server that records the bytes of each connection, and counts broken ones."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.broken = 0
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.heard)
        self.heard.append(b"")
        try:
            while chunk := await reader.read(65_536):
                self.heard[number] += chunk
                self.changed.set()
                writer.write(chunk)
                await writer.drain()
        except ConnectionError:
            self.broken += 1
        finally:
            self.ended.set()
            writer.close()

    async def until_heard(self, *expected: bytes) -> None:
        while self.heard != list(expected):
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def proxied(chance: float = 0.5) -> AsyncIterator[tuple[Proxy, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    proxy = Proxy("127.0.0.1", server.sockets[0].getsockname()[1], chance=lambda: chance)
    await proxy.start()
    try:
        async with asyncio.timeout(20):
            yield proxy, echo
    finally:
        await proxy.stop()
        server.close()
        await server.wait_closed()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, chunk: bytes) -> None:
        self.writer.write(chunk)
        await self.writer.drain()

    async def hear(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    async def is_cut(self) -> bool:
        """Whether the connection breaks, in the end, instead of being closed."""
        try:
            await self.reader.read()
        except ConnectionResetError:
            return True
        return False


@asynccontextmanager
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def test_it_passes_everything_and_the_end_of_each_side() -> None:
    async with proxied() as (proxy, echo), client(proxy) as one:
        saying = asyncio.create_task(one.say(BIG))
        assert await one.hear(len(BIG)) == BIG
        await saying
        one.writer.write_eof()
        assert await one.reader.read() == b""
        assert (echo.heard, echo.broken, proxy.accepted) == ([BIG], 0, 1)


async def test_latency_delays_each_chunk_and_keeps_their_order() -> None:
    async with proxied() as (proxy, _), client(proxy) as one:
        clock = asyncio.get_running_loop().time
        proxy.to_target.latency_s, proxy.to_client.latency_s = 0.05, 0.03
        began = clock()
        for n in range(10):
            await one.say(b"%d" % n)
        assert await one.hear(10) == b"0123456789"
        assert clock() - began >= 0.08  # a lower bound is certain, however slow the machine


async def test_a_black_hole_delivers_nothing_until_it_is_lifted_and_then_all() -> None:
    async with proxied() as (proxy, echo), client(proxy) as one:
        await one.say(b"before")
        assert await one.hear(6) == b"before"
        proxy.to_target.black_hole = True
        await one.say(b" held")
        async with client(proxy) as other:
            await other.say(b"accepted")
            await asyncio.sleep(0.05)  # nothing happens: there is no event to wait for
            assert echo.heard[0] == b"before"
            assert echo.heard[1:] in ([], [b""])
            proxy.restore()
            assert await one.hear(5) == b" held"
            assert await other.hear(8) == b"accepted"


async def test_a_black_hole_of_one_direction_lets_the_other_pass() -> None:
    async with proxied() as (proxy, echo), client(proxy) as one:
        proxy.to_client.black_hole = True
        await one.say(b"heard")
        await echo.until_heard(b"heard")
        proxy.to_client.black_hole = False
        assert await one.hear(5) == b"heard"


async def test_a_connection_is_cut_after_so_many_bytes() -> None:
    async with proxied() as (proxy, echo), client(proxy) as one:
        proxy.to_target.cut_after = 1_000
        await one.say(b"x" * 700)
        assert await one.hear(700) == b"x" * 700
        await one.say(b"x" * 700)
        assert await one.is_cut()
        await echo.ended.wait()
        assert (len(echo.heard[0]) <= 1_000, echo.broken) == (True, 1)


async def test_a_response_can_be_lost_although_the_request_arrived() -> None:
    async with proxied() as (proxy, echo), client(proxy) as one:
        proxy.to_client.cut_after = 0
        await one.say(b"request")
        assert await one.is_cut()
        assert echo.heard == [b"request"]


async def test_a_reset_breaks_both_sides_and_new_connections_are_welcome() -> None:
    async with proxied() as (proxy, echo):
        async with client(proxy) as one:
            await one.say(b"1")
            assert await one.hear(1) == b"1"
            proxy.reset()
            assert await one.is_cut()
            await echo.ended.wait()
            assert (echo.broken, proxy.connections) == (1, 0)
        async with client(proxy) as other:
            await other.say(b"2")
            assert await other.hear(1) == b"2"


async def test_a_reset_ends_connections_in_a_black_hole() -> None:
    async with proxied() as (proxy, _), client(proxy) as one:
        await one.say(b"1")
        assert await one.hear(1) == b"1"
        proxy.to_target.black_hole = True
        await one.say(b"2")
        proxy.reset()
        assert await one.is_cut()
        assert proxy.connections == 0


async def test_it_refuses_until_it_is_restored() -> None:
    async with proxied() as (proxy, echo):
        proxy.refuse = True
        async with client(proxy) as one:
            assert await one.is_cut()
        proxy.restore()
        async with client(proxy) as other:
            await other.say(b"2")
            assert await other.hear(1) == b"2"
        assert (echo.heard, proxy.accepted) == ([b"2"], 1)


async def test_half_closed_the_client_hears_no_more_but_is_heard() -> None:
    async with proxied() as (proxy, echo), client(proxy) as one:
        await one.say(b"1")
        assert await one.hear(1) == b"1"
        proxy.half_close()
        assert await one.reader.read() == b""
        await one.say(b"2")
        await echo.until_heard(b"12")
        one.writer.write_eof()
        await echo.ended.wait()
        assert echo.broken == 0


async def test_half_closed_the_target_hears_an_end() -> None:
    async with proxied() as (proxy, echo), client(proxy) as one:
        await one.say(b"1")
        assert await one.hear(1) == b"1"
        proxy.half_close("target")
        assert await one.reader.read() == b""  # the echo server ends, too
        assert (echo.heard, echo.broken) == ([b"1"], 0)


@pytest.mark.parametrize(("chance", "cut"), [(0.009, True), (0.01, False)])
async def test_a_chunk_is_the_last_by_chance(chance: float, cut: bool) -> None:
    async with proxied(chance=chance) as (proxy, echo), client(proxy) as one:
        proxy.to_target.cut_chance = 0.01
        await one.say(b"1")
        if cut:
            assert await one.is_cut()
            await echo.ended.wait()
            assert echo.broken == 1
        else:
            assert await one.hear(1) == b"1"


async def test_a_break_is_passed_on_and_so_is_a_target_that_is_not_there() -> None:
    async with proxied() as (proxy, echo):
        async with client(proxy) as one:
            await one.say(b"1")
            assert await one.hear(1) == b"1"
            one.writer.transport.abort()
        await echo.ended.wait()
    nowhere = Proxy("127.0.0.1", proxy.port)  # closed by now
    await nowhere.start()
    try:
        async with client(nowhere) as one:
            assert await one.is_cut()
    finally:
        await nowhere.stop()
