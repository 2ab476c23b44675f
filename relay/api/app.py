"""The HTTP API as a web application, and the server that runs it."""

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from relay.api.answers import AnswersResource
from relay.api.auth import require_key
from relay.api.batch import BatchResource
from relay.api.context import ApiContext as ApiContext
from relay.api.failed import FailedResource
from relay.api.health import Health, require_start
from relay.api.intake import Intake
from relay.api.messages import MessagesResource
from relay.api.problems import problem_details
from relay.api.receivers import ReceiversResource
from relay.api.refusals import Refusals
from relay.api.status import StatusReader, StatusResource
from relay.api.strangers import refuse_strangers
from relay.domain.errors import UserError

_SHUTDOWN_S: Final = 10.0
"""How long requests under way may take when the server stops: an append waits for its acknowledgement."""

_SHARED_PORT: Final = hasattr(socket, "SO_REUSEPORT")
"""Processes of one machine serve the same port, and the system spreads the connections over them."""

_MAX_LINE_BYTES: Final = 80_000
"""Of a request line: 1,000 receivers with the longest of names fit in."""


class _NotOurFault(logging.Filter):
    """aiohttp logs what is no HTTP as an error, with a traceback; anybody can send that."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | RequestPayloadError)


_logger = logging.getLogger("relay.api.http")
_logger.addFilter(_NotOurFault())


def create_app(context: ApiContext, *, health_only: bool = False) -> web.Application:
    """All routes. Senders may call with the API key, receivers with their answer URLs, monitoring without either.

    `health_only`: just what monitoring asks, for processes that only work.
    """
    refusals = Refusals(context.clock)
    app = web.Application(
        middlewares=[
            problem_details,
            refuse_strangers(context.web, refusals),
            require_key(context.api_key, context.clock, refusals),
            require_start(context),
        ]
    )
    app.on_response_prepare.append(_set_fixed_headers)
    if health_only:
        Health(context).add_routes(app.router)
        return app
    reader = StatusReader(context.log, context.state, context.topics, context.directory, context.clock)
    intake = Intake(context)
    for resource in (
        MessagesResource(context, reader, intake),
        BatchResource(context, intake),
        StatusResource(reader),
        AnswersResource(context, reader),
        FailedResource(context),
        ReceiversResource(context),
        Health(context),
    ):
        resource.add_routes(app.router)
    return app


class ApiServer:
    """The API on a port, or a unix socket, of this process."""

    def __init__(self, context: ApiContext, *, health_only: bool = False) -> None:
        self._context = context
        self._health_only = health_only
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port: a free one for 0. Raises UserError when the address cannot be had."""
        try:
            runner = await self._serve(
                lambda runner: web.TCPSite(runner, host, port, reuse_port=_SHARED_PORT and port != 0)
            )
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another api_port") from error
        return int(runner.addresses[0][1])

    async def start_private(self, path: Path) -> None:
        """Listen on a unix socket. Who may reach it is a matter of the directory that it is in. Raises OSError."""
        await self._serve(lambda runner: web.UnixSite(runner, str(path)))

    async def _serve(self, site: Callable[[web.AppRunner], web.BaseSite]) -> web.AppRunner:
        runner = web.AppRunner(
            create_app(self._context, health_only=self._health_only),
            access_log=None,
            logger=_logger,
            max_line_size=_MAX_LINE_BYTES,
            auto_decompress=False,  # what is encoded is refused, so it must not be unpacked first
            shutdown_timeout=_SHUTDOWN_S,
        )
        await runner.setup()
        try:
            await site(runner).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return runner

    async def stop(self) -> None:
        """Finish the requests under way, then close. May be called twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


async def _set_fixed_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "relay"
    response.headers["X-Content-Type-Options"] = "nosniff"
    if request.path.startswith("/v1/"):
        response.headers["Cache-Control"] = "no-store"
