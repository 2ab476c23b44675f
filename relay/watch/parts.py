"""Whether the parts of our own infrastructure answer: for /readyz, and for whoever reads the log."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping

from relay.clock import Clock
from relay.domain.errors import StateRecovering, Unavailable
from relay.telemetry.logging import get_logger

_log = get_logger("relay.process")


async def watch_part(
    trouble: MutableMapping[str, str | None],
    clock: Clock,
    part: str,
    every_s: float,
    look: Callable[[], Awaitable[object]],
) -> None:
    """`look` every so often, for ever; what is wrong with `part` is in `trouble`, None when nothing is."""
    away = False
    while True:
        try:
            await look()
            trouble[part] = None
            if away:
                _log.info("back", part=part)
            away = False
        except StateRecovering as error:
            trouble[part] = str(error)  # it is there; the recovery is told by whoever does it
        except Unavailable as error:
            trouble[part] = str(error)
            if not away:
                _log.warning("away", part=part, error=str(error))
            away = True
        await clock.sleep(every_s)


async def tell_draining(trouble: MutableMapping[str, str | None], stop: asyncio.Event) -> None:
    """Once `stop` is set, it is not ready any more."""
    await stop.wait()
    trouble["stopping"] = "finishing what is in flight"
