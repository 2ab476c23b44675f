"""The pages on top of a scripted API, so that they can be shown any response of the API."""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from aiohttp import web

from relay.api.bounds import limit_requests
from relay.api.shares import shares_of_live_pages
from relay.config.limits import ApiLimits
from relay.pages.web import create_pages
from relay.schema.access import SessionView
from workers.dependencies import Meter

NO_KEY: Final[SessionView] = {
    "who": "anyone",
    "proof": "nothing",
    "key": None,
    "owner": None,
    "scopes": ["admin"],
    "receivers": None,
    "expires_at": None,
}


class Call(NamedTuple):
    """A request of a page that is no GET: it changes or counts something. `path`: decoded."""

    method: str
    path: str
    body: Any


class ScriptedApi:
    """`answers`: replies to a GET, JSON or bytes, by raw path without query; other paths return a 404. `posts`:
    replies to a POST, PATCH or DELETE; by default an empty object. `calls`: the requests that were received."""

    def __init__(self, answers: Mapping[str, Any], posts: Mapping[str, Any] | None = None) -> None:
        self.answers = {"/v1/session": NO_KEY, **answers}
        self.posts = dict(posts or {})
        self.calls: list[Call] = []
        self.queries: list[tuple[str, dict[str, str]]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = request.rel_url.raw_path
        if request.method == "GET":
            self.queries.append((raw, dict(request.query)))
            nothing = 404, problem("not-found", "There is nothing at that path")
            return _response({_parts(path): answer for path, answer in self.answers.items()}.get(_parts(raw), nothing))
        body = await request.read()
        self.calls.append(Call(request.method, request.path, json.loads(body) if body else None))
        return _response(self.posts.get(raw, {}))


def _parts(path: str) -> tuple[str, ...]:
    """What can be encoded, or not, is the same."""
    return tuple(map(unquote, path.split("/")))


def problem(kind: str, title: str, detail: str = "It says so.", status: int = 404) -> dict[str, Any]:
    return {
        "type": f"/problems/{kind}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": "/",
        "errors": [],
    }


def _response(answer: Any) -> web.Response:
    status, value = answer if isinstance(answer, tuple) else (200, answer)
    if isinstance(value, bytes):
        return web.Response(body=value, status=status, content_type="application/octet-stream")
    return web.json_response(value, status=status)


@asynccontextmanager
async def scripted_pages(api: ScriptedApi) -> AsyncIterator[ScriptedApi]:
    """The pages at `api.url`."""
    with tempfile.TemporaryDirectory(prefix="pages-") as directory:
        socket = Path(directory) / "api"
        behind = web.Application()
        behind.router.add_route("*", "/{rest:(?s:.*)}", api.handle)
        inner = web.AppRunner(behind, shutdown_timeout=1.0)
        await inner.setup()
        await web.UnixSite(inner, str(socket)).start()
        front = web.Application(middlewares=[limit_requests(ApiLimits())])
        front.add_subapp("/ui", create_pages(socket, time.time, shares_of_live_pages(Meter())))
        outer = web.AppRunner(front, shutdown_timeout=1.0)
        await outer.setup()
        await web.TCPSite(outer, "127.0.0.1", 0).start()
        api.url = f"http://127.0.0.1:{outer.addresses[0][1]}"
        try:
            yield api
        finally:
            await asyncio.gather(outer.cleanup(), inner.cleanup())
