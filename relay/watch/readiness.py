"""The contents of /readyz: whether log and state answer, and conditions that need attention: clocks, parked records and
topics, which are checked repeatedly while a problem lasts."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from relay.checks.context import ReadyPart, ReadyWarning
from relay.checks.state import judge_clock, judge_parked
from relay.checks.topics import WAITS_LOOKED_AT, LaneChecks, expected_topics, log_findings, refuse
from relay.clock import OFF_S, Clock, SharedClock
from relay.config.settings import Settings
from relay.control.registry import Registry
from relay.domain.diagnosis import Checked
from relay.domain.errors import LogUnavailable, SettingsHidden, StateRecovering, Unavailable, UserError
from relay.domain.identity import MessageId
from relay.domain.topics import Topics
from relay.engine.supervision import Retrier
from relay.log.checks import Finding, findings
from relay.log.port import Log, TopicPartition
from relay.state.port import State
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

CLOCK_LOOK_S: Final = 60.0
PARKED_LOOK_S: Final = 10.0
AGAIN_S: Final = 60.0
"""Interval of the checks of topics, and of Redis' settings: how soon after a correction the warning disappears."""
Report = Callable[[ReadyPart, str | None], None]
SILENT_S: Final = 3.0
"""A slower answer counts as unavailable, before the client gives up."""
_NUMBER: Final = re.compile(r"[0-9.]+")
_NO_MESSAGE: Final = MessageId("-", "-")

_log = get_logger("relay.process")


class ClockWatch:
    """Measures the difference between the machine's clock and the clock that all processes share, and logs when the
    machine's clock is off, or right again."""

    def __init__(self, clock: SharedClock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._logged_s = 0.0

    async def run(self) -> None:
        """Runs until cancelled; the clock has been measured before."""
        while True:
            self._log_offset()
            await self._clock.sleep(CLOCK_LOOK_S)
            with suppress(Unavailable):
                await self._clock.measure()

    def _log_offset(self) -> None:
        ahead_s = self._clock.ahead_s
        self._metrics.clock_offset_seconds.set(ahead_s)
        if abs(ahead_s) <= OFF_S:
            if self._logged_s:
                _log.info("clock_right", ahead_s=round(ahead_s, 3))
            self._logged_s = 0.0
        elif abs(ahead_s - self._logged_s) > OFF_S:
            self._logged_s = ahead_s
            _log.warning(
                "clock_off",
                ahead_s=round(ahead_s, 3),
                problem="the clocks of this machine and of Redis differ; deadlines use that of Redis, and receivers "
                "may reject signatures with a wrong time: set both by NTP",
            )


class StateWatch:
    """Logs the problems of the state's servers, and later those that are new: after a fail-over to a server with other
    settings, or a change of them. With another `maxmemory-policy` than `noeviction` it forgets rows from then on."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._logged = frozenset[str]()
        """Without their numbers, which change all the time."""

    async def look(self) -> None:
        """Raises Unavailable, and UserError if the login is rejected."""
        found = {_NUMBER.sub("", problem): problem for problem in await self._state.problems()}
        for kind, problem in found.items():
            if kind not in self._logged:
                _log.warning("state_problem", problem=problem)
        self._logged = frozenset(found)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._clock.sleep(AGAIN_S)
            with suppress(Unavailable, UserError):  # other watches report that it does not answer
                await self.look()


class ParkedWatch:
    """Watches how many records are parked in all: at the limit, every intake that would park more stops.

    `cap`: most parked records in all. `report(count, cap)` is called at each check. `warning`: for operators, while at
    least half of the limit is used; else None.
    """

    def __init__(self, state: State, clock: Clock, cap: int, report: Callable[[int, int], None]) -> None:
        self._state = state
        self._clock = clock
        self._cap = cap
        self._report = report
        self.warning: str | None = None

    async def run(self) -> None:
        """Runs until cancelled. While the state is unavailable, the last count stays; other parts report that."""
        while True:
            with suppress(Unavailable):
                await self.look()
            await self._clock.sleep(PARKED_LOOK_S)

    async def look(self) -> None:
        """One check. Raises Unavailable."""
        total = await self._state.parked_total()
        self._report(total.retries + total.polls, self._cap)
        self.warning = _problem(judge_parked(total, self._cap))


@dataclass(eq=False)
class TopicWatch:
    """Whether the topics' settings would lose messages: checked before the process starts to work, when receivers
    change, and again while a problem lasts. `warning`: the problem found by the last check, for operators; else
    None."""

    log: Log
    topics: Topics
    settings: Settings
    registry: Registry
    clock: Clock
    retrier: Retrier
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
        found = await self.retrier.until_done("check the receivers' topics", self._look_at_lanes)
        refuse(found)
        log_findings(found)
        if found:
            await self.retrier.until_done("check the topics", self._look_again)

    async def run(self) -> None:
        """Later problems are only logged, until cancelled: they do not concern receivers that work."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._keep_looking())

    async def _follow(self) -> None:
        async for _ in self.registry.changes():
            async with self._turn:
                found = await self.retrier.until_done("check the receivers' topics", self._look_at_lanes)
                log_findings(found)
                if found or self.warning:
                    await self.retrier.until_done("check the topics", self._look_again)

    async def _keep_looking(self) -> None:
        """Checks repeatedly while a problem lasts, because its correction causes no event."""
        while True:
            await self.clock.sleep(AGAIN_S)
            if self.warning is not None:
                async with self._turn:
                    await self.retrier.until_done("check the topics", self._look_again)

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


async def inspect_log(log: Log, topic: str) -> None:
    """Whether the log answers and takes records of `topic`, where new messages arrive. Raises Unavailable, but not if
    only some partitions refuse records: for the others, this process is needed."""
    try:
        state = (await log.describe([topic])).get(topic)
    except SettingsHidden:  # the doctor and the next start name the right
        await log.ends([TopicPartition(topic, 0)])
        return
    if state is None:
        raise LogUnavailable(f"no topic {topic}; `relay topics apply` creates it")
    if state.refusing == state.spec.partitions:
        raise LogUnavailable(f"{topic} takes no records: too few of its replicas are in sync")


async def inspect_state(state: State, owner: str) -> None:
    """Whether the state can be read and written. `owner`: this process. Raises Unavailable."""
    await state.messages([_NO_MESSAGE])
    await state.lease(f"readiness:{owner}", owner, SILENT_S)


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


async def report_draining(report: Report, stop: asyncio.Event, others_go_on: Callable[[], bool]) -> None:
    """Once `stop` is set, the process is no longer ready, unless it leaves a group whose other processes go on."""
    await stop.wait()
    if not others_go_on():
        report("stopping", "finishing what is in flight")


def warnings_of(
    parked: ParkedWatch, topics: TopicWatch, clock: SharedClock, registry: Registry | None
) -> dict[str, str | None]:
    """Conditions that need attention although messages are still delivered, by subject; None: no problem. `registry`:
    None in a process that needs no secrets of entries."""
    found: dict[ReadyWarning, str | None] = {
        "parked": parked.warning,
        "clock": _problem(judge_clock(clock.ahead_s)),
        "topics": topics.warning,
        "configuration": _unusable(registry),
    }
    return dict(found.items())


def _problem(checked: Checked) -> str | None:
    return None if checked.ok else checked.what


def _unusable(registry: Registry | None) -> str | None:
    if registry is None or not registry.refused:
        return None
    entries = "1 entry" if registry.refused == 1 else f"{registry.refused} entries"
    # without names: `/readyz` needs no key
    return f"this process cannot use {entries} of receivers or sources, whose messages may wait; see `relay doctor`"
