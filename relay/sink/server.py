"""Base of the test receivers: an HTTP server on loopback, and records that a test can wait for."""

import asyncio
from typing import Final, TypeVar

from aiohttp import web

from relay.domain.errors import UserError

_REMEMBERED: Final = 100_000
"""Maximum number of records of each kind; older ones are dropped, so that a test receiver can run for days."""
T = TypeVar("T")


class LocalServer:
    """An HTTP server that can be stopped and started again, also on the same port."""

    def __init__(self) -> None:
        self._runner: web.AppRunner | None = None
        self._address = ("127.0.0.1", 0)

    async def start(self, app: web.Application, host: str, port: int) -> None:
        """Listen; port 0 selects a free one. Raises UserError if the address is not available."""
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except (OSError, UnicodeError) as error:
            await self._runner.cleanup()
            why = getattr(error, "strerror", None) or error
            raise UserError(f"cannot listen on {host}:{port}: {why}; try another --host or --port") from error
        self._address = (host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening, and drop requests in progress. May be called twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def origin(self) -> str:
        host, port = self._address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Recording:
    """Notes records in lists, and waits until a list has enough of them."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def note(self, records: list[T], record: T) -> None:
        records.append(record)
        if len(records) > 2 * _REMEMBERED:
            del records[:-_REMEMBERED]
        self._changed.set()

    async def wait(self, records: list[T], count: int, timeout_s: float) -> list[T]:
        """`records`, once there are `count` of them. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(records) < count:
                self._changed.clear()
                await self._changed.wait()
        return records
