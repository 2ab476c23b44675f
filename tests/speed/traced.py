"""Traces of the measured messages, in the form in which a collector gets them."""

import secrets

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from relay.clock import SystemClock
from relay.telemetry.tracing import SpanWriter
from relay.watch.traces import Traces
from tests.speed.hot_path import TOPICS

SPANS_AT_ONCE = 512


class Encoding(SpanProcessor):
    """Brings spans into the form in which a collector gets them, as many at once as the SDK's own processor."""

    def __init__(self) -> None:
        self._waiting: list[ReadableSpan] = []
        self.encoded = 0

    def on_end(self, span: ReadableSpan) -> None:
        self._waiting.append(span)
        if len(self._waiting) >= SPANS_AT_ONCE:
            assert encode_spans(self._waiting).SerializeToString()
            self.encoded += len(self._waiting)
            self._waiting.clear()


def traces_to(processor: SpanProcessor) -> Traces:
    return Traces(SpanWriter(processor, "0"), TOPICS, SystemClock(), secrets.token_bytes, system="kafka")
