"""The clients with event loops, threads and processes: one that is closed, forked, or used in several loops."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiohttp import web

from relay.client import AsyncRelay, ClientError, Relay
from relay.client.call import Loop, iterated

LONG_S = 60.0
FORKS = """
import os
from relay.client import Relay

relay = Relay({url!r})
relay.version()
child = os.fork()
if not child:
    print(relay.version().version, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(relay.version().version)
"""


@pytest.fixture
def url() -> Iterator[str]:
    """An API in a thread of its own, whose `/slow` does not answer."""
    urls, stop, started = list[str](), asyncio.Event(), threading.Event()
    loop = asyncio.new_event_loop()

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await asyncio.Event().wait()
        response = web.json_response({"name": "relay", "version": "1"})
        response.force_close()  # a connection of a loop that has ended is left to the garbage collector
        return response

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        await stop.wait()
        await runner.cleanup()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(LONG_S)
    yield urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(LONG_S)


def test_a_client_may_be_used_in_one_loop_after_the_other(url: str) -> None:
    relay = AsyncRelay(url)

    async def ask() -> str:
        return (await relay.version()).version

    assert [asyncio.run(ask()), asyncio.run(ask())] == ["1", "1"]
    asyncio.run(relay.close())


def test_a_client_may_be_used_in_two_loops_at_a_time(url: str) -> None:
    relay, both = AsyncRelay(url), threading.Barrier(2, timeout=LONG_S)

    async def ask() -> str:
        await relay.version()
        both.wait()
        return (await relay.version()).version

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: asyncio.run(ask()), range(2))) == ["1", "1"]
    asyncio.run(relay.close())


def test_a_blocking_client_takes_headers_before_its_first_request(url: str) -> None:
    with Relay(url) as relay:
        assert relay.with_headers({"x-team": "core"}).version().version == "1"


def test_a_call_under_way_ends_when_its_client_is_closed(url: str) -> None:
    relay = Relay(url)
    relay.version()
    with ThreadPoolExecutor(1) as threads:
        under_way = threads.submit(relay.call, "GET", "/slow")
        with pytest.raises(TimeoutError):
            under_way.result(0.3)
        relay.close()
        with pytest.raises(ClientError, match=r"^the client is closed$"):
            under_way.result(LONG_S)


def test_a_callback_that_calls_its_own_client_gets_an_error_and_does_not_hang(url: str) -> None:
    async def items(relay: Relay) -> AsyncIterator[str]:
        yield relay.version().version

    with Relay(url) as relay:
        relay.version()
        with pytest.raises(ClientError, match="from a callback of its own"):
            next(iterated(relay._own_loop, items(relay)))
        assert relay.version().version == "1"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_blocking_client_works_in_a_forked_process(url: str) -> None:
    program = [sys.executable, "-W", "ignore", "-c", FORKS.format(url=url)]
    done = subprocess.run(program, capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"1\n1\n", b"", 0)


def test_an_iterator_that_is_collected_in_the_thread_of_the_loop_blocks_nothing() -> None:
    closed = threading.Event()

    async def items() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    async def nothing() -> None:
        return

    async def collect() -> None:
        gc.collect()

    loop = Loop(nothing)
    left: list[object] = [iterated(loop, items())]
    next(left[0])  # type: ignore[call-overload]
    left.append(left)  # only the garbage collector frees it
    gc.disable()
    del left
    try:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(loop.run, collect()).result(LONG_S)
        assert closed.wait(LONG_S)
    finally:
        gc.enable()
        loop.close()
