"""Traces: the context that goes along with a message, the ids of its spans, and a span as it is told. Pure.

Ids are derived from what is traced: so every process of a relay gives a message the same trace, and names a span that
another one tells of, with nothing kept for it.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from relay.domain.identity import DeliveryId, MessageId

MOST_STATE: Final = 512
"""Characters of a `tracestate`; a longer one is left out (https://www.w3.org/TR/trace-context/#tracestate-limits)."""

# https://www.w3.org/TR/trace-context/#traceparent-header: what is not of this form is no trace, and ends here
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_STATE: Final = re.compile(rf"[\x20-\x7e]{{1,{MOST_STATE}}}")
_SAMPLED: Final = 1
_RANDOM: Final = 2
"""The other flag that is defined: the trace id is a random one."""
_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8

SpanKind = Literal["producer", "consumer", "client"]
Value = str | int | float | bool


class TraceContext(NamedTuple):
    """A span to others: ids in lower-case hex, and whether it is told. `is_random`: of the trace id."""

    trace_id: str
    span_id: str
    sampled: bool
    is_random: bool = False

    @property
    def traceparent(self) -> str:
        flags = (_SAMPLED if self.sampled else 0) | (_RANDOM if self.is_random else 0)
        return f"00-{self.trace_id}-{self.span_id}-{flags:02x}"


class Span(Struct, frozen=True, gc=False):
    """What happened, from `start` to `end` (Unix seconds). `parent` None: the trace begins with it. `links`: spans of
    the same trace that it came after. `error`: what went wrong, in a word. `event`: something that follows it."""

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
    """None: it is none, or of a form that is not known."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    flags = int(found[3], 16)
    return TraceContext(found[1], found[2], bool(flags & _SAMPLED), bool(flags & _RANDOM))


def fit_tracestate(text: str | None) -> str | None:
    """`text` if it may go on. What may not is left out: no message fails because of it."""
    return text if text is not None and _STATE.fullmatch(text) else None


def read_tracestate(value: bytes) -> str | None:
    return fit_tracestate(value.decode("ascii", errors="replace"))


def trace_headers(traceparent: str | None, tracestate: str | None) -> tuple[tuple[str, str], ...]:
    """Of a request, so that whoever gets it can be found in the trace."""
    if traceparent is None or not _TRACEPARENT.fullmatch(traceparent):
        return ()
    state = fit_tracestate(tracestate)
    return (("traceparent", traceparent), *((("tracestate", state),) if state is not None else ()))


def trace_id_of(message: MessageId) -> str:
    """The trace of a message whose sender has begun none."""
    return _digest(_TRACE_BYTES, "trace", message.source_id, message.message_id)


def message_span_id(trace_id: str, message: MessageId) -> str:
    """Of the span of its routing, under which all the others are."""
    return _digest(_SPAN_BYTES, "message", trace_id, message.source_id, message.message_id)


def request_span_id(trace_id: str, kind: str, delivery: DeliveryId, generation: int, attempt: int) -> str:
    """Of a POST to a receiver, or a callback. `attempt`: 1-based."""
    return _digest(_SPAN_BYTES, kind, trace_id, *delivery, str(generation), str(attempt))


def _digest(size: int, *parts: str) -> str:
    # no id has a NUL in it; that all of a digest's bytes are zero, which would be no id, has never been seen
    return sha256("\0".join(parts).encode()).digest()[:size].hex()
