"""A receiver's health, and holding it by hand: the way back for one that said 410."""

from math import inf, isinf
from typing import Any

import msgspec
from aiohttp import web

from relay.api.context import ApiContext
from relay.api.problems import NOT_FOUND, Problem
from relay.api.reading import query_of


class ReceiversResource:
    """`GET /v1/receivers/{name}`, and `POST` to its `/pause` and `/resume`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/receivers/{name}", self.get)
        router.add_post("/v1/receivers/{name}/pause", self.pause)
        router.add_post("/v1/receivers/{name}/resume", self.resume)

    async def get(self, request: web.Request) -> web.Response:
        return await self._health(self._owner(request))

    async def pause(self, request: web.Request) -> web.Response:
        """Send it nothing until it is resumed. Its messages wait, and their max_age goes on."""
        owner = self._owner(request)
        await self._context.state.pause(owner, inf)
        return await self._health(owner)

    async def resume(self, request: web.Request) -> web.Response:
        """Send to it again, and close its breaker."""
        owner = self._owner(request)
        await self._context.state.pause(owner, 0)
        return await self._health(owner)

    def _owner(self, request: web.Request) -> str:
        query_of(request)
        name = request.match_info["name"]
        if self._context.directory.receiver(name) is None:
            raise Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r}.")
        return f"r:{name}"

    async def _health(self, owner: str) -> web.Response:
        state = self._context.state
        [health] = await state.endpoints([owner])
        [parked] = await state.parked([owner])
        body: dict[str, Any] = {
            "name": owner[2:],
            "paused": health.paused_for_s > 0,
            "paused_for_s": None if isinf(health.paused_for_s) else health.paused_for_s,
            "breaker": health.breaker,
            "failures": health.failures,
            "parked": {"retries": parked.retries, "polls": parked.polls},
        }
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")
