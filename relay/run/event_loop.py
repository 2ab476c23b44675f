"""Runs a command's coroutine: event loop and signals."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from relay.config.limits import check_descriptors, raise_descriptor_limit

T = TypeVar("T")


_THREADS = "64"
"""Half of them look up names. With the event loop's default of 4, two unresponsive name servers block all."""


def run_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` on the fast event loop, with as many file descriptors as the system grants.

    Raises UserError if those are too few, which the event loop and the embedded server would report in many lines.
    """
    check_descriptors(raise_descriptor_limit())
    os.environ.setdefault("UV_THREADPOOL_SIZE", _THREADS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


async def run_until_signalled(
    work: Callable[[asyncio.Event], Awaitable[None]],
    *,
    grace_s: float,
    hangup: Callable[[], None] | None = None,
    lifeline: int | None = None,
) -> None:
    """Run `work(stop)`. SIGTERM or SIGINT sets `stop`; a second one, or `grace_s` later, cancels `work`.

    Cancelling is safe by design: unfinished work is read again. SIGHUP calls `hangup`. `lifeline`: the reading end of a
    pipe that a parent holds open as long as it lives; its end acts like SIGTERM. Then a second signal does nothing: a
    service manager that signals all processes and the parent send two, and the parent kills those that are to hurry.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.ensure_future(work(stop))

    def on_signal() -> None:
        if not stop.is_set():
            stop.set()
            loop.call_later(grace_s, task.cancel)
        elif lifeline is None:
            task.cancel()

    def on_orphaned(pipe: int) -> None:
        loop.remove_reader(pipe)
        on_signal()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_signal)
    if hangup is not None:
        loop.add_signal_handler(signal.SIGHUP, hangup)
    if lifeline is not None:
        loop.add_reader(lifeline, on_orphaned, lifeline)
    try:
        await task
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
