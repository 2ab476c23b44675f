"""One process of the relay: wires ports and workers, and looks after them. The only place that knows all the parts."""

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from relay import __version__
from relay.api.app import ApiContext, ApiServer
from relay.api.siblings import Member, Siblings
from relay.config.apply import apply_file
from relay.config.receivers_file import ReceiversFile, load_receivers_file
from relay.config.registry import Registry
from relay.config.settings import Settings
from relay.config.watch import Stamp, file_stamp, watch_file
from relay.delivery.guard import AddressGuard
from relay.delivery.lean_transport import LeanTransport
from relay.delivery.port import Transport
from relay.domain.answer_token import issue
from relay.domain.errors import LogUnavailable, Unavailable, UserError
from relay.domain.hop import Hop
from relay.domain.identity import MessageId
from relay.domain.receiver import Receiver
from relay.domain.topics import Topics
from relay.engine.clock import Clock
from relay.engine.patience import Patience
from relay.engine.recovery import Recovery
from relay.engine.supervisor import Supervisor
from relay.engine.tasks import end
from relay.heap import keep_startup_heap
from relay.lanes import Lanes
from relay.log.checks import problem_of
from relay.log.pacing import load_here
from relay.log.port import Log
from relay.plan import API, Plan
from relay.state.port import State
from relay.telemetry.logging import get_logger
from relay.telemetry.meter import MetricsMeter
from relay.telemetry.metrics import Metrics
from relay.telemetry.observer import TelemetryObserver
from relay.telemetry.sentry import SentryReporter
from workers.outside import Outside

FILE_LEASE: Final = "receivers-file"
FILE_LEASE_S: Final = 15.0
LOG_LOOK_S: Final = 5.0
STATE_LOOK_S: Final = 1.0
NOBODY: Final = MessageId("-", "-")
"""Looked up to see whether the state answers."""

_log = get_logger("relay.process")


class Relay:
    """One process of the relay, on whatever log and state it is given. `member`: which of several started together."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        state: State,
        plan: Plan,
        environ: Mapping[str, str],
        clock: Clock,
        member: Member | None = None,
    ) -> None:
        self._settings = settings
        self._log = log
        self._state = state
        self._plan = plan
        self._clock = clock
        self._member = member
        self._topics = Topics(settings.topic_prefix)
        self._sentry = SentryReporter()
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._trouble: dict[str, str | None] = {"start": "connecting", "receivers": "not read yet"}
        self._api: ApiServer | None = None
        self._for_siblings: ApiServer | None = None
        self._file_stamp: Stamp | None = None
        self.api_url: str | None = None
        self.hangup = asyncio.Event()
        """Set it to have the receivers file read again."""
        self.registry = Registry(self._topics, environ)
        self.metrics = Metrics(__version__)
        self._meter = MetricsMeter(self.metrics)
        observer = TelemetryObserver(self.metrics, self._sentry, lambda: self._recovery.ask())
        self._patience = Patience(clock, observer)
        self._recovery = Recovery(
            log,
            state,
            self._topics.parked(),
            clock,
            observer,
            self._patience,
            owner=self._owner,
            in_doubt_s=settings.dedup_window,
        )
        self._transport = _transport_of(settings)
        self._lanes = Lanes(
            settings,
            plan,
            self.registry,
            log,
            state,
            Outside(self._transport, clock, random.random, f"relay/{__version__}", self._answer_url, self._meter),
            observer,
            self._patience,
            self._sentry,
            load_here(),
        )

    # life

    async def run(self, stop: asyncio.Event, started: Callable[[], None] = lambda: None) -> None:
        """Until `stop`; then what is in flight is finished. Waits for Kafka and Redis. Raises UserError."""
        settings = self._settings
        dsn = settings.sentry_dsn.get_secret_value() if settings.sentry_dsn else None
        self._sentry.start(dsn, settings.sentry_environment or "production", __version__)
        try:
            await self._open_api()
            if await self._unless_stopped(self._connect(), stop):
                await self._serve(stop, started)
        finally:
            await self._close()

    async def _connect(self) -> None:
        await self._patience.until_done("connect to the log", self._log.start)
        await self._patience.until_done("check the topics", self._check_topics)
        await self._patience.until_done("connect to the state", self._state.start)
        await self._transport.start()
        self._trouble["start"] = None
        if self._plan.apply_file:
            await self._patience.until_done("apply the receivers file", self._apply_file)
        else:
            self._read_file()

    async def _serve(self, stop: asyncio.Event, started: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            topics = [self._topics.from_sender]
            background = [
                tasks.create_task(self._follow_registry()),
                tasks.create_task(self._recovery.run()),
                tasks.create_task(self._watch("log", LOG_LOOK_S, partial(self._log.describe, topics))),
                tasks.create_task(self._watch("state", STATE_LOOK_S, partial(self._state.messages, [NOBODY]))),
            ]
            if self._plan.apply_file:
                background.append(tasks.create_task(self._watch_file()))
            await self._unless_stopped(self.registry.ready.wait(), stop)
            self._trouble["receivers"] = None
            self._warn_of_unknown_receivers()
            background.append(tasks.create_task(self._tell_draining(stop)))
            if await self._unless_stopped(self._recovery.healed.wait(), stop):
                keep_startup_heap()
                started()
                await Supervisor(self._lanes.wanted, self.registry.changes()).run(stop)
            await end(background)

    def _warn_of_unknown_receivers(self) -> None:
        """A name that nobody has may be a typo, or a receiver that is registered later."""
        unknown = sorted((self._plan.receivers or frozenset()) - self.registry.receivers().keys())
        if unknown:
            _log.warning("receivers_unknown", names=unknown, known=sorted(self.registry.receivers()))

    async def _tell_draining(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._trouble["stopping"] = "finishing what is in flight"

    async def _close(self) -> None:
        for server in (self._api, self._for_siblings):
            if server is not None:
                await server.stop()
        await self._transport.close()
        await self._log.close()
        await self._state.close()
        await asyncio.to_thread(self._sentry.close)

    async def _unless_stopped(self, work: Awaitable[object], stop: asyncio.Event) -> bool:
        """Do `work`, unless `stop` comes first: then False."""
        doing = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                await doing
                return True
            return False
        finally:
            for each in (doing, stopping):
                each.cancel()
                with suppress(asyncio.CancelledError, Unavailable):
                    await each

    # what looks after the rest

    async def _check_topics(self) -> None:
        """Refuse to start without the topics; say what else is off about them."""
        specs = {spec.name: spec for spec in self._topics.fixed()}
        there = await self._log.describe(list(specs))
        missing = sorted(specs.keys() - there.keys())
        if missing:
            raise UserError(f"topic {missing[0]} is not there ({len(missing)} are missing): run `relay topics apply`")
        problems = {name: problem_of(specs[name], state) for name, state in there.items()}
        for problem in sorted({problem for problem in problems.values() if problem}):
            names = sorted(name for name, found in problems.items() if found == problem)
            _log.warning("topic_problem", problem=problem, topics=names)
        retention_s = there[self._topics.from_sender].spec.retention_s or 0
        if self._settings.dedup_window < retention_s:
            _log.warning("dedup_window_short", dedup_window_s=self._settings.dedup_window, retention_s=retention_s)

    async def _apply_file(self) -> None:
        """Bring the receivers file into force: by one process at a time, and to the same end whoever does it."""
        self._file_stamp = file_stamp(self._settings.receivers_file)
        file = self._read_file()
        if file is None:
            return
        while not await self._state.lease(FILE_LEASE, self._owner, FILE_LEASE_S):
            await self._clock.sleep(0.2)
        try:
            diff = await apply_file(self._log, file, self._topics)
        finally:
            await self._state.release(FILE_LEASE, self._owner)
        if diff:
            _log.info("receivers_applied", added=diff.added, changed=diff.changed, removed=diff.removed)

    def _read_file(self) -> ReceiversFile | None:
        """The receivers file; secrets that are written out in it become known to this process."""
        path = self._settings.receivers_file
        file = self._plan.with_entries(load_receivers_file(path) if path.exists() else None)
        if file is not None:
            self.registry.learn(file)
        return file

    async def _watch_file(self) -> None:
        path = self._settings.receivers_file
        await watch_file(path, self._apply_file, self._file_problem, self.hangup, since=self._file_stamp)

    def _file_problem(self, error: UserError | Unavailable) -> None:
        _log.error("receivers_file_refused", error=str(error), in_force="the former one")

    async def _follow_registry(self) -> None:
        while True:
            try:
                await self.registry.follow(self._log)
            except LogUnavailable as error:
                await self._patience.pause("follow the registry", error)

    async def _watch(self, part: str, every_s: float, look: Callable[[], Awaitable[object]]) -> None:
        """Whether a part answers: for /readyz, and for whoever reads the log."""
        while True:
            try:
                await look()
                trouble = None
            except Unavailable as error:
                trouble = str(error)
            if trouble and not self._trouble.get(part):
                _log.warning("away", part=part, error=trouble)
            elif self._trouble.get(part) and not trouble:
                _log.info("back", part=part)
            self._trouble[part] = trouble
            await self._clock.sleep(every_s)

    # the API

    async def _open_api(self) -> None:
        """The API, or in a process without that role the health routes, where a port is set for them."""
        settings, siblings = self._settings, None
        if self._member is not None:
            siblings = Siblings(self._member)
            self._for_siblings = ApiServer(self._api_context(), health_only=True)
            await self._for_siblings.start_private(self._member.socket)
        if API in self._plan.roles:
            self._api = ApiServer(self._api_context(siblings))
            port = await self._api.start(settings.api_host, settings.api_port)
            self.api_url = f"http://{settings.api_host}:{port}"
        elif settings.metrics_port is not None:
            self._api = ApiServer(self._api_context(siblings), health_only=True)
            await self._api.start(settings.api_host, settings.metrics_port)

    def _api_context(self, siblings: Siblings | None = None) -> ApiContext:
        settings = self._settings
        return ApiContext(
            log=self._log,
            state=self._state,
            topics=self._topics,
            directory=self.registry,
            metrics_text=self.metrics.render,
            ready=lambda: self._trouble,
            api_key=settings.api_key.get_secret_value() if settings.api_key else None,
            answer_secret=self._plan.answer_secret or b"",
            max_payload_bytes=settings.max_payload_bytes,
            answer_body_cap=settings.answer_body_cap,
            clock=self._clock,
            new_id=lambda: secrets.token_hex(16),
            meter=self._meter,
            siblings=siblings,
        )

    def _answer_url(self, receiver: Receiver, hop: Hop) -> str | None:
        base, secret = self._settings.public_url or self.api_url, self._plan.answer_secret
        if base is None or secret is None:
            return None
        expires = int(self._clock.time() + receiver.answer_deadline)
        return f"{base}/v1/answers/{issue(secret, hop.delivery, hop.generation, expires)}"


def _transport_of(settings: Settings) -> Transport:
    """The lean transport; only aiohttp speaks to proxies."""
    guard = AddressGuard(settings.allow_private_networks, allow_http=bool(settings.allow_http))
    cap, ca_file = settings.answer_body_cap, str(settings.ca_file) if settings.ca_file else None
    if settings.egress_proxy is None:
        return LeanTransport(guard, body_cap=cap, ca_file=ca_file)
    from relay.delivery.aiohttp_transport import AiohttpTransport

    return AiohttpTransport(guard, body_cap=cap, ca_file=ca_file, proxy=settings.egress_proxy.get_secret_value())
