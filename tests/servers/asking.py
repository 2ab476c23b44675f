"""Asks Valkey servers of a test, until they say what is awaited."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.asyncio import Redis

TIMEOUT_S: Final = 30.0


async def said(client: Redis, *words: str) -> Any:
    """The reply to a command."""
    return await client.execute_command(*words)  # type: ignore[no-untyped-call]


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Return when `look` finds it so. For what a server has no event for."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await look():
                return
            await asyncio.sleep(0.02)
