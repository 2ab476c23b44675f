"""Whether the parts of our own infrastructure answer: for /readyz and the log."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final

from relay.clock import Clock
from relay.domain.errors import StateRecovering, Unavailable
from relay.telemetry.logging import get_logger

SILENT_S: Final = 3.0
"""A part that takes longer to answer is taken for away, before its client gives up."""

_log = get_logger("relay.process")


async def watch_part(
    trouble: MutableMapping[str, str | None],
    clock: Clock,
    part: str,
    every_s: float,
    look: Callable[[], Awaitable[object]],
) -> None:
    """Calls `look` every so often, for ever; `trouble` holds the problem of `part`, or None."""
    away = False

    def tell_away(why: str) -> None:
        nonlocal away
        trouble[part] = why
        if not away:
            _log.warning("away", part=part, error=why)
        away = True

    while True:
        try:
            await _told_if_silent(look, tell_away)
            trouble[part] = None
            if away:
                _log.info("back", part=part)
            away = False
        except StateRecovering as error:
            trouble[part] = str(error)  # it is there; the recovery is told by whoever does it
        except Unavailable as error:
            tell_away(str(error))
        await clock.sleep(every_s)


async def _told_if_silent(look: Callable[[], Awaitable[object]], tell: Callable[[str], None]) -> None:
    """`look`, which may take as long as it likes; `tell` is called when it takes longer than SILENT_S."""
    looking = asyncio.ensure_future(look())
    try:
        done, _ = await asyncio.wait([looking], timeout=SILENT_S)
        if not done:
            tell(f"it has not answered for {SILENT_S:g} s")
        await looking
    finally:
        looking.cancel()


async def report_draining(trouble: MutableMapping[str, str | None], stop: asyncio.Event) -> None:
    """Once `stop` is set, it is not ready any more."""
    await stop.wait()
    trouble["stopping"] = "finishing what is in flight"
