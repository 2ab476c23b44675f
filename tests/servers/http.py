"""HTTP servers of a test, in its own process: each listens on a free port during an `async with` block."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from relay.sink.server import LocalServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(served: web.Application | Handler) -> AsyncIterator[str]:
    """The URL, without a slash at its end, of an application, or of a handler of all requests."""
    if isinstance(served, web.Application):
        app = served
    else:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", served)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def started(*servers: LocalServer) -> AsyncIterator[None]:
    """Sinks and other servers, until the end of the block."""
    async with AsyncExitStack() as stack:
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        yield
