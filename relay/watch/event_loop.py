"""Detects a blocked event loop: a blocking call, or an endless computation.

A blocked loop sends no heartbeats and cannot report its state. So a thread watches it, and logs the stack of the
blocking call. It ends the process once the blockage has lasted so long that the consumer groups will evict its members
anyway: a new process is better than one that can do nothing.
"""

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

BEAT_S: Final = 0.5
BLOCKED_S: Final = 2.0
_NEWEST_COUNTS: Final = 0.25
_FRAMES: Final = 30
_SAY_S: Final = 1.0

_log = get_logger("relay.event_loop")


class Blockage:
    """Evaluates beats of the loop, as the thread sees them at its own ticks. Pure; times are monotonic seconds.

    A process that was stopped, or got no CPU, has slept in all of its threads: only time through which the thread
    itself went on ticking counts against the loop.
    """

    def __init__(self, now: float) -> None:
        self._ticked_at = now
        self._beat: int | None = None
        self.lasts_s = 0.0
        """How long the loop has been blocked for certain."""

    def tick(self, beat: int, now: float) -> None:
        """Note the time of a beat of the watching thread. `beat`: the loop's iterations so far."""
        passed, self._ticked_at = min(now - self._ticked_at, 2 * BEAT_S), now
        self.lasts_s = self.lasts_s + passed if beat == self._beat else 0.0
        self._beat = beat


@dataclass(eq=False)
class LoopWatch:
    """Watches the loop that runs `run`. `exit_after_s`: after a blockage of this length, once `arm` was called, the
    process exits with code os.EX_SOFTWARE; None: it never exits, as under a debugger."""

    metrics: Metrics
    exit_after_s: float | None = None
    _: KW_ONLY
    end_process: Callable[[int], object] = os._exit
    late_s: float = 0.0
    """Moving average of the delay of the loop's timers."""
    _armed: bool = False
    _beat: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _loop_thread: int = 0
    _is_logged: bool = False
    """Whether the current blockage has been logged."""

    def arm(self) -> None:
        """This process has members in consumer groups from now on."""
        self._armed = True

    async def run(self) -> None:
        """Runs until cancelled."""
        self._loop_thread = threading.get_ident()
        context = copy_context()  # the log fields of this process
        threading.Thread(target=context.run, args=(self._watch,), name="loop-watch", daemon=True).start()
        try:
            while True:
                due = time.monotonic() + BEAT_S
                await asyncio.sleep(BEAT_S)
                self._beat += 1
                self._measured(max(0.0, time.monotonic() - due))
        finally:
            self._over.set()

    def _measured(self, lag_s: float) -> None:
        self.metrics.event_loop_lag_seconds.observe(lag_s)
        self.late_s += _NEWEST_COUNTS * (lag_s - self.late_s)
        if lag_s > BLOCKED_S and not self._is_logged:  # the whole process slept, or a library blocked the thread
            _log.warning("event_loop_late", lag_s=round(lag_s, 1))

    def _watch(self) -> None:
        blockage = Blockage(time.monotonic())
        while not self._over.wait(BEAT_S):
            blockage.tick(self._beat, time.monotonic())
            if self._armed and self.exit_after_s is not None and blockage.lasts_s > self.exit_after_s:
                self._log_blockage("event_loop_stuck", blockage.lasts_s)
                self.end_process(os.EX_SOFTWARE)
                return
            if blockage.lasts_s <= BLOCKED_S:
                self._is_logged = False
            elif not self._is_logged:
                self._is_logged = True
                self._log_blockage("event_loop_blocked", blockage.lasts_s)

    def _log_blockage(self, event: str, lasts_s: float) -> None:
        """In yet another thread: the loop may be blocked by the log's own pipe, if no process reads that."""
        stack = stack_of(self._loop_thread)
        say = _log.error if event == "event_loop_stuck" else _log.warning

        def write() -> None:
            say(event, lasts_s=round(lasts_s, 1), stack=stack)

        writer = threading.Thread(target=copy_context().run, args=(write,), daemon=True)
        writer.start()
        writer.join(_SAY_S)


def stack_of(thread: int) -> list[str]:
    """The stack of a thread, outermost call first: `file:line function: code`."""
    frame = sys._current_frames().get(thread)
    frames = traceback.extract_stack(frame, limit=None)[-_FRAMES:] if frame is not None else []
    return [f"{each.filename}:{each.lineno} {each.name}: {each.line}" for each in frames]
