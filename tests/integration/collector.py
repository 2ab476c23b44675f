"""An OTLP/HTTP collector of traces for tests, which keeps and sorts the spans."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.servers.http import serving

TIMEOUT_S = 200.0


@dataclass(frozen=True)
class CollectedSpan:
    """A received span. `parent`: empty for a root. `links`: ids of the spans it follows. `process`: its exporter."""

    name: str
    trace_id: str
    span_id: str
    parent: str
    links: tuple[str, ...]
    start: int
    end: int
    failed: bool
    facts: dict[str, str | int]
    process: str = field(compare=False)

    @property
    def message(self) -> str | int:
        return self.facts["messaging.message.id"]


class Collector:
    """Keeps the spans that it receives. `status`: of its responses."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self.status = 200
        self.url = ""
        self._changed = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(await request.read())
        if self.status == 200:
            self.spans += _spans(sent)
        self._changed.set()
        return web.Response(status=self.status, content_type="application/x-protobuf")

    async def until(self, seen: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """The spans, once `seen` accepts them."""
        async with asyncio.timeout(TIMEOUT_S):
            while not seen(self.spans):
                self._changed.clear()
                await self._changed.wait()
        return self.spans

    def of(self, message: str) -> list[CollectedSpan]:
        """The spans of a message, in the order of their start."""
        return sorted((span for span in self.spans if span.message == message), key=lambda span: span.start)


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    async with serving(app) as collector.url:
        yield collector


def _spans(sent: ExportTraceServiceRequest) -> list[CollectedSpan]:
    found = []
    for resource in sent.resource_spans:
        about = {one.key: one.value.string_value for one in resource.resource.attributes}
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            facts = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
            links = tuple(link.span_id.hex() for link in span.links)
            found.append(
                CollectedSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    links,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == 2,
                    facts,
                    about["service.name"],
                )
            )
    return found
