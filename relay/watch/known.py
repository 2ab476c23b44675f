"""Who is known to a running process: the registry is followed for ever, and what is off about it is told."""

from collections.abc import Collection
from typing import Final

from relay.config.registry import Registry
from relay.domain.errors import LogUnavailable
from relay.engine.supervision import Patience
from relay.log.port import Log
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

NAMES_SHOWN: Final = 50

_log = get_logger("relay.process")


async def follow_registry(registry: Registry, log: Log, patience: Patience) -> None:
    """For ever; while the log is away, what was there stays in force."""
    while True:
        try:
            await registry.follow(log)
        except LogUnavailable as error:
            await patience.pause("follow the registry", error)


async def count_refused(registry: Registry, metrics: Metrics) -> None:
    """For ever."""
    async for _ in registry.changes():
        metrics.receivers_refused.set(registry.refused)


def tell_unknown(registry: Registry, wanted: Collection[str]) -> None:
    """A name that nobody has may be a typo, or a receiver that is registered later."""
    unknown = sorted(name for name in wanted if registry.receiver(name) is None)
    if unknown:
        own = sorted(registry.receivers())[:NAMES_SHOWN]
        _log.warning("receivers_unknown", names=unknown, known=own, shared=len(registry.shared))
