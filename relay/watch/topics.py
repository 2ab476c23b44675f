"""The topics of a running process: looked at before it starts to work, and when receivers come or change."""

from collections.abc import Sequence

from relay.config.registry import Registry
from relay.config.settings import Settings
from relay.domain.topics import Topics
from relay.engine.clock import Clock
from relay.engine.supervision import Patience
from relay.log.checks import Finding, findings
from relay.log.port import Log
from relay.telemetry.logging import get_logger
from relay.watch.topic_checks import WAITS_LOOKED_AT, LaneChecks, expected_topics, refuse, tell

_log = get_logger("relay.process")


class TopicWatch:
    """Whether the topics are such that no message is lost by them. `warning`: what is off, for people, as far as it was
    looked at last; else None."""

    def __init__(
        self, log: Log, topics: Topics, settings: Settings, registry: Registry, clock: Clock, patience: Patience
    ) -> None:
        self._log = log
        self._topics = topics
        self._settings = settings
        self._registry = registry
        self._patience = patience
        self.warning: str | None = None
        self._lanes = LaneChecks(log, topics, settings, clock)

    async def check_fixed(self) -> None:
        """Refuse to start where the topics would lose messages; say what else is off about them. Raises UserError, and
        LogUnavailable."""
        expected = expected_topics(self._topics, self._settings)
        there = await self._log.describe([each.spec.name for each in expected])
        found = findings(expected, there)
        refuse(found)
        self._tell(found)
        retention_s = there[self._topics.from_sender].spec.retention_s or 0
        window_s = self._settings.dedup_window
        if window_s < retention_s:
            _log.warning("dedup_window_short", dedup_window_s=window_s, retention_s=retention_s)

    async def check_lanes(self) -> None:
        """The same for the topics of the receivers that there are. Raises UserError."""
        found = await self._found()
        refuse(found)
        self._tell(found)

    async def run(self) -> None:
        """Later on it is only said, for ever: the others, who run, have nothing to do with it."""
        async for _ in self._registry.changes():
            self._tell(await self._found())

    def _tell(self, found: Sequence[Finding]) -> None:
        tell(found)
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            self.warning = f"{found[0].topic}: {found[0].problem}{more}"

    async def _found(self) -> list[Finding]:
        return await self._patience.until_done("check the receivers' topics", self._look)

    async def _look(self) -> list[Finding]:
        registry = self._registry
        return await self._lanes.look(registry.receivers(), registry.shared.longest_waits(WAITS_LOOKED_AT))
