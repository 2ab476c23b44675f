"""Checks the topics of a running process: before it starts to work, when receivers change, and again while a problem
lasts."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from relay.checks.topics import WAITS_LOOKED_AT, LaneChecks, expected_topics, log_findings, refuse
from relay.clock import Clock
from relay.config.settings import Settings
from relay.control.registry import Registry
from relay.domain.topics import Topics
from relay.engine.supervision import Patience
from relay.log.checks import Finding, findings
from relay.log.port import Log
from relay.telemetry.logging import get_logger

AGAIN_S: Final = 60.0
"""Interval of these checks: how soon after a correction the warning disappears."""

_log = get_logger("relay.process")


@dataclass(eq=False)
class TopicWatch:
    """Whether the topics' settings would lose messages. `warning`: the problem found by the last check, for
    operators; else None."""

    log: Log
    topics: Topics
    settings: Settings
    registry: Registry
    clock: Clock
    patience: Patience
    warning: str | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._lanes = LaneChecks(self.log, self.topics, self.settings, self.clock)

    async def check_fixed(self) -> None:
        """Refuse to start if the topics would lose messages; log other problems. Raises UserError and
        LogUnavailable."""
        expected = expected_topics(self.topics, self.settings)
        there = await self.log.describe([each.spec.name for each in expected])
        found = findings(expected, there)
        refuse(found)
        log_findings(found)
        self._warn_of(found)
        retention_s = there[self.topics.from_sender].spec.retention_s or 0
        window_s = self.settings.dedup_window
        if window_s < retention_s:
            _log.warning("dedup_window_short", dedup_window_s=window_s, retention_s=retention_s)

    async def check_lanes(self) -> None:
        """The same for the topics of the current receivers. Raises UserError."""
        found = await self.patience.until_done("check the receivers' topics", self._look_at_lanes)
        refuse(found)
        log_findings(found)
        if found:
            await self.patience.until_done("check the topics", self._look_again)

    async def run(self) -> None:
        """Later problems are only logged, until cancelled: they do not concern receivers that work."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._keep_looking())

    async def _follow(self) -> None:
        async for _ in self.registry.changes():
            async with self._turn:
                found = await self.patience.until_done("check the receivers' topics", self._look_at_lanes)
                log_findings(found)
                if found or self.warning:
                    await self.patience.until_done("check the topics", self._look_again)

    async def _keep_looking(self) -> None:
        """Checks repeatedly while a problem lasts, because its correction causes no event."""
        while True:
            await self.clock.sleep(AGAIN_S)
            if self.warning is not None:
                async with self._turn:
                    await self.patience.until_done("check the topics", self._look_again)

    def _warn_of(self, found: list[Finding]) -> None:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        warning = f"{found[0].topic}: {found[0].problem}{more}" if found else None
        if warning is None and self.warning is not None:
            _log.info("topics_right_again", was=self.warning)
        self.warning = warning

    async def _look_again(self) -> None:
        """Checks all of them. A problem that was logged is not logged again."""
        expected = expected_topics(self.topics, self.settings)
        there = await self.log.describe([each.spec.name for each in expected])
        self._lanes.forget()
        self._warn_of([*findings(expected, there), *await self._look_at_lanes()])

    async def _look_at_lanes(self) -> list[Finding]:
        registry = self.registry
        return await self._lanes.look(registry.receivers(), registry.shared.index.longest_waits(WAITS_LOOKED_AT))
