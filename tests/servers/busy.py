"""Makes a server busy with a script, so that it refuses commands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from redis.asyncio import Redis
from redis.exceptions import ResponseError


@asynccontextmanager
async def busy(url: str) -> AsyncIterator[None]:
    """The server at `url` runs a script during the block."""
    async with Redis.from_url(url) as stuck, Redis.from_url(url) as other:
        await other.config_set("lua-time-limit", "1")
        script = asyncio.ensure_future(stuck.eval("while true do end", 0))
        with suppress(ResponseError):
            while await other.ping():
                pass
        try:
            yield
        finally:
            await other.script_kill()
            with suppress(ResponseError):
                await script
