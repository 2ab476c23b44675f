"""Middleware that bounds each request: memory for its body, bytes of its headers, and what is served at the cap.

Time and number of connections are bounded where they are accepted: see `connection`.
"""

from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from relay.api.body_budget import BodyMemory, BodyReservation
from relay.api.connection import ApiConnection
from relay.api.landing import MONITORING
from relay.api.limits import ApiLimits
from relay.api.problems import HEADERS_TOO_LARGE, RETRY_AFTER_S, UNAVAILABLE, Problem

_FEW_HEADERS: Final = 7
"""Of the greatest size that the parser takes, so many stay under any limit of the sum."""


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """What holds for one request."""

    limits: ApiLimits
    room: BodyReservation


_BOUNDS: Final = web.RequestKey("bounds", RequestBounds)


def bounds_of(request: web.Request) -> RequestBounds:
    """The bounds of a request that `limit_requests` has admitted."""
    return request[_BOUNDS]


def limit_requests(limits: ApiLimits) -> Middleware:
    """The outermost middleware: what a request has taken is given back when it is over."""
    memory = BodyMemory(limits.body_bytes)

    @web.middleware
    async def seated(request: web.Request, handler: Handler) -> web.StreamResponse:
        room = memory.room()
        request[_BOUNDS] = RequestBounds(limits, room)
        try:
            response = await handler(request)
        finally:
            room.leave()
        if _in_reserve(request):
            response.force_close()
        return response

    return seated


def refuse_excess(request: web.Request) -> None:
    """503 for work on a connection beyond the cap, which is there for monitoring; 431 for too many bytes of headers."""
    if _in_reserve(request):
        resource = request.match_info.route.resource
        if resource is None or resource.canonical not in MONITORING:
            detail = "All connections that the API may have are at work; repeat the request."
            raise Problem(UNAVAILABLE, detail, headers={"Retry-After": str(RETRY_AFTER_S)})
    raw, most = request.raw_headers, bounds_of(request).limits.head_bytes
    if len(raw) > _FEW_HEADERS and sum(len(name) + len(value) for name, value in raw) > most:
        raise Problem(HEADERS_TOO_LARGE, f"The headers may have at most {most} bytes in all.")


def _in_reserve(request: web.Request) -> bool:
    connection = request.protocol
    return isinstance(connection, ApiConnection) and connection.in_reserve
