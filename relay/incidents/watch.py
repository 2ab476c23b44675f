"""Folds observations into the stored incidents, and publishes their openings and ends. One process does it for all. It
reads rows of the state and the log every few seconds, regardless of the traffic; no message waits for it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from relay.clock import Clock
from relay.domain.errors import LogUnavailable, StateUnavailable, Unavailable
from relay.domain.incident import Advance, Incident, IncidentSnapshot, Marks, advance
from relay.domain.incident_kinds import KINDS
from relay.domain.own_events import Change
from relay.incidents.reader import IncidentReader
from relay.state.lanes import LaneNow
from relay.state.port import State
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

EVERY_S: Final = 3.0
Publish = Callable[[Change, Incident], None]
"""Called for each change; never blocks, never raises."""

_log = get_logger("relay.incidents")


@dataclass(eq=False)
class IncidentWatch:
    """Looks for causes of failures, and opens, updates and resolves incidents. `lanes`: reads the lanes as they are.
    The caller calls `look` every `EVERY_S` while this process has the lease, and `idle` while another one has it, or a
    dependency is away."""

    reader: IncidentReader
    state: State
    lanes: Callable[[], Awaitable[Sequence[LaneNow]]]
    clock: Clock
    metrics: Metrics
    publish: Sequence[Publish]
    _begun_at: float = inf
    """When the first look was, since the start or an absence of the state: a cause that lasts since before may end at
    once, such as lanes that no worker could sign."""
    _known: Mapping[str, Incident] | None = None
    """The incidents as of the last look; None while another process looks."""

    async def look(self) -> None:
        """One look. A process that stops takes none: what it leaves is no fault. Raises Unavailable."""
        if self.reader.is_stopping:
            return
        self._begun_at = min(self._begun_at, self.clock.time())
        try:
            stored, marks = await self.state.incidents()
        except StateUnavailable:
            self._begun_at = inf
            raise
        # those of a time without the state, such as its own absence, are not stored yet
        before = {**(self._known or {}), **stored}
        found = advance(before, marks, replace(await self._look(), begun_at=self._begun_at))
        changed = [one for one in found.incidents.values() if stored.get(one.id) != one]
        dropped = [id for id in stored if id not in found.incidents]
        if changed or dropped:
            await self.state.keep_incidents(changed, dropped)
        self._finish(found)

    async def _look(self) -> IncidentSnapshot:
        try:
            found = await self.reader.look(await self.lanes(), await self.reader.failed())
        except LogUnavailable:
            return self.reader.away()
        await self.state.keep_waiting(found.waiting)
        return found.causes

    async def idle(self) -> None:
        """Another process looks; or the state is away, which the process that looked last still reports."""
        self._begun_at = inf
        if self._known is None or self.reader.is_stopping:
            return
        look = self.reader.away()
        if look.observations:
            nobodys: Mapping[str, Marks] = {}
            self._finish(advance(self._known, nobodys, look))
            return
        with suppress(Unavailable):  # the process that looks now resolves those of a time without the state
            await self.state.add_incidents(list(self._known.values()))
            self._known = None
            self.metrics.incidents_open.clear()

    def _finish(self, found: Advance) -> None:
        self._known = found.incidents
        self.metrics.incidents_open.clear()
        for one in found.incidents.values():
            if one.resolved_at is None:
                self.metrics.incidents_open.labels(one.kind, KINDS[one.kind].severity).add(1)
        for one in found.opened:
            self._report("incident.opened", one)
        for one in found.resolved:
            self._report("incident.resolved", one)

    def _report(self, change: Change, one: Incident) -> None:
        facts = {"incident": one.id, "kind": one.kind, "party": f"{one.party.type} {one.party.name}"}
        if change == "incident.opened":
            _log.warning("incident_opened", **facts, waiting=one.waiting, reopened=one.reopened)
        elif one.resolved_by is None:
            _log.info("incident_resolved", **facts)
        else:
            _log.info("incident_resolved", **facts, by=one.resolved_by)
        for publish in self.publish:
            publish(change, one)
