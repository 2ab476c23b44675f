"""Keeps the registry up to date in a running process, and logs its problems."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from relay.control.registry import Registry
from relay.domain.errors import LogUnavailable
from relay.engine.supervision import Patience
from relay.log.port import Log
from relay.state.port import State
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

NAMES_SHOWN: Final = 50

_log = get_logger("relay.process")


async def follow_registry(registry: Registry, log: Log, patience: Patience) -> None:
    """Runs until cancelled; while the log is unavailable, the known entries stay in effect."""
    while True:
        try:
            await registry.follow(log)
        except LogUnavailable as error:
            await patience.pause("follow the registry", error)


class MovedEndpoints:
    """Endpoints with a new URL: an outage of the former URL says nothing about it, so it is probed at once.
    `resumed`: makes lanes ask again."""

    def __init__(self, resumed: Callable[[str], None]) -> None:
        self._resumed = resumed
        self._owners: set[str] = set()
        self._noted = asyncio.Event()

    def note(self, owner: str) -> None:
        self._owners.add(owner)
        self._noted.set()

    async def run(self, state: State, patience: Patience) -> None:
        """Runs until cancelled."""
        while True:
            await self._noted.wait()
            self._noted.clear()
            owners, self._owners = self._owners, set()
            await patience.until_done("look at moved endpoints", partial(state.probe_soon, sorted(owners)))
            for owner in owners:
                self._resumed(owner)


async def count_refused(registry: Registry, metrics: Metrics) -> None:
    """Runs until cancelled."""
    async for _ in registry.changes():
        metrics.receivers_refused.set(registry.refused)


def log_unknown(registry: Registry, wanted: Collection[str]) -> None:
    """An unknown name may be a typo, or a receiver that is registered later."""
    unknown = sorted(name for name in wanted if registry.receiver(name) is None)
    if unknown:
        own = sorted(registry.receivers())[:NAMES_SHOWN]
        _log.warning("receivers_unknown", names=unknown, known=own, shared=len(registry.shared))
