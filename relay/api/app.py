"""The HTTP API as a web application, and the server that runs it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from relay.api.answers import AnswersResource
from relay.api.audit import AuditResource, AuditTrail, keep_audit
from relay.api.authentication import Callers, require_access, require_no_key
from relay.api.batch import BatchResource
from relay.api.bounds import limit_requests, refuse_excess
from relay.api.catch_up import CatchUpResource
from relay.api.connection import FIXED_HEADERS, MAX_HEADERS, MAX_LINE_BYTES, ApiConnection, ConnectionGate
from relay.api.context import ApiContext as ApiContext
from relay.api.copies import CopiesResource
from relay.api.doctor import DoctorResource
from relay.api.erasures import ErasuresResource
from relay.api.event_types import EventTypesResource
from relay.api.failed import FailedResource
from relay.api.failed_groups import FailedGroupsResource
from relay.api.gaps import GapsResource
from relay.api.health import Health, require_start
from relay.api.history.resource import HistoryResource
from relay.api.inbound import InboundResource, Redelivery
from relay.api.incidents import IncidentList, IncidentsResource
from relay.api.intake import Intake
from relay.api.keys import KeysResource, KeyUse
from relay.api.landing import PEOPLE
from relay.api.limits import ApiLimits
from relay.api.messages import MessageResource, MessagesResource
from relay.api.origin_check import refuse_strangers
from relay.api.overview.resource import OverviewResource
from relay.api.overview.snapshot import Looker
from relay.api.pages import PagesResource
from relay.api.payloads import PayloadsResource
from relay.api.problems import middleware_of, problem_details
from relay.api.quotas import Quotas, quota_headers
from relay.api.receiver_export import ReceiverExportResource
from relay.api.receiver_list import ReceiverListResource
from relay.api.receivers import ReceiversResource
from relay.api.reencryption import ReencryptionResource
from relay.api.registration import RegistrationResource, RotationResource
from relay.api.rejection_log import Refusals
from relay.api.replay_one import ReplayResource
from relay.api.replays import ReplaysResource
from relay.api.route import add_routes
from relay.api.routes import ROUTES
from relay.api.sessions import SessionsResource
from relay.api.settings import SettingsResource
from relay.api.shared_port import SUPPORTED, SharedPort, Sharing, share_port
from relay.api.sources import SourcesResource
from relay.api.stats import StatsResource
from relay.api.status import StatusReader
from relay.api.tail.resource import TailResource
from relay.api.tail.tail import Tail
from relay.api.test_request import TrialResource
from relay.api.trial import TryResource
from relay.api.verification import VerificationResource
from relay.api.waiters import Waiters
from relay.api.well_known import WellKnownResource
from relay.domain.errors import UserError
from relay.engine.supervision import end

_SHUTDOWN_S: Final = 10.0
"""Time limit for requests in progress when the server stops: an append waits for its acknowledgement."""

_SHARING_HINT: Final = ", or RELAY_API_SHARED_PORT=any where the last release has it"

_BACKLOG: Final = 1_024
"""Connections that the system keeps for us while the loop is at something else."""

_READ_BUFFER: Final = 64 * 1024
"""Bytes of a body that come before it is read; twice that at most."""

Accept = Callable[[], asyncio.Protocol]


class _NotOurFault(logging.Filter):
    """Drops what aiohttp logs, with a traceback, about input that is not HTTP: any client can send that."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | RequestPayloadError)


_logger = logging.getLogger("relay.api.http")
_logger.addFilter(_NotOurFault())


def create_app(
    context: ApiContext, *, health_only: bool = False, private: bool = False, pages: web.Application | None = None
) -> web.Application:
    """All routes. Callers have keys with scopes, signed webhooks, or answer URLs; scopes are checked in `access`.

    `health_only`: just the monitoring routes, for processes without the API. `private`: only our own processes can
    reach it. `pages`: the web pages, mounted under `/ui`.
    """
    refusals, trail = Refusals(context.clock), AuditTrail(context.log, context.topics.audit)
    uses = KeyUse(context.state, context.clock)
    callers = Callers(context, refusals, uses)
    app = web.Application(
        middlewares=[
            limit_requests(context.limits),
            problem_details,
            keep_audit(context, trail),
            middleware_of(
                refuse_excess,
                refuse_strangers(context.web, refusals),
                require_no_key if private else require_access(context, callers),
                require_start(context),
            ),
        ]
    )
    app.on_response_prepare.append(_set_fixed_headers)
    if health_only:
        add_routes(app.router, Health(context))
        return app
    reader = StatusReader(context.log, context.state, context.topics, context.directory, context.clock)
    waiters = Waiters(reader, context.state, context.limits)
    tail = Tail(context.log, context.topics, context.directory, context.limits, context.meter)
    app.on_startup.append(waiters.start)
    app.on_shutdown.extend((waiters.close, tail.close))
    app.on_startup.extend((trail.start, uses.start))
    app.on_cleanup.extend((trail.close, uses.close))  # when the last request is over
    replay = None if context.replays is None else ReplayResource(context, context.replays, reader, waiters)
    export = ReceiverExportResource(context, reader, None if private else callers)
    resources: tuple[object, ...] = (
        *_messages(context, reader, waiters, refusals, replay),
        *_operation(context, uses, callers),
        TailResource(context, tail, None if private else callers),
        export,
        CatchUpResource(context, reader, export),
        *_registration(context),
        Health(context),
        WellKnownResource(context),
        PagesResource(app.router, ROUTES, context.topics, for_people=pages is not None),
        *_actions(context, reader, replay),
    )
    for resource in resources:
        add_routes(app.router, resource)
    if pages is not None:
        app.add_subapp(PEOPLE, pages)
    return app


def _messages(
    context: ApiContext, reader: StatusReader, waiters: Waiters, refusals: Refusals, replay: ReplayResource | None
) -> list[object]:
    """Their ways in, and what became of them."""
    intake, quotas = Intake(context), Quotas(context, refusals)
    messages = MessagesResource(context, reader, intake, quotas, waiters)
    return [
        messages,
        InboundResource(context, messages, intake, refusals, quotas, Redelivery(replay)),
        BatchResource(context, intake, quotas),
        MessageResource(reader, waiters, context.limits.wait_s),
        CopiesResource(context, reader, messages, quotas),
        HistoryResource(context, reader),
        AnswersResource(context, reader),
        PayloadsResource(context, reader),
    ]


def _operation(context: ApiContext, uses: KeyUse, callers: Callers) -> list[object]:
    """Resources for operators, keys and sessions."""
    looker = Looker(context)
    incidents = IncidentList(context, looker)
    letters = FailedResource(context)
    return [
        letters,
        FailedGroupsResource(context, looker.reader, letters),
        ReceiversResource(context),
        StatsResource(context),
        TryResource(context),
        KeysResource(context, uses),
        SessionsResource(context, callers),
        AuditResource(context),
        OverviewResource(context, looker, incidents),
        IncidentsResource(context, incidents),
        SettingsResource(context),
    ]


def _actions(context: ApiContext, reader: StatusReader, replay: ReplayResource | None) -> list[object]:
    """Resources that need a running process."""
    found = list[object]()
    if context.replays is not None and replay is not None:
        jobs = ReplaysResource(context, context.replays)
        found += [jobs, GapsResource(context, jobs), replay]
    if context.catalogue is not None:
        found.append(EventTypesResource(context, context.catalogue))
    if context.erasures is not None:
        found.append(ErasuresResource(context, context.erasures, reader))
    if context.transport is not None:
        found.append(TrialResource(context, context.transport))
    if context.examine is not None:
        found.append(DoctorResource(context, context.examine))
    return found


def _registration(context: ApiContext) -> list[object]:
    registrar = context.registrar
    if registrar is None:
        return []
    return [
        RegistrationResource(context, registrar),
        RotationResource(context, registrar),
        VerificationResource(context, registrar),
        ReceiverListResource(context, registrar),
        SourcesResource(context, registrar),
        ReencryptionResource(context.topics, registrar),
    ]


class ApiServer:
    """The API on a port, or a unix socket, of this process."""

    def __init__(self, context: ApiContext, *, health_only: bool = False) -> None:
        self._context = context
        self._health_only = health_only
        self._runner: web.AppRunner | None = None
        self._listening: list[asyncio.Server] = []
        self._own: TemporaryDirectory[str] | None = None
        """The socket through which only our own pages reach the API."""
        self._keeping: asyncio.Task[None] | None = None
        self._shared_port: SharedPort | None = None
        self.addresses: list[str] = []
        """Where it listens, each as `host:port`."""

    async def start(self, host: str, port: int, sharing: Sharing | None = None) -> int:
        """Listen, and return the port: a free one for 0. Raises UserError when the address cannot be had.

        `sharing`: which processes may have the port together; None: it is for this process alone.
        """

        def listen(accept: Accept, loop: asyncio.AbstractEventLoop) -> Awaitable[asyncio.Server]:
            shared = self._shared_port is not None
            return loop.create_server(accept, host, port, backlog=_BACKLOG, reuse_port=shared or None)

        try:
            if SUPPORTED and port != 0 and sharing is not None:
                self._shared_port = share_port(host, port, sharing)
            listening = await self._serve(listen)
        except (OSError, UnicodeError) as error:
            self._leave_port()
            why = getattr(error, "strerror", None) or error
            raise UserError(
                f"cannot listen on {host}:{port}: {why}; choose another api_host or api_port"
                f"{'' if sharing is None else _SHARING_HINT}"
            ) from error
        names = [sock.getsockname() for sock in listening.sockets]
        self.addresses = [f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}" for name in names]
        return int(names[0][1])

    async def start_private(self, path: Path) -> None:
        """Listen on a unix socket. Who may reach it is a matter of the directory that it is in. Raises OSError."""
        await self._serve(lambda accept, loop: loop.create_unix_server(accept, str(path)), private=True)

    async def _serve(
        self, listen: Callable[[Accept, asyncio.AbstractEventLoop], Awaitable[asyncio.Server]], *, private: bool = False
    ) -> asyncio.Server:
        own = None if self._health_only else self._own_socket()
        pages = None if own is None or self._context.pages is None else self._context.pages(own)
        app = create_app(self._context, health_only=self._health_only, private=private, pages=pages)
        runner = web.AppRunner(app, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        loop, limits = asyncio.get_running_loop(), self._context.limits
        door = ConnectionGate(limits, loop)
        # not by a site of the runner: that would make connections of its own kind
        accept = partial(ApiConnection, cast(web.Server, runner.server), door, loop, **_options(limits))
        try:
            listening = await listen(accept, loop)
            self._listening.append(listening)
            if own is not None:
                of_pages = partial(accept, of_pages=True)
                self._listening.append(await loop.create_unix_server(of_pages, str(own)))
        except (OSError, UnicodeError):
            await runner.cleanup()
            raise
        self._runner, self._keeping = runner, asyncio.create_task(door.keep())
        return listening

    def _own_socket(self) -> Path | None:
        """The pages' own socket, in a directory for this user only. None without pages."""
        if self._context.pages is None:
            return None
        self._own = TemporaryDirectory(prefix="relay-", ignore_cleanup_errors=True)
        return Path(self._own.name) / "api.sock"

    async def stop(self) -> None:
        """Finish the requests in progress, then close. May be called twice."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for listening in self._listening:
            listening.close()
        self._leave_port()
        await runner.cleanup()
        if self._own is not None:
            self._own.cleanup()
        if self._keeping is not None:
            await end([self._keeping])

    def _leave_port(self) -> None:
        shared, self._shared_port = self._shared_port, None
        if shared is not None:
            shared.leave()


def _options(limits: ApiLimits) -> dict[str, Any]:
    """What aiohttp itself keeps a connection to."""
    return {
        "access_log": None,
        "logger": _logger,
        "max_line_size": MAX_LINE_BYTES,
        "max_headers": MAX_HEADERS,
        "auto_decompress": False,  # encoded bodies are refused, so none may be unpacked first
        "keepalive_timeout": limits.idle_s,
        "lingering_time": limits.stall_s,
        "read_bufsize": _READ_BUFFER,
    }


async def _set_fixed_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(FIXED_HEADERS)
    if request.path.startswith("/v1/"):
        response.headers["Cache-Control"] = "no-store"
        response.headers.update(quota_headers(request))
