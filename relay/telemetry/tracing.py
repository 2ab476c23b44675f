"""Spans for OpenTelemetry. The only module that imports it, and only if traces are on: it is an extra.

The SDK itself reads the standard variables (OTEL_*): where spans go, how many, and of which messages.
"""

from threading import Thread
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from relay.domain.trace import Span, TraceContext
from relay.domain.trace import SpanKind as Kind

SERVICE: Final = "webhook-relay"
LAST_S: Final = 2.0
"""Time limit for the remaining spans when the process ends."""

_KINDS: Final[dict[Kind, SpanKind]] = {
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "client": SpanKind.CLIENT,
}
_UNNAMED: Final = "unknown_service"
_NO_PARENT: Final = Context()
"""No parent; without it the SDK would look for one around the caller."""


def open_writer(version: str) -> "SpanWriter":
    """Sends to the collector that the environment names. Raises ValueError and OSError for unusable settings."""
    return SpanWriter(BatchSpanProcessor(OTLPSpanExporter()), version)


class SpanWriter:
    """Implements `relay.watch.traces.Writer`."""

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        self._ids = _SetIds()
        self._provider = TracerProvider(resource=_resource(version), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("relay", version)

    def samples(self, trace_id: str, parent: TraceContext | None) -> bool:
        result = self._provider.sampler.should_sample(_around(parent), int(trace_id, 16), "message")
        return result.decision is Decision.RECORD_AND_SAMPLE

    def write(self, span: Span) -> None:
        self._ids.use(span.context)
        written = self._tracer.start_span(
            span.name,
            _around(span.parent, span.state),
            _KINDS[span.kind],
            dict(span.attributes),
            [Link(_own(link)) for link in span.links],
            _nanoseconds(span.start),
        )
        end = _nanoseconds(max(span.start, span.end))
        if span.event is not None:
            name, attributes = span.event
            written.add_event(name, dict(attributes), end)
        if span.error is not None:
            written.set_status(Status(StatusCode.ERROR, span.error))
        written.end(end)

    def close(self) -> None:
        # the SDK waits half a minute for a collector that does not answer; its threads do not delay the exit
        last = Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(LAST_S)


class _SetIds(IdGenerator):
    """The ids of the next span: they were chosen and sent before."""

    def __init__(self) -> None:
        self._next = (0, 0)

    def use(self, context: TraceContext) -> None:
        self._next = (int(context.trace_id, 16), int(context.span_id, 16))

    def generate_trace_id(self) -> int:
        return self._next[0]

    def generate_span_id(self) -> int:
        return self._next[1]

    def is_trace_id_random(self) -> bool:
        return False


def _resource(version: str) -> Resource:
    resource = Resource.create({SERVICE_VERSION: version})
    if not str(resource.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
        return resource
    return resource.merge(Resource({SERVICE_NAME: SERVICE}))


def _around(parent: TraceContext | None, state: str | None = None) -> Context:
    """The context from which the SDK takes a parent; `state`: of the trace."""
    if parent is None:
        return _NO_PARENT
    given = TraceState.from_header([state]) if state is not None else None
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    ids = int(parent.trace_id, 16), int(parent.span_id, 16)
    return set_span_in_context(NonRecordingSpan(SpanContext(*ids, True, flags, given)), _NO_PARENT)


def _own(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), False, flags)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
