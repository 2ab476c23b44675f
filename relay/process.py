"""One process of the relay: wires ports and workers, and looks after them. The only place that knows all the parts."""

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from relay import __version__
from relay.api.app import ApiContext
from relay.api.batch import largest_body
from relay.api.limits import limits_of
from relay.api.siblings import Member, Siblings
from relay.api.web_rules import WebRules
from relay.clock import Clock
from relay.config.answer_urls import AnswerUrls
from relay.config.encryption import KeyRing
from relay.config.key_desk import KeyDesk
from relay.config.own_address import may_be_open, own_names
from relay.config.references import usable_variables
from relay.config.registry import Registry
from relay.config.session_secrets import launch_secret, session_secrets
from relay.config.setting_values import key_of
from relay.config.settings import Settings, origins_of
from relay.doctor.cases import look_from_inside
from relay.domain.hop import Hop
from relay.domain.identity import MessageId
from relay.domain.receiver import Receiver
from relay.domain.topics import Topics
from relay.engine.recovery import Holding, Recovery
from relay.engine.supervision import Patience, Supervisor, end, telling, unless_stopped
from relay.engine.turnstile import Turnstile, attend
from relay.front import Front
from relay.heap import keep_startup_heap
from relay.history_part import HistoryPart
from relay.lanes import Lanes
from relay.log.port import Log
from relay.pages.web import pages_of
from relay.plan import Plan
from relay.registering import registrar_of
from relay.replay.desk import Desk
from relay.shared_work import SharedWork
from relay.state.port import State
from relay.state.rows import TAGS
from relay.telemetry.levels import show_levels
from relay.telemetry.logging import get_logger
from relay.telemetry.meter import MetricsMeter
from relay.telemetry.metrics import Metrics
from relay.telemetry.observer import TelemetryObserver
from relay.telemetry.sentry import SentryReporter
from relay.telemetry.tallies import Tallies
from relay.watch.answer_urls import tell_answer_urls
from relay.watch.attempt_log import AttemptLog
from relay.watch.event_loop import LoopWatch
from relay.watch.known import NAMES_SHOWN, count_refused, follow_registry, tell_unknown
from relay.watch.own_events import OwnEvents
from relay.watch.parked import ParkedWatch
from relay.watch.parts import tell_draining, watch_part
from relay.watch.receivers_file import FileWatch
from relay.watch.rights import check_rights
from relay.watch.shared_clock import ClockWatch, SharedClock
from relay.watch.statistics import StatisticsTeller
from relay.watch.topics import TopicWatch
from relay.watch.traces import traces_of
from relay.watch.verifier import Verifier, origin_of
from relay.watch.warnings import warnings_of
from relay.way_out import requests_of, transport_of
from workers.journal import all_of
from workers.outside import Outside

LOG_LOOK_S: Final = 5.0
STATE_LOOK_S: Final = 1.0
NOBODY: Final = MessageId("-", "-")
"""Looked up to see whether the state answers."""

_USER_AGENT: Final = f"relay/{__version__}"

_log = get_logger("relay.process")


class Relay:
    """One process of the relay, on whatever log and state it is given. `member`: which of several started together.

    `exit_when_stuck`: end the process when its event loop stands still until the groups put its members out.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        state: State,
        plan: Plan,
        environ: Mapping[str, str],
        clock: Clock,
        member: Member | None = None,
        *,
        exit_when_stuck: bool = False,
    ) -> None:
        self._settings = settings
        self._log = log
        self._state = state
        self._plan = plan = plan if settings.history_url is not None else plan.without_history()
        self._clock = shared = SharedClock(clock, state)
        self._keeps = True
        """Whether this process takes part in what one of all does for the others."""
        self._topics = Topics(settings.topic_prefix)
        self._sentry = SentryReporter()
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._trouble: dict[str, str | None] = {"start": "connecting", "receivers": "not read yet"}
        self._front = Front(settings, plan, member, self._api_context)
        self._variables = usable_variables(environ, settings.secrets_from)
        self._ring = KeyRing((*map(key_of, settings.secrets_key), *plan.secrets_keys))
        self.registry = Registry(
            self._topics,
            self._variables,
            lambda owner: self._lanes.pump.resumed(owner),
            ring=self._ring,
        )
        self.metrics = Metrics(__version__)
        tallies = Tallies(shared.time)
        self._meter = MetricsMeter(self.metrics, tallies)
        self._statistics = StatisticsTeller(tallies, state, shared, teller=self._owner, took=self.metrics.weigh)
        tells_all = settings.log_level == "debug"
        self._observer = observer = TelemetryObserver(
            self.metrics,
            self._sentry,
            lambda: self._recovery.ask(),
            tells_attempts=lambda gate: tells_all or plan.tells_attempts(gate),
            turned=lambda turn, receiver, since: self._events.turned(turn, receiver, since),
        )
        # A member that sends no heartbeat for its session timeout is put out; heartbeats come from the loop.
        self._loop_watch = LoopWatch(self.metrics, settings.kafka_session_timeout / 2 if exit_when_stuck else None)
        told = observer.parked_in_all if plan.index == 0 else lambda _count, _cap: None
        self._parked_watch = ParkedWatch(state, shared, settings.parked_total, told)
        self._patience = patience = Patience(shared, observer)
        self._events = OwnEvents(log, state, self._topics, self.registry, shared, patience, self.metrics)
        self._attempts = AttemptLog(log, self._topics, shared, self.metrics, share=settings.attempt_log)
        self._traces = traces_of(environ, plan, self._topics, shared)
        self._history = HistoryPart(settings, plan, log, self._topics, shared, patience, self.metrics)
        self._topic_watch = TopicWatch(log, self._topics, settings, self.registry, shared, patience)
        self._file = FileWatch(settings, plan, self.registry, log, state, self._topics, shared, owner=self._owner)
        self.hangup = self._file.hangup
        """Set it to have the receivers file read again."""
        self._holding = Holding(log, state, self._topics.receiver_config)
        launch = launch_secret(None if member is None else member.directory)
        self._session_secrets = session_secrets(settings, plan.answer_secrets, launch)
        self._keys = KeyDesk(log, self._topics.receiver_config, self.registry.keys, self.registry.reach)
        self._recovery = Recovery(
            log,
            state,
            self._topics.parked(),
            shared,
            observer,
            self._patience,
            owner=self._owner,
            in_doubt_s=settings.dedup_window,
            holding=self._holding,
        )
        seats = requests_of(settings)
        self._turnstile = Turnstile(shared, observer, seats)
        self._transport = transport_of(settings, seats)
        self._verifier = Verifier(
            log,
            state,
            self._topics,
            self.registry,
            self._transport,
            shared,
            secrets.token_bytes,
            owner=self._owner,
            user_agent=_USER_AGENT,
            origin=origin_of(settings.public_url),
        )
        self._lanes = Lanes(
            settings,
            plan,
            self.registry,
            log,
            state,
            Outside(
                self._transport,
                shared,
                random.random,
                _USER_AGENT,
                self._answer_url,
                self._meter,
                all_of(self._attempts.journal, self._traces),
                self._traces,
                turnstile=self._turnstile,
            ),
            observer,
            self._patience,
            self._sentry,
            self._events,
            process=self._owner,
        )
        show_levels(self.metrics, self._lanes.levels)
        self._desk = Desk(
            log,
            state,
            self._topics,
            self.registry,
            self.registry,
            self.registry.jobs,
            shared,
            lanes=self._lanes.own,
            reach=self.registry.reach,
            max_payload_bytes=settings.max_payload_bytes,
            dedup_window_s=settings.dedup_window,
        )

    @property
    def api_url(self) -> str | None:
        """None until it is open, and in a process without one."""
        return self._front.url

    # life

    async def run(self, stop: asyncio.Event, started: Callable[[], None] = lambda: None) -> None:
        """Until `stop`; then what is in flight is finished. Waits for Kafka and Redis. Raises UserError."""
        settings = self._settings
        dsn = settings.sentry_dsn.get_secret_value() if settings.sentry_dsn else None
        pages = settings.public_url if settings.pages else None
        self._sentry.start(dsn, settings.sentry_environment or "production", __version__, pages)
        watching = asyncio.create_task(self._loop_watch.run())
        try:
            await self._front.open()
            if await unless_stopped(self._connect(), stop):
                await self._serve(stop, started)
        finally:
            await self._close()
            await end([watching])

    async def _connect(self) -> None:
        await self._patience.until_done("connect to the log", self._log.start)
        look = partial(check_rights, self._log, self._topics, self._plan.roles)
        self._keeps = await self._patience.until_done("check the rights", look)
        await self._patience.until_done("check the topics", self._topic_watch.check_fixed)
        await self._patience.until_done("connect to the state", self._state.start)
        for problem in await self._patience.until_done("look at the state's server", self._state.problems):
            _log.warning("state_problem", problem=problem)
        await self._patience.until_done("ask the state for the time", self._clock.measure)
        await self._transport.start()
        self._trouble["start"] = None
        await self._file.read()

    async def _serve(self, stop: asyncio.Event, started: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            topics = [self._topics.from_sender]

            def start(name: str, work: Awaitable[None]) -> asyncio.Task[None]:
                return tasks.create_task(telling(self._observer, name, work))

            watched = partial(watch_part, self._trouble, self._clock)
            background = [
                start("follow the registry", follow_registry(self.registry, self._log, self._patience)),
                start("recovery", self._recovery.run()),
                start("pump", self._lanes.pump.run()),
                start("signs of life", self._lanes.roster.run(self._state, self._clock)),
                start("attendance", self._attend()),
                start("clock watch", ClockWatch(self._clock, self.metrics).run()),
                start("log watch", watched("log", LOG_LOOK_S, partial(self._log.describe, topics))),
                start("state watch", watched("state", STATE_LOOK_S, partial(self._state.messages, [NOBODY]))),
            ]
            if await unless_stopped(self._know_receivers(), stop):
                await unless_stopped(self._topic_watch.check_lanes(), stop)
            self._trouble["receivers"] = None
            tell_unknown(self.registry, self._plan.receivers or ())
            some = {**self.registry.receivers(), **self.registry.shared.some(NAMES_SHOWN)}
            tell_answer_urls(self._settings, self._plan, self._answer_urls(), some)
            background += [
                start("stop watch", tell_draining(self._trouble, stop)),
                start("lane checks", self._topic_watch.run()),
                start("refused receivers", count_refused(self.registry, self.metrics)),
                start("parked watch", self._parked_watch.run()),
                start("own events", self._events.run()),
                start("attempt log", self._attempts.run()),
                start("statistics", self._statistics.run()),
            ]
            if self._keeps:
                background += [start(name, work) for name, work in self._shared_work().parts()]
            if "to-receiver" in self._plan.roles:
                background.append(start("verifications", self._verifier.run()))
            if await unless_stopped(self._recovery.healed.wait(), stop):
                keep_startup_heap()
                self._loop_watch.arm()
                started()
                await self._run_lanes(stop)
            await self._events.end()
            await self._attempts.end()
            await end(background)

    async def _know_receivers(self) -> None:
        """With those of the receivers file, where this process brings it into force. Raises UserError."""
        await self.registry.ready.wait()
        if self._plan.apply_file and self._keeps:
            await self._patience.until_done("apply the receivers file", self._file.bring_into_force)

    async def _run_lanes(self, stop: asyncio.Event) -> None:
        changes = self.registry.lane_changes()
        await Supervisor(self._history.beside(self._lanes.wanted), changes, self._clock, self._observer).run(stop)

    async def _close(self) -> None:
        await self._front.close()
        await self._transport.close()
        await self._history.close()
        await self._log.close()
        await self._statistics.end()
        await self._state.close()
        await asyncio.to_thread(self._sentry.close)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    # what looks after the rest

    def _shared_work(self) -> SharedWork:
        return SharedWork(
            settings=self._settings,
            plan=self._plan,
            log=self._log,
            state=self._state,
            topics=self._topics,
            registry=self.registry,
            clock=self._clock,
            patience=self._patience,
            metrics=self.metrics,
            lanes=self._lanes,
            desk=self._desk,
            file=self._file,
            history=self._history.store,
            owner=self._owner,
        )

    async def _attend(self) -> None:
        if self._plan.roles & {"to-receiver", "from-receiver-async", "to-sender"}:
            await attend(self._state, self._clock, self._turnstile, range(TAGS))

    # the API

    def _api_context(self, siblings: Siblings | None) -> ApiContext:
        settings = self._settings
        return ApiContext(
            log=self._log,
            state=self._state,
            topics=self._topics,
            directory=self.registry,
            metrics_text=self.metrics.render,
            ready=lambda: self._trouble,
            api_key=settings.api_key.get_secret_value() if settings.api_key else None,
            answer_secrets=self._plan.answer_secrets,
            max_payload_bytes=settings.max_payload_bytes,
            answer_body_cap=settings.answer_body_cap,
            clock=self._clock,
            new_id=lambda: secrets.token_hex(16),
            meter=self._meter,
            siblings=siblings,
            web=WebRules(own_names(settings), settings.public_url),
            limits=limits_of(settings, largest_body(settings.max_payload_bytes)),
            key_quota=settings.api_key_quota,
            source_quota=settings.source_quota,
            registrar=registrar_of(
                settings,
                self._log,
                self._state,
                self.registry,
                self._clock,
                self._variables,
                self._ring,
                owner=self._owner,
            ),
            verify=self._verifier.try_now,
            history=self._history.store,
            settings=origins_of(settings),
            keeps_bodies=settings.history_bodies > 0,
            warnings=partial(warnings_of, self._parked_watch, self._topic_watch, self._clock),
            lanes=self._lanes.own,
            replays=self._desk,
            keys=self._keys,
            transport=self._transport,
            user_agent=_USER_AGENT,
            tracing=self._traces,
            own_key=self._plan.own_key,
            session_secrets=self._session_secrets,
            public_url=settings.public_url,
            may_be_open=may_be_open(settings),
            owner_receivers=settings.api_owner_receivers,
            pages=pages_of(settings.pages, self._clock.time, settings.portal_origins),
            examine=partial(
                look_from_inside,
                *(settings, self._plan, self._clock, self._log, self._state, self.registry),
                history=self._history.store,
            ),
        )

    def _answer_url(self, receiver: Receiver, hop: Hop) -> str | None:
        expires = int(self._clock.time() + receiver.answer_deadline)
        return self._answer_urls().of(hop.delivery, hop.generation, expires)

    def _answer_urls(self) -> AnswerUrls:
        return AnswerUrls(self._plan.answer_secrets, self._settings.public_url or self._front.url)
