"""Is it alive, is it ready, how is it doing, and which version is it."""

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from relay import __version__
from relay.api.context import ApiContext
from relay.domain.errors import LogUnavailable
from relay.telemetry.metrics import CONTENT_TYPE


class Health:
    """Open to everybody who reaches the port: what it tells is for load balancers and monitoring."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/livez", self.livez)
        router.add_get("/readyz", self.readyz)
        router.add_get("/metrics", self.metrics)
        router.add_get("/version", self.version)

    async def livez(self, request: web.Request) -> web.Response:
        """That this is answered is the answer: the event loop turns. It never looks at what we depend on."""
        return web.Response(text="ok")

    async def readyz(self, request: web.Request) -> web.Response:
        """503 while a part is away. With `?verbose`, and always on 503, a line per part, as kube-apiserver has it."""
        parts = self._context.ready()
        ready = not any(parts.values())
        if ready and "verbose" not in request.query:
            return web.Response(text="ok")
        lines = [_line(name, trouble) for name, trouble in sorted(parts.items())]
        verdict = f"readyz check {'passed' if ready else 'failed'}"
        return web.Response(status=200 if ready else 503, text="\n".join((*lines, verdict, "")))

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._context.metrics_text(), headers={"Content-Type": CONTENT_TYPE})

    async def version(self, request: web.Request) -> web.Response:
        body = msgspec.json.encode({"name": "relay", "version": __version__})
        return web.Response(body=body, content_type="application/json")


def _line(name: str, trouble: str | None) -> str:
    if trouble is None:
        return f"[+]{name} ok"
    return f"[-]{name} failed: {' '.join(trouble.split())}"


def require_start(context: ApiContext) -> Middleware:
    """Refuses work until the process has found its log; monitoring is answered from the first moment."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/") and context.ready().get("start") is not None:
            raise LogUnavailable("the relay is starting")
        return await handler(request)

    return middleware
