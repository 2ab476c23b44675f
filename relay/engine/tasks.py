"""Ending tasks for sure, and only those that are meant to end."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")

RETRY_S = 0.1


class CallCancelled(Exception):
    """What was awaited was cancelled by somebody else than whoever ends this task."""


async def never_in_silence(work: Awaitable[T]) -> T:
    """The result of `work`. Raises CallCancelled where a library lets a CancelledError out that is none of ours: a task
    that ends so looks as if it had been told to, and nobody hears of it."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallCancelled("a call was cancelled, and nobody has told its task to end") from error


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
