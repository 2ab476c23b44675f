"""Logs refused requests: once a minute for each cause and caller, not each request."""

from typing import Final

from aiohttp import web

from relay.api.connection import address_of
from relay.api.problem_details import path_of
from relay.clock import Clock
from relay.telemetry.logging import get_logger
from relay.telemetry.throttle import Throttle

_EVERY_S: Final = 60.0
_OVERALL: Final = 20
_CALLERS: Final = 1_000

_log = get_logger("relay.api")


class Refusals:
    """What was refused, for people who look for the cause."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._throttle = Throttle(every_s=_EVERY_S, overall=_OVERALL, keys=_CALLERS)

    def log(self, cause: str, request: web.Request, **facts: object) -> None:
        """`cause`: `host`, `origin`, `key` or `signature`."""
        before = self._throttle.admit((cause, address_of(request)), self._clock.monotonic())
        if before is not None:
            _log.warning(
                "request_refused",
                cause=cause,
                remote=address_of(request),
                path=path_of(request)[:200],
                before=before,
                **facts,
            )
