"""The server that runs the HTTP API."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from relay.api.connection import MAX_HEADERS, MAX_LINE_BYTES, ApiConnection, ConnectionGate
from relay.api.context import ApiContext
from relay.api.routes import create_app
from relay.api.shared_port import SUPPORTED, SharedPort, Sharing, share_port
from relay.config.limits import ApiLimits
from relay.config.private_directory import private_directory
from relay.domain.errors import UserError
from relay.engine.supervision import end

_SHUTDOWN_S: Final = 10.0
"""Time limit for requests in progress when the server stops: an append waits for its acknowledgement."""


_BACKLOG: Final = 1_024
"""Connections that the system keeps for us while the loop is at something else."""

_READ_BUFFER: Final = 64 * 1024
"""Bytes of a body that come before it is read; twice that at most."""

_ALL: Final = ("::", "0.0.0.0")  # noqa: S104 - what `::` stands for, as in other servers on Linux

Accept = Callable[[], asyncio.Protocol]


class _NotOurFault(logging.Filter):
    """Drops what aiohttp logs, with a traceback, about input that is not HTTP: any client can send that."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | RequestPayloadError)


_logger = logging.getLogger("relay.api.http")
_logger.addFilter(_NotOurFault())


class ApiServer:
    """The API on a port, or a unix socket, of this process."""

    def __init__(self, context: ApiContext, *, health_only: bool = False) -> None:
        self._context = context
        self._health_only = health_only
        self._runner: web.AppRunner | None = None
        self._listening: list[asyncio.Server] = []
        self._own = ExitStack()
        """Of the socket through which only our own pages reach the API."""
        self._keeping: asyncio.Task[None] | None = None
        self._shared_port: SharedPort | None = None
        self.addresses: list[str] = []
        """Where it listens, each as `host:port`."""

    async def start(self, host: str, port: int, sharing: Sharing | None = None) -> int:
        """Listen, and return the port: a free one for 0. Raises UserError when the address cannot be had.

        `sharing`: which processes may have the port together; None: it is for this process alone.
        """

        # each of them is a socket: with one for both, IPv4 clients would have addresses in ::ffff:0:0/96
        hosts = _ALL if host == _ALL[0] and port != 0 else host

        def listen(accept: Accept, loop: asyncio.AbstractEventLoop) -> Awaitable[asyncio.Server]:
            shared = self._shared_port is not None
            return loop.create_server(accept, hosts, port, backlog=_BACKLOG, reuse_port=shared or None)

        try:
            if SUPPORTED and port != 0 and sharing is not None:
                self._shared_port = share_port(host, port, sharing)
            listening = await self._serve(listen)
        except (OSError, UnicodeError) as error:
            self._leave_port()
            # the text of asyncio begins with the address, as a tuple
            why = str(getattr(error, "strerror", None) or error).rpartition(": ")[2]
            setting = "RELAY_METRICS_PORT" if self._health_only else "RELAY_API_PORT"
            raise UserError(
                f"cannot listen on {host}:{port}: {why}; choose another RELAY_API_HOST or {setting}"
                f"{'' if sharing is None else ', or RELAY_API_SHARED_PORT=any if an older release listens there'}"
            ) from error
        names = [sock.getsockname() for sock in listening.sockets]
        self.addresses = [f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}" for name in names]
        return int(names[0][1])

    async def start_private(self, path: Path) -> None:
        """Answer monitoring on a unix socket. Who may reach it is a matter of the directory that it is in. Raises
        OSError."""
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
        gate = ConnectionGate(limits, loop)
        # not by a site of the runner: that would make connections of its own kind
        accept = partial(ApiConnection, cast(web.Server, runner.server), gate, loop, **_options(limits))
        try:
            listening = await listen(accept, loop)
            self._listening.append(listening)
            if own is not None:
                of_pages = partial(accept, of_pages=True)
                self._listening.append(await loop.create_unix_server(of_pages, str(own)))
        except (OSError, UnicodeError):
            await runner.cleanup()
            self._own.close()
            raise
        self._runner, self._keeping = runner, asyncio.create_task(gate.keep())
        return listening

    def _own_socket(self) -> Path | None:
        """The pages' own socket, in a directory for this user only. None without pages."""
        if self._context.pages is None:
            return None
        return self._own.enter_context(private_directory()) / "api.sock"

    async def stop(self) -> None:
        """Finish the requests in progress, then close. May be called twice."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for listening in self._listening:
            listening.close()
        self._leave_port()
        await runner.cleanup()
        self._own.close()
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
