"""Ending tasks for sure."""

import asyncio
from collections.abc import Iterable

RETRY_S = 0.1


async def end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel `tasks` until each has ended; what they raise is left in them.

    Once is not always enough: up to Python 3.11, `asyncio.wait_for` loses a cancellation that comes together with its
    result, and client libraries use it around each network call.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=RETRY_S)
