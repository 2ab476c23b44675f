"""Traces: the context that a message carries, the ids of its spans, and spans to be exported. Pure.

Ids are derived from the message's identity. So every process gives a message the same trace, and can refer to another
process's span, without stored state.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from relay.domain.identity import DeliveryId, MessageId

MOST_STATE: Final = 512
"""Characters of a `tracestate`; a longer one is left out (https://www.w3.org/TR/trace-context/#tracestate-limits)."""

# https://www.w3.org/TR/trace-context/#traceparent-header: a header of another form is dropped
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_STATE: Final = re.compile(rf"[\x20-\x7e]{{1,{MOST_STATE}}}")
_SAMPLED: Final = 1
_RANDOM: Final = 2
"""The other defined flag: the trace id is random."""
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8

SpanKind = Literal["producer", "consumer", "client"]
Value = str | int | float | bool


class TraceContext(NamedTuple):
    """The propagated context of a span: ids in lower-case hex, and whether it is sampled. `is_random`: the trace id is
    random."""

    trace_id: str
    span_id: str
    sampled: bool
    is_random: bool = False

    @property
    def traceparent(self) -> str:
        flags = (_SAMPLED if self.sampled else 0) | (_RANDOM if self.is_random else 0)
        return f"00-{self.trace_id}-{self.span_id}-{flags:02x}"


class Span(Struct, frozen=True, gc=False):
    """An operation from `start` to `end` (Unix seconds). `parent`: None for the first span of a trace. `links`: earlier
    spans of the same trace. `error`: the kind of failure, in a word. `event`: a subsequent event."""

    name: str
    kind: SpanKind
    context: TraceContext
    start: float
    end: float
    attributes: Mapping[str, Value]
    parent: TraceContext | None = None
    state: str | None = None
    links: tuple[TraceContext, ...] = ()
    error: str | None = None
    event: tuple[str, Mapping[str, Value]] | None = None


def parse_traceparent(text: str | None) -> TraceContext | None:
    """The context in a `traceparent`; None if there is none, or its form is unknown."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    flags = int(found[3], 16)
    return TraceContext(found[1], found[2], bool(flags & _SAMPLED), bool(flags & _RANDOM))


def fit_traceparent(text: str | None) -> str | None:
    """`text`, if it may be forwarded. An invalid one is dropped; no message fails because of it."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None


def read_traceparent(value: bytes) -> str | None:
    return fit_traceparent(value.decode("ascii", errors="replace"))


def fit_tracestate(text: str | None) -> str | None:
    """As `fit_traceparent`."""
    return text if text is not None and _STATE.fullmatch(text) else None


def read_tracestate(value: bytes) -> str | None:
    return fit_tracestate(value.decode("ascii", errors="replace"))


def trace_headers(traceparent: str | None, tracestate: str | None) -> tuple[tuple[str, str], ...]:
    """Trace headers of a request, so that the receiver's spans join the trace."""
    if traceparent is None or fit_traceparent(traceparent) is None:
        return ()
    state = fit_tracestate(tracestate)
    return (("traceparent", traceparent), *((("tracestate", state),) if state is not None else ()))


def trace_id_of(message: MessageId) -> str:
    """The trace id of a message whose sender has not started a trace."""
    return _digest(_TRACE_BYTES, "trace", message.source_id, message.message_id)


def message_span_id(trace_id: str, message: MessageId) -> str:
    """The id of the routing span, which is the parent of all others."""
    return _digest(_SPAN_BYTES, "message", trace_id, message.source_id, message.message_id)


def request_span_id(trace_id: str, kind: str, delivery: DeliveryId, generation: int, attempt: int) -> str:
    """The id of the span of a POST to a receiver, or of a callback. `attempt`: 1-based."""
    return _digest(_SPAN_BYTES, kind, trace_id, *delivery, str(generation), str(attempt))


def _digest(size: int, *parts: str) -> str:
    # no id contains a NUL; an all-zero digest, which would be an invalid id, is practically impossible
    return sha256("\0".join(parts).encode()).digest()[:size].hex()
