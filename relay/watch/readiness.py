"""The contents of /readyz: whether log and state answer, and conditions that need attention."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from relay.checks.registry import ReadyPart, ReadyWarning
from relay.clock import Clock
from relay.clock.shared import SharedClock, off
from relay.control.registry import Registry
from relay.domain.errors import StateRecovering, Unavailable
from relay.telemetry.logging import get_logger
from relay.watch.parked import ParkedWatch
from relay.watch.topics import TopicWatch

Report = Callable[[ReadyPart, str | None], None]

SILENT_S: Final = 3.0
"""A slower answer counts as unavailable, before the client gives up."""

_log = get_logger("relay.process")


async def watch_part(
    report: Report, clock: Clock, part: ReadyPart, every_s: float, look: Callable[[], Awaitable[object]]
) -> None:
    """Calls `look` every `every_s`, until cancelled, and reports the problem of `part`, or None."""
    away = False

    def report_away(why: str) -> None:
        nonlocal away
        report(part, why)
        if not away:
            _log.warning("away", part=part, error=why)
        away = True

    while True:
        try:
            await _reported_if_silent(look, report_away)
            report(part, None)
            if away:
                _log.info("back", part=part)
            away = False
        except StateRecovering as error:
            report(part, str(error))  # it answers; the recovery reports its own progress
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


async def report_draining(report: Report, stop: asyncio.Event) -> None:
    """Once `stop` is set, the process is no longer ready."""
    await stop.wait()
    report("stopping", "finishing what is in flight")


def warnings_of(
    parked: ParkedWatch, topics: TopicWatch, clock: SharedClock, registry: Registry
) -> dict[str, str | None]:
    """Conditions that need attention although messages are still delivered, by subject; None: no problem."""
    found: dict[ReadyWarning, str | None] = {
        "parked": parked.warning,
        "clock": off(clock.ahead_s),
        "topics": topics.warning,
        "configuration": _unusable(registry),
    }
    return dict(found.items())


def _unusable(registry: Registry) -> str | None:
    if not registry.refused:
        return None
    entries = "1 entry" if registry.refused == 1 else f"{registry.refused} entries"
    first = next((f"; {why.splitlines()[0]}" for why in registry.problems.values()), "")
    return f"this process cannot use {entries} of receivers or sources, whose messages may wait{first}"
