"""Spans for OpenTelemetry. The only module that imports it, and only if traces are on: it is an extra.

The SDK itself reads the standard variables (OTEL_*): where spans go, how many, and of which messages.
"""

import logging
from collections.abc import Iterator, Mapping
from threading import Thread
from typing import Final
from urllib.parse import unquote

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
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

from relay.domain.secrecy import redacted, secret_spans
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
_FINE: Final = Status(StatusCode.UNSET)
_FLAGS: Final = {True: TraceFlags(TraceFlags.SAMPLED), False: TraceFlags(TraceFlags.DEFAULT)}
"""By whether a span is sampled."""


class _Masking(logging.Handler):
    """Passes on what the SDK logs, without the collector's credentials: it repeats whole headers and URLs."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self._secrets = secrets

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() if error is None else f"{record.getMessage()} {error!r}"
        record.msg, record.args, record.exc_info = redacted(text, self._secrets), (), None
        logging.getLogger().handle(record)


def _credentials(environ: Mapping[str, str]) -> Iterator[str]:
    """Of the collector. A header that cannot be read is one as a whole."""
    for name, text in environ.items():
        if name.startswith("OTEL_") and name.endswith("_HEADERS"):
            for part in text.split(","):
                value = unquote(part.partition("=")[2] or part).strip()
                yield from (part.strip(), value, value.rpartition(" ")[2])
        elif name.startswith("OTEL_") and name.endswith("_ENDPOINT"):
            yield from (text[start:end] for start, end in secret_spans(text))


def open_writer(environ: Mapping[str, str], version: str) -> "SpanWriter":
    """Sends to the collector that the environment names, which has to be the process's own. Raises ValueError and
    OSError for unusable settings."""
    of_sdk = logging.getLogger("opentelemetry")
    of_sdk.handlers, of_sdk.propagate = [_Masking(tuple(_credentials(environ)))], False
    return SpanWriter(BatchSpanProcessor(OTLPSpanExporter()), version)


class SpanWriter:
    """Implements `relay.watch.traces.Writer`.

    A span has ended before it is written, and its ids were sent before. So it is made as the exporter reads it: to
    start and end one with the SDK takes five times as long.
    """

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        self._processor = processor
        self._provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._scope = InstrumentationScope("relay", version)

    def samples(self, trace_id: str, parent: TraceContext | None) -> bool:
        around = _NO_PARENT
        if parent is not None:
            around = set_span_in_context(NonRecordingSpan(_of(parent, is_remote=True)), _NO_PARENT)
        result = self._provider.sampler.should_sample(around, int(trace_id, 16), "message")
        return result.decision is Decision.RECORD_AND_SAMPLE

    def write(self, span: Span) -> None:
        end = _nanoseconds(max(span.start, span.end))
        state = None if span.state is None else TraceState.from_header([span.state])
        self._processor.on_end(
            ReadableSpan(
                span.name,
                _of(span.context, state=state),
                parent=None if span.parent is None else _of(span.parent, is_remote=True, state=state),
                resource=self._provider.resource,
                attributes=span.attributes,
                events=() if span.event is None else (Event(*span.event, end),),
                links=[Link(_of(link)) for link in span.links],
                kind=_KINDS[span.kind],
                status=_FINE if span.error is None else Status(StatusCode.ERROR, span.error),
                start_time=_nanoseconds(span.start),
                end_time=end,
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        # the SDK waits half a minute for a collector that does not answer; its threads do not delay the exit
        last = Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(LAST_S)


class _HashedResource(Resource):
    """A copy of a resource that computes its hash once. The exporter groups spans by resource, and the SDK encodes a
    resource as JSON each time to compute it: a sixth of the time to encode a span."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = hash(resource)

    def __hash__(self) -> int:
        return self._hash


def _resource(version: str) -> Resource:
    resource = Resource.create({SERVICE_VERSION: version})
    if str(resource.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
        resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
    return _HashedResource(resource)


def _of(context: TraceContext, *, is_remote: bool = False, state: TraceState | None = None) -> SpanContext:
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, _FLAGS[context.sampled], state)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
