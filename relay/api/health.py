"""Routes for load balancers and monitoring: liveness, readiness, metrics and version. `GET /v1/doctor`: this process
looks at all that it depends on, and says what to do."""

import asyncio
from typing import Annotated, Final, Literal

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from relay import __version__
from relay.api.access import ADMIN, MONITOR, OPEN
from relay.api.authentication import Callers
from relay.api.context import ApiContext
from relay.api.landing import DOCTOR, MONITORING
from relay.api.parameter import Parameter, ReceiverName
from relay.api.peers import PeerResponse, Peers
from relay.api.problem_details import Check, template_of
from relay.api.responses import JSON, json_response, view_as
from relay.api.route import Body, DocumentedResponse, Example, route
from relay.domain.diagnosis import Diagnosis
from relay.domain.errors import LogUnavailable
from relay.domain.times import rfc3339
from relay.schema.operation import CheckView, DoctorView, Readiness, ReadinessPart, Version
from relay.telemetry.merge import merge
from relay.telemetry.metrics import CONTENT_TYPE
from workers.dependencies import Meter

_FAILED: Final = "[-]"
_LINES: Final = {"ok": "[+]{} ok", "failed": f"{_FAILED}{{}} failed: {{}}", "warning": "[!]{} warns: {}"}
_WITHHELD: Final = "reason withheld"
"""The words of Kubernetes."""
_TEXT: Final = Body({"text/plain": str})
_READINESS: Final = Body({"text/plain": str, JSON: Readiness})
_FORMAT: Final = Parameter(
    "format", Literal["text", "json"], "`json` for a typed response. Default: lines of text, as in Kubernetes."
)


class Health:
    """Routes for load balancers and monitoring; they need no key. `callers` None: every caller may see the reasons.

    If processes share the port, the kernel picks the one that is asked; so each answers for all of them, except for
    liveness: a process that hangs is noticed because it does not answer for itself.
    """

    noun = "monitoring"

    def __init__(self, context: ApiContext, callers: Callers | None) -> None:
        self._context = context
        self._callers = callers

    @route(
        "GET",
        "/livez",
        scope=OPEN,
        reads_itself=True,
        answers=(DocumentedResponse(200, "The process is alive.", _TEXT),),
    )
    async def is_alive(self) -> web.Response:
        """Check liveness."""
        return web.Response(text="ok")

    @route(
        "GET",
        "/readyz",
        scope=OPEN,
        reads_itself=True,
        parameters=(Parameter("verbose", str, "A line for each part, also if all work."), _FORMAT),
        answers=(
            DocumentedResponse(200, "All parts work.", _READINESS),
            DocumentedResponse(503, "A part does not work.", _READINESS),
        ),
        example=Example(200, query={"format": "json"}),
    )
    async def is_ready(self, request: web.Request) -> web.Response:
        """Check readiness.

        For all processes that share the port. 503 if a part has failed, with a line for each part, or as JSON. Reasons
        name addresses: where the API requires a key, they are for keys with `metrics` or `admin`.
        """
        format = _FORMAT.value(request, {"format": request.query.getall("format", [])})
        reasons = self._callers is None or self._callers.may_monitor(request)
        found = await self._readiness(reasons=reasons)
        status = 200 if found.ready else 503
        if format == "json":
            return json_response(status, found)
        if found.ready and "verbose" not in request.query:
            return web.Response(text="ok")
        lines = (_LINES[part.state].format(part.name, part.detail or _WITHHELD) for part in found.parts)
        verdict = f"readyz check {'passed' if found.ready else 'failed'}"
        return web.Response(status=status, text="\n".join((*lines, verdict, "")))

    async def _readiness(self, *, reasons: bool) -> Readiness:
        problems = dict(self._context.ready())
        if self._context.peers is not None:
            replies = await self._context.peers.ask("/readyz")
            problems |= {f"process-{index}": _trouble(reply) for index, reply in replies.items()}
        warnings = {name: text for name, text in self._context.warnings().items() if text}

        def part(name: str, state: Literal["ok", "failed", "warning"], why: str | None) -> ReadinessPart:
            return ReadinessPart(name, state, _in_a_line(why) if reasons else None)

        found = [part(name, "failed" if why else "ok", why) for name, why in sorted(problems.items())]
        found += [part(name, "warning", why) for name, why in sorted(warnings.items())]
        return Readiness(not any(problems.values()), tuple(found))

    @route(
        "GET",
        "/metrics",
        scope=MONITOR,
        reads_itself=True,
        answers=(DocumentedResponse(200, "Metrics in Prometheus' text format.", _TEXT),),
    )
    async def get_metrics(self) -> web.Response:
        """Get the metrics for Prometheus.

        For all processes that share the port.
        """
        text = self._context.metrics_text()
        if self._context.peers is not None:
            text = await _with_peers(self._context.peers, text)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    @route("GET", "/version", scope=OPEN, reads_itself=True, answer="The version.")
    async def get_version(self) -> Version:
        """Get the version."""
        return Version("relay", __version__)


def count_responses(meter: Meter) -> Middleware:
    """Middleware that counts all responses but those to monitoring."""

    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        template = template_of(request)
        if template not in MONITORING:
            meter.responded("-" if template is None else f"{request.method} {template}", response.status)
        return response

    return counted


def _in_a_line(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())


def _trouble(reply: PeerResponse | None) -> str | None:
    if reply is None:
        return "does not answer"
    if reply.status == 200:
        return None
    failed = [line.removeprefix(_FAILED) for line in reply.text.splitlines() if line.startswith(_FAILED)]
    return "; ".join(failed) or f"answers with status {reply.status}"


async def _with_peers(peers: Peers, own: bytes) -> bytes:
    replies = await peers.ask("/metrics", leaving=True)
    texts = {index: each.text for index, each in replies.items() if each is not None and each.status == 200}
    silent, left = len(replies) - len(texts), peers.left_counts(texts)
    texts[peers.own_index] = own.decode()
    # Reading a text costs 25 us a sample: with a hundred receivers that is far longer than the loop may stand still.
    return await asyncio.to_thread(merge, texts, silent, left)


def require_start(context: ApiContext) -> Check:
    """Refuses work until the process has found its log, and read the receivers from it, which would be unknown;
    monitoring is answered from the first moment."""

    def check(request: web.Request) -> None:
        if not request.path.startswith("/v1/") or request.path == DOCTOR:  # which is asked most when nothing starts
            return
        registry = context.registry
        if context.ready().get("start") is not None or not registry.ready.is_set():
            raise LogUnavailable("the relay is starting")

    return check


KEPT_S: Final = 10.0
"""For so long a look is as good as another one."""


class DoctorResource:
    """The route, for administrators. One look at a time; who comes meanwhile, or shortly after, gets the same."""

    noun = "doctor"

    def __init__(self, context: ApiContext) -> None:
        self._clock = context.clock
        self._examine = context.examine
        self._looking = asyncio.Lock()
        self._last: tuple[str | None, float, Diagnosis] | None = None

    @route("GET", "/v1/doctor", scope=ADMIN, answer="The findings of each check.")
    async def look_at_itself(
        self, receiver: Annotated[ReceiverName | None, "Only checks of this receiver."]
    ) -> DoctorView:
        """Run the checks of the doctor.

        The process checks its settings, Kafka, Redis and the receivers, within 20 seconds, even if Kafka or Redis does
        not answer. It runs the checks at most once within 10 seconds. docs/doctor.md explains them.
        """
        async with self._looking:
            if self._last is None or self._last[0] != receiver or self._clock.monotonic() - self._last[1] >= KEPT_S:
                found = await self._examine(receiver)
                self._last = receiver, self._clock.monotonic(), found
            return view_of(self._last[2])


def view_of(found: Diagnosis) -> DoctorView:
    return {"ok": found.ok, "at": rfc3339(found.at), "checks": [view_as(CheckView, each) for each in found.checks]}
