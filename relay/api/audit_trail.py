"""Puts lines of the audit on the topic `audit`, and into the log of the process in any case.

A line is written after the action, so it cannot undo the action: while the log is away, a request that was carried out
is still answered as such, after a bounded wait, and its line follows when the log is back. If the process ends before
that, the line is in its own log only.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from aiohttp import web

from relay.domain.audit import AuditLine, encode_line
from relay.domain.errors import LogUnavailable, RecordTooLarge
from relay.engine.supervision import end
from relay.log.port import Log, NewRecord
from relay.telemetry.logging import get_logger

PATIENCE_S: Final = 2.0
"""For which an answer waits for its line to be on the log."""
AGAIN_S: Final = 1.0
MOST_WAITING: Final = 1_000
"""Lines that wait for the log; beyond these, a line is in the log of the process alone."""
_AT_ONCE: Final = 100

_log = get_logger("relay.audit")


class AuditTrail:
    """One per process. After an append that failed half way, a line may be on the topic twice, with the same id."""

    def __init__(self, log: Log, topic: str, patience_s: float = PATIENCE_S, again_s: float = AGAIN_S) -> None:
        self._log = log
        self._topic = topic
        self._patience_s = patience_s
        self._again_s = again_s
        self._waiting: deque[tuple[AuditLine, asyncio.Event]] = deque()
        self._wake = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def start(self, _app: web.Application | None = None) -> None:
        self._writing = asyncio.create_task(self._write())

    async def close(self, _app: web.Application | None = None) -> None:
        """Wait a bounded time for the lines that are not written yet."""
        if self._writing is None:
            return
        if self._waiting:
            await self._written(self._waiting[-1][1])
        await end([self._writing])
        if self._waiting:
            _log.error("audit_lines_not_on_the_log", lines=len(self._waiting))

    async def keep(self, line: AuditLine, *, wait: bool = True) -> None:
        """Return when it is on the topic, or will be there later. Not with `wait` false."""
        _tell(line)
        if len(self._waiting) >= MOST_WAITING:
            _log.error("audit_line_not_on_the_log", line=line.id, why="too many wait for the log")
            return
        written = asyncio.Event()
        self._waiting.append((line, written))
        self._wake.set()
        if wait and not await self._written(written):
            _log.warning("audit_line_late", line=line.id)

    async def _written(self, written: asyncio.Event) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await written.wait()
        return written.is_set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                some = [self._waiting[n] for n in range(min(len(self._waiting), _AT_ONCE))]
                try:
                    await self._log.append([self._record(line) for line, _ in some])
                except LogUnavailable:
                    await asyncio.sleep(self._again_s)
                    continue
                except RecordTooLarge:
                    _log.error("audit_lines_not_on_the_log", lines=len(some), why="the topic takes no such records")
                for _, written in some:
                    self._waiting.popleft()
                    written.set()

    def _record(self, line: AuditLine) -> NewRecord:
        return NewRecord(self._topic, line.who.encode(), encode_line(line))


def _tell(line: AuditLine) -> None:
    """Into the log of the process."""
    say = _log.info if line.outcome == "done" else _log.warning
    say(
        "audit",
        what=line.what,
        whom=line.whom,
        who=line.who,
        remote=line.remote,
        outcome=line.outcome,
        status=line.status,
        line=line.id,
        **{f"fact_{name}": value for name, value in line.facts.items()},
    )
