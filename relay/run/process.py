"""One process of the relay: builds its parts, starts them in order, and stops them. The only module that knows all
parts."""

import asyncio
import gc
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from relay.api.peers import GroupProcess, leave_counts, leave_counts_of_killed
from relay.checks.api import log_answer_urls
from relay.checks.context import ReadyPart
from relay.checks.log import check_rights
from relay.clock import Clock, SharedClock
from relay.config.encryption import KeyRing
from relay.config.plan import API, HISTORY, ProcessPlan
from relay.config.references import usable_variables
from relay.config.setting_values import key_of
from relay.config.settings import Settings
from relay.control.registry import Registry
from relay.domain.topics import Topics
from relay.engine.supervision import end, unless_stopped
from relay.incidents.reader import IncidentReader
from relay.incidents.watch import EVERY_S, IncidentWatch
from relay.log.port import Log
from relay.recovery.rebuilding import Rebuilding
from relay.replay.runner import ReplayRunner
from relay.run.api_part import ApiPart, HttpServer
from relay.run.composition import ProcessContext, recovery_of
from relay.run.delivery_part import DeliveryPart
from relay.run.history_part import HistoryPart
from relay.run.lanes import LoadReport
from relay.run.notices import notices_of
from relay.run.services import Supervisor, reporting_failure
from relay.run.supervisor import LIFELINE
from relay.run.telemetry_part import TelemetryPart
from relay.state.port import State
from relay.telemetry.logging import get_logger
from relay.watch.hot_moves import HotReceiverMoves
from relay.watch.lag import BacklogWatch, HistoryWatch, LagWatch, LeasedTask
from relay.watch.lane_migration import LaneMigration
from relay.watch.readiness import (
    ClockWatch,
    ParkedWatch,
    StateWatch,
    TopicWatch,
    inspect_log,
    inspect_state,
    report_draining,
    warnings_of,
    watch_part,
)
from relay.watch.registry import NAMES_SHOWN, FileWatch, MovedEndpoints, count_refused, follow_registry, log_unknown

LOG_CHECK_S: Final = 5.0
STATE_CHECK_S: Final = 1.0

_YOUNG: Final = 300_000
"""Objects of the garbage collector's young generation: more than are in flight at once (Python's default is 700). A
pass through 50,000 of those stops a busy process for 0.1 s and finds nothing."""
_MIDDLE: Final = 20
_OLD: Final = 100

_log = get_logger("relay.process")


class RelayProcess:
    """One process of the relay, on the given log and state. `member`: its place among several started together.

    `exit_when_stuck`: end the process if its event loop is blocked so long that consumer groups would evict its
    members.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        state: State,
        plan: ProcessPlan,
        environ: Mapping[str, str],
        clock: Clock,
        member: GroupProcess | None = None,
        *,
        exit_when_stuck: bool = False,
    ) -> None:
        plan = plan if settings.history_url is not None else plan.without_history()
        variables = usable_variables(environ, settings.secrets_from)
        ring = KeyRing((*(key_of(key.get_secret_value()) for key in settings.secrets_key), *plan.secrets_keys))
        topics, owner = Topics(settings.topic_prefix), f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._moved = MovedEndpoints(self._resumed)
        self.registry = registry = Registry(
            topics,
            variables,
            self._resumed,
            ring=ring,
            ping_every=plan.ping_every,
            moved=self._moved.note,
            origins=settings.adhoc_endpoints,
        )
        self._clock = SharedClock(clock, state)
        self._context = context = ProcessContext(settings, plan, log, state, topics, self._clock, registry, owner)
        self._keeps = True
        """Whether this process takes part in the jobs that one process runs for all."""
        self._trouble: dict[str, str | None] = {}
        self.report("start", "connecting")
        self.report("receivers", "not read yet")
        self._telemetry = TelemetryPart(context, environ, lambda: self._recovery.ask(), exit_when_stuck=exit_when_stuck)
        self.metrics = self._telemetry.metrics
        self._retrier = retrier = self._telemetry.retrier
        self._history = HistoryPart(context, retrier, self.metrics)
        self._state_watch = StateWatch(state, self._clock)
        self._topic_watch = TopicWatch(log, topics, settings, registry, self._clock, retrier)
        report_parked = self._telemetry.observer.parked_in_all if plan.index == 0 else lambda _count, _cap: None
        self._parked_watch = ParkedWatch(state, self._clock, settings.parked_total, report_parked)
        leases = context.lease_owner
        self._file = FileWatch(settings, plan, registry, log, state, topics, self._clock, owner=leases, retrier=retrier)
        self.hangup = self._file.hangup
        """Set it to reload the receivers file."""
        self._recovery = recovery_of(*context.stores, self._clock, settings, leases, self._telemetry.observer, retrier)
        self._member = member
        self._http = HttpServer(settings, plan, member)
        self._delivery = DeliveryPart(context, self._telemetry, self._http.answer_urls, ring)
        self._notices = notices_of(context, self._delivery.transport, self.metrics)
        self._api = ApiPart(
            context,
            self._telemetry,
            self._delivery,
            self._history.store,
            variables,
            ring,
            member,
            ready=lambda: self._trouble,
            warnings=self._warnings,
        )

    def _warnings(self) -> Mapping[str, str | None]:
        registry = self.registry if self._context.plan.sends else None
        return warnings_of(self._parked_watch, self._topic_watch, self._clock, registry)

    def _resumed(self, owner: str) -> None:
        self._delivery.lanes.pump.resumed(owner)

    @property
    def api_url(self) -> str | None:
        """URL of the API; None until it is open, and in a process without an API."""
        return self._http.url

    @property
    def addresses(self) -> list[str]:
        """Addresses that the API or the health routes listen on, each as `host:port`."""
        return self._http.addresses

    def report(self, part: ReadyPart, trouble: str | None) -> None:
        """Sets the state of a part that /readyz reports; None: no problem."""
        self._trouble[part] = trouble

    # life

    async def run(self, stop: asyncio.Event, started: Callable[[], None] = lambda: None) -> None:
        """Runs until `stop`, then finishes the requests in flight. Waits for Kafka and Redis. Raises UserError."""
        self._telemetry.start()
        if self._member is not None:
            leave_counts_of_killed(self._member)
        watching = asyncio.create_task(self._telemetry.loop_watch.run())
        try:
            await self._http.open(self._api.api_context)
            if await unless_stopped(self._connect(), stop):
                await self._serve(stop, started)
        finally:
            await self._close()
            await end([watching])

    async def _connect(self) -> None:
        log, state, topics = self._context.log, self._context.state, self._context.topics
        await self._retrier.until_done("connect to the log", log.start)
        check = partial(check_rights, log, topics, self._context.plan.roles)
        self._keeps = await self._retrier.until_done("check the rights", check)
        await self._retrier.until_done("check the topics", self._topic_watch.check_fixed)
        await self._retrier.until_done("connect to the state", state.start)
        await self._retrier.until_done("check the state's server", self._state_watch.look)
        await self._retrier.until_done("ask the state for the time", self._clock.measure)
        await self._delivery.transport.start()
        self.report("start", None)
        await self._file.read()

    async def _serve(self, stop: asyncio.Event, started: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as tasks:

            def start(parts: Iterable[tuple[str, Awaitable[None]]]) -> list[asyncio.Task[None]]:
                observer = self._telemetry.observer
                return [tasks.create_task(reporting_failure(observer, name, work)) for name, work in parts]

            background = start(self._needed_first())
            if await unless_stopped(self._know_receivers(), stop):
                await unless_stopped(self._topic_watch.check_lanes(), stop)
            self.report("receivers", None)
            self._log_known_receivers()
            background += start(self._beside_lanes(stop))
            if await unless_stopped(self._recovery.healed.wait(), stop):
                self.report("state", None)  # its watch looks again later
                keep_startup_heap()
                self._telemetry.loop_watch.arm()
                started()
                await self._run_lanes(stop)
            await self._telemetry.end()
            if self._notices is not None:
                await self._notices.end()
            await end(background)

    def _needed_first(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """The services that start before the receivers are known, each with its name."""
        log, state = self._context.log, self._context.state
        watched = partial(watch_part, self.report, self._clock)
        yield "follow the registry", follow_registry(self.registry, log, self._retrier)
        yield "recovery", self._recovery.run()
        yield from self._delivery.parts()
        yield "clock watch", ClockWatch(self._clock, self.metrics).run()
        yield "log watch", watched("log", LOG_CHECK_S, partial(inspect_log, log, self._context.topics.from_sender))
        yield "state settings watch", self._state_watch.run()
        yield "state watch", watched("state", STATE_CHECK_S, partial(inspect_state, state, self._context.owner))

    async def _know_receivers(self) -> None:
        """Including the receivers file, if this process applies it. Raises UserError."""
        await self.registry.ready.wait()
        if self._keeps:
            await self._retrier.until_done("apply the receivers file", self._file.apply_loaded)

    def _log_known_receivers(self) -> None:
        settings, plan = self._context.settings, self._context.plan
        log_unknown(self.registry, plan.receivers or ())
        some = {**self.registry.receivers(), **self.registry.shared.some(NAMES_SHOWN)}
        log_answer_urls(settings, plan, self._http.answer_urls(), some)

    def _beside_lanes(self, stop: asyncio.Event) -> Iterator[tuple[str, Awaitable[None]]]:
        """The services that start once the receivers are known, each with its name."""
        member = self._member
        yield "stop watch", report_draining(self.report, stop, lambda: member is not None and member.is_dismissed)
        yield "lane checks", self._topic_watch.run()
        if self._context.plan.sends:
            yield "refused receivers", count_refused(self.registry, self.metrics)
        yield "moved endpoints", self._moved.run(self._context.state, self._retrier)
        yield "parked watch", self._parked_watch.run()
        yield from self._telemetry.parts()
        if self._keeps:
            yield from self._shared_work()
        if self._member is not None:
            watch, lanes, log = self._telemetry.loop_watch, self._delivery.lanes, self._context.log
            yield "load report", LoadReport(lanes, log, self._clock, lambda: watch.late_s, LIFELINE).run()
        if "to-receiver" in self._context.plan.roles:
            yield "verifications", self._delivery.verifier.run()

    def _shared_work(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """The jobs that exactly one process of a cluster runs, each under a lease: this process's share of them."""
        context, metrics, lanes = self._context, self.metrics, self._delivery.lanes
        stores, clock, owner, settings = context.stores, context.clock, context.lease_owner, context.settings
        yield "receivers file watch", self._file.run()
        # moves and replays park at most this many records per receiver: the rest of the limit is for new messages
        room = settings.parked_per_receiver // 4
        yield "moves", LaneMigration(*stores, self.registry, clock, owner=owner, room=room).run()
        moves = HotReceiverMoves(
            *stores,
            self.registry,
            clock,
            metrics,
            self._telemetry.events.turned,
            owner=owner,
            moves=settings.hot_receivers == "move",
        )
        yield "hot receivers", moves.run()
        yield "replays", ReplayRunner(*stores, self._api.replay_service, clock, owner=owner, room=room).run()
        yield "backlog watch", BacklogWatch(*stores, lanes.own, clock, metrics, owner).run()
        lags = LagWatch(*stores, lanes.own, clock, metrics, owner)
        yield "lag watch", lags.run()
        reader = IncidentReader(*stores, self.registry, clock, lambda: self._trouble, self._warnings)
        publish = [self._telemetry.events.changed]
        if self._notices is not None:
            publish.append(self._notices.publish)
            yield "notices", self._notices.run()
        incidents = IncidentWatch(reader, context.state, lags.look, clock, metrics, publish)
        leased = LeasedTask(context.state, clock, "incident-watch", owner)
        if context.plan.sends:  # a process that sends nothing may lack secrets, and would see incidents in that
            yield "incident watch", leased.run(incidents.look, incidents.idle, EVERY_S)
        # others may lack the right to read its topics
        if (history := self._history.store) is not None and context.plan.roles & {API, HISTORY}:
            yield "history watch", HistoryWatch(history, *stores, clock, metrics, owner).run()
        window_s, rate = settings.dedup_window, settings.rebuild_rate
        rebuilding = Rebuilding(*stores, clock, self._retrier, metrics, owner=owner, window_s=window_s, rate=rate)
        yield "rebuilding", rebuilding.run()

    async def _run_lanes(self, stop: asyncio.Event) -> None:
        lanes, changes = self._delivery.lanes, self.registry.lane_changes()
        services = {**lanes.services(), **self._history.services()}
        await Supervisor(services, changes, lanes.update, self._clock, self._telemetry.observer).run(stop)

    async def _close(self) -> None:
        await self._http.close()
        if self._member is not None:
            leave_counts(self._member, self.metrics.render())
        await self._delivery.close()
        await self._history.close()
        await self._context.log.close()
        await self._telemetry.statistics.end()
        await self._context.state.close()
        await self._telemetry.close()


def keep_startup_heap() -> None:
    """Call once, after startup: the objects that exist now (modules, classes, connections) live until the process ends.

    Frozen, they are never scanned again. Nearly everything else is freed by its reference count; but at thousands of
    messages a second, objects in flight come and go so fast that the young generation would be scanned hundreds of
    times a second, for next to no garbage.
    """
    gc.collect()  # else current garbage is kept for good, too
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
