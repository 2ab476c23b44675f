"""The health of what is POSTed to, and holding it by hand: the way back for one that said 410, or was disabled."""

from collections.abc import Awaitable, Callable
from math import inf, isinf
from typing import Any, Literal, NamedTuple

import msgspec
from aiohttp import web

from relay.api.context import ApiContext
from relay.api.problems import NOT_FOUND, Problem
from relay.api.reading import query_of, source_in_path
from relay.api.view import rfc3339
from relay.domain.receiver import Endpoint
from relay.state.port import EndpointHealth


class Found(NamedTuple):
    """`owner`: of the endpoint in the state. `endpoint`: its settings; None where there are none but refused ones.
    `refused`: why its newest settings are not in force."""

    owner: str
    endpoint: Endpoint | None
    refused: str | None = None


Find = Callable[[web.Request], Found]


class ReceiversResource:
    """`GET /v1/receivers/{name}`, and `POST` to its `/pause` and `/resume`.

    The same of a source's callback under `/v1/sources/{source_id}/callback`.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for path, find in (
            ("/v1/receivers/{name}", self._receiver),
            ("/v1/sources/{source_id:[^/]+}/callback", self._callback),
        ):
            router.add_get(path, self._handler(find, None))
            router.add_post(f"{path}/pause", self._handler(find, inf))
            router.add_post(f"{path}/resume", self._handler(find, 0))

    def _handler(self, find: Find, pause_s: float | None) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Shows an endpoint's health. Before, with `pause_s` inf: send it nothing until it is resumed; its messages
        wait, and their max_age goes on. 0: send to it again, close its breaker, and forget its outage."""

        async def handle(request: web.Request) -> web.Response:
            query_of(request)
            found = find(request)
            if pause_s is not None:
                await self._context.state.pause(found.owner, pause_s)
            return await self._health(found)

        return handle

    def _receiver(self, request: web.Request) -> Found:
        name = request.match_info["name"]
        receiver, refused = self._context.directory.receiver(name), self._context.directory.refusal(name)
        if receiver is None and refused is None:
            raise Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r}.")
        return Found(f"r:{name}", receiver.post if receiver is not None else None, refused)

    def _callback(self, request: web.Request) -> Found:
        source_id = source_in_path(request)
        callback = self._context.directory.source(source_id).callback
        if callback is None:
            raise Problem(NOT_FOUND, f"The source {source_id[:80]!r} has no callback.")
        return Found(f"s:{source_id}", callback)

    async def _health(self, found: Found) -> web.Response:
        state, now, owner = self._context.state, self._context.clock.time(), found.owner
        [health] = await state.endpoints([owner])
        [parked] = await state.parked([owner])
        disabled_s = health.disabled_for_s
        body: dict[str, Any] = {
            "name": owner[2:],
            "condition": "refused" if found.endpoint is None else condition(health, found.endpoint),
            "refused": found.refused,
            "failing_since": rfc3339(now - health.failing_for_s) if health.failing_for_s else None,
            "disabled_since": None if disabled_s is None else rfc3339(now - disabled_s),
            "paused": health.paused_for_s > 0,
            "paused_for_s": None if isinf(health.paused_for_s) else health.paused_for_s,
            "breaker": health.breaker,
            "failures": health.failures,
            "parked": {"retries": parked.retries, "polls": parked.polls},
        }
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def condition(health: EndpointHealth, endpoint: Endpoint) -> Literal["up", "failing", "offline", "paused", "disabled"]:
    """What is sent to an endpoint now. `failing`: nothing for a moment, its breaker is open; `offline`: pings."""
    if health.disabled_for_s is not None:
        return "disabled"
    if health.paused_for_s > 0:
        return "paused"
    if health.breaker == "closed":
        return "up"
    return "offline" if health.failing_for_s >= endpoint.breaker.offline.after else "failing"
