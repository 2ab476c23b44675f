"""Is it alive, is it ready, how is it doing, and which version is it."""

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from relay import __version__
from relay.api.access import MONITOR, OPEN
from relay.api.context import ApiContext
from relay.api.landing import DOCTOR
from relay.api.peers import PeerResponse, Peers
from relay.api.problems import Check
from relay.api.route import Body, DocumentedResponse, Example, Parameter, json_of, route
from relay.domain.errors import LogUnavailable
from relay.schema.operation import Version
from relay.telemetry.merge import merge
from relay.telemetry.metrics import CONTENT_TYPE

_FAILED: Final = "[-]"


_MONITORING: Final = "monitoring"
_TEXT: Final = Body({"text/plain": str})


class Health:
    """Routes for load balancers and monitoring; they need no key.

    If processes share the port, the kernel picks the one that is asked; so each answers for all of them, except for
    liveness: a process that hangs is noticed because it does not answer for itself.
    """

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @route(
        "GET",
        "/livez",
        scope=OPEN,
        id="isAlive",
        noun=_MONITORING,
        reads_itself=True,
        answers=(DocumentedResponse(200, "It does.", _TEXT),),
        example=Example(200),
    )
    async def livez(self, request: web.Request) -> web.Response:
        """Whether the process lives."""
        return web.Response(text="ok")

    @route(
        "GET",
        "/readyz",
        scope=OPEN,
        id="isReady",
        noun=_MONITORING,
        reads_itself=True,
        parameters=(Parameter("verbose", "query", str, "Also on 200 a line for each part."),),
        answers=(DocumentedResponse(200, "It can.", _TEXT), DocumentedResponse(503, "A part is away.", _TEXT)),
        example=Example(200, query={"verbose": ""}),
    )
    async def readyz(self, request: web.Request) -> web.Response:
        """Whether it can work.

        Of all processes that share the port. 503 in plain text, with a line for each part.
        """
        parts = dict(self._context.ready())
        if self._context.siblings is not None:
            parts |= await _ready_siblings(self._context.siblings)
        ready = not any(parts.values())
        if ready and "verbose" not in request.query:
            return web.Response(text="ok")
        lines = [_line(name, trouble) for name, trouble in sorted(parts.items())]
        lines += [f"[!]{name} warns: {text}" for name, text in sorted(self._context.warnings().items()) if text]
        verdict = f"readyz check {'passed' if ready else 'failed'}"
        return web.Response(status=200 if ready else 503, text="\n".join((*lines, verdict, "")))

    @route(
        "GET",
        "/metrics",
        scope=MONITOR,
        id="getMetrics",
        noun=_MONITORING,
        reads_itself=True,
        answers=(DocumentedResponse(200, "The text format.", _TEXT),),
        example=Example(200),
    )
    async def metrics(self, request: web.Request) -> web.Response:
        """Metrics for Prometheus.

        Of all processes that share the port.
        """
        text = self._context.metrics_text()
        if self._context.siblings is not None:
            text = await _with_siblings(self._context.siblings, text)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    @route(
        "GET",
        "/version",
        scope=OPEN,
        id="getVersion",
        noun=_MONITORING,
        reads_itself=True,
        answers=(DocumentedResponse(200, "The version.", json_of(Version)),),
        example=Example(200),
    )
    async def version(self, request: web.Request) -> web.Response:
        """Which version it is."""
        body = msgspec.json.encode(Version("relay", __version__))
        return web.Response(body=body, content_type="application/json")


def _line(name: str, trouble: str | None) -> str:
    if trouble is None:
        return f"[+]{name} ok"
    return f"{_FAILED}{name} failed: {' '.join(trouble.split())}"


async def _ready_siblings(siblings: Peers) -> dict[str, str | None]:
    """A part for each other process of the group."""
    return {f"process-{index}": _trouble(reply) for index, reply in (await siblings.ask("/readyz")).items()}


def _trouble(reply: PeerResponse | None) -> str | None:
    if reply is None:
        return "does not answer"
    if reply.status == 200:
        return None
    failed = [line.removeprefix(_FAILED) for line in reply.text.splitlines() if line.startswith(_FAILED)]
    return "; ".join(failed) or f"answers with status {reply.status}"


async def _with_siblings(siblings: Peers, own: bytes) -> bytes:
    replies = await siblings.ask("/metrics", leaving=True)
    texts = {index: each.text for index, each in replies.items() if each is not None and each.status == 200}
    silent = len(replies) - len(texts)
    texts[siblings.own_index] = own.decode()
    # below the index of any process: counters have no label for it
    texts |= {-1 - number: text for number, text in enumerate(siblings.left_counts())}
    # Reading a text costs 25 us a sample: with a hundred receivers that is far longer than the loop may stand still.
    return await asyncio.to_thread(merge, texts, silent)


def require_start(context: ApiContext) -> Check:
    """Refuses work until the process has found its log; monitoring is answered from the first moment."""

    def check(request: web.Request) -> None:
        waits = request.path.startswith("/v1/") and request.path != DOCTOR  # which is asked most when nothing starts
        if waits and context.ready().get("start") is not None:
            raise LogUnavailable("the relay is starting")

    return check
