"""Watches whether log and state answer, for /readyz and the log."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final

from relay.clock import Clock
from relay.domain.errors import StateRecovering, Unavailable
from relay.telemetry.logging import get_logger

SILENT_S: Final = 3.0
"""A slower answer counts as unavailable, before the client gives up."""

_log = get_logger("relay.process")


async def watch_part(
    trouble: MutableMapping[str, str | None],
    clock: Clock,
    part: str,
    every_s: float,
    look: Callable[[], Awaitable[object]],
) -> None:
    """Calls `look` every `every_s`, until cancelled; `trouble` holds the problem of `part`, or None."""
    away = False

    def report_away(why: str) -> None:
        nonlocal away
        trouble[part] = why
        if not away:
            _log.warning("away", part=part, error=why)
        away = True

    while True:
        try:
            await _reported_if_silent(look, report_away)
            trouble[part] = None
            if away:
                _log.info("back", part=part)
            away = False
        except StateRecovering as error:
            trouble[part] = str(error)  # it answers; the recovery reports its own progress
        except Unavailable as error:
            report_away(str(error))
        await clock.sleep(every_s)


async def _reported_if_silent(look: Callable[[], Awaitable[object]], report: Callable[[str], None]) -> None:
    """Awaits `look` for as long as it takes; calls `report` once it takes longer than SILENT_S."""
    looking = asyncio.ensure_future(look())
    try:
        done, _ = await asyncio.wait([looking], timeout=SILENT_S)
        if not done:
            report(f"it has not answered for {SILENT_S:g} s")
        await looking
    finally:
        looking.cancel()


async def report_draining(trouble: MutableMapping[str, str | None], stop: asyncio.Event) -> None:
    """Once `stop` is set, the process is no longer ready."""
    await stop.wait()
    trouble["stopping"] = "finishing what is in flight"
