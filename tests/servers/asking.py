"""Polls the Valkey servers of a test until they are in an awaited state."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis.asyncio import Redis

TIMEOUT_S: Final = 90.0


async def said(client: Redis, *words: str) -> Any:
    """The reply to a command."""
    return await client.execute_command(*words)  # type: ignore[no-untyped-call]


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """Return once `look` returns true. For states without an event."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await look():
                return
            await asyncio.sleep(0.02)
