"""Closing a client of the Kafka library in bounded time, whatever its stop does."""

import asyncio
from collections.abc import Coroutine
from typing import Final

_UNWIND_S: Final = 1.0


async def ends_within(ending: Coroutine[object, object, object], timeout_s: float) -> bool:
    """Run `ending`, the stop of a client; True if it came to its end, well or badly, within `timeout_s`.

    aiokafka's stop() may hang while the broker is away, and may raise CancelledError without a cancellation. So it
    gets a task of its own: only a cancellation of the caller is raised.
    """
    task = asyncio.ensure_future(ending)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        await asyncio.wait({task}, timeout=_UNWIND_S)
    if task.done() and not task.cancelled():
        task.exception()  # seen: what a client says while it dies helps nobody
    return bool(done)
