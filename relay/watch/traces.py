"""Makes spans of a message's acceptance, its routing and each of its requests: one trace from the sender to its
callback, across processes.

A span is made when its operation has ended; only its ids exist before, as the request itself carries them
(`traceparent`).
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Final, Protocol
from urllib.parse import urlsplit

from msgspec import structs

from relay import __version__
from relay.clock import Clock
from relay.config.plan import ProcessPlan
from relay.domain.attempt import FINE, AttemptKind
from relay.domain.coordinate import Coordinate
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.message import Message
from relay.domain.shown_exchange import shown_url
from relay.domain.topics import Topics
from relay.domain.trace import (
    Span,
    TraceContext,
    Value,
    message_span_id,
    parse_traceparent,
    request_span_id,
    trace_id_of,
)
from relay.engine.decision import Dead, Decision, Done, Later
from relay.telemetry.logging import get_logger
from workers.journal import RequestPurpose, outcome_of, reason_of

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SPOKEN: Final = "http/protobuf"
NAMES: Final[dict[AttemptKind, str]] = {
    "post": "POST receiver",
    "status": "GET status",
    "callback": "POST callback",
    "progress": "POST progress",
}
_WAIT: Final = "relay.wait"

_log = get_logger("relay.traces")


class Writer(Protocol):
    """Sends spans, from a thread of its own, so that calls return at once. Spans that cannot be sent are dropped."""

    def samples(self, trace_id: str, parent: TraceContext | None) -> bool:
        """Whether spans of that trace are written; the same in every process with the same settings."""
        ...

    def write(self, span: Span) -> None: ...

    def close(self) -> None:
        """Send the rest, for two seconds at most. Blocks."""
        ...


def are_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the standard variables turn traces on: `otlp` is requested, or an endpoint is set."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environ.get(_EXPORTER, "").strip()
    if exporters:
        return "otlp" in [each.strip() for each in exporters.split(",")]
    return any(environ.get(name) for name in _ENDPOINTS)


def writer_of(environ: Mapping[str, str], version: str) -> Writer | None:
    """As the standard variables of OpenTelemetry say; if traces are off, nothing of it is imported. None: no traces; if
    they are configured, the reason is logged. Deliveries continue without them."""
    if not are_wanted(environ):
        return None
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _SPOKEN)
    problem = f"the protocol {protocol!r} is not supported: it has to be {_SPOKEN}"
    if protocol == _SPOKEN:
        try:
            from relay.telemetry.tracing import open_writer  # its imports are an extra, and take time

            return open_writer(environ, version)
        except ImportError:
            problem = "it needs the extra otel: pip install 'webhook-relay[otel]'"
        except (ValueError, OSError) as error:
            problem = f"a variable OTEL_... cannot be used: {error}"
    _log.warning("traces_off", problem=problem)
    return None


@dataclass(eq=False)
class Traces:
    """A `workers.dependencies.Tracing` and a `workers.journal.Journal`, one per process. `system`: the log's
    `messaging.system`. `random`: returns so many bytes."""

    writer: Writer
    topics: Topics
    clock: Clock
    random: Callable[[int], bytes]
    _: KW_ONLY
    system: str
    _failed: bool = False

    # contexts of requests

    def traced(self, hop: Hop, kind: AttemptKind, attempt: int) -> Hop:
        delivery = hop.delivery
        trace_id, parent = _trace_of(hop.traceparent, _message(delivery))
        if kind == "status":  # the number of requests is not known for sure, and nothing links there
            span_id = self.random(8).hex()
        else:
            span_id = request_span_id(trace_id, kind, delivery, hop.generation, attempt)
        own = self._context(trace_id, span_id, parent)
        state = hop.tracestate if parent is not None else None
        return structs.replace(hop, traceparent=own.traceparent, tracestate=state)

    def sending(self, message: Message) -> tuple[Message, Callable[[Coordinate | None], None]]:
        trace_id, parent = _trace_of(message.traceparent, message.id)
        own = self._context(trace_id, self.random(8).hex(), parent)
        begun, state = self.clock.time(), message.tracestate if parent is not None else None

        def sent(at: Coordinate | None) -> None:
            if own.sampled:
                self._write(lambda: self._sent(message, own, parent, begun, at))

        return structs.replace(message, traceparent=own.traceparent, tracestate=state), sent

    def _context(self, trace_id: str, span_id: str, parent: TraceContext | None) -> TraceContext:
        sampled = self.writer.samples(trace_id, parent)
        return TraceContext(trace_id, span_id, sampled, parent is not None and parent.is_random)

    # records

    def record(
        self, about: RequestPurpose, request: Request, exchange: Exchange, decision: Decision, seconds: float
    ) -> None:
        delivery, headers = about.delivery, dict(request.headers)
        own = parse_traceparent(headers.get("traceparent"))
        if delivery is not None and own is not None and own.sampled:
            state = headers.get("tracestate")
            self._write(lambda: self._requested(about, delivery, own, state, request, exchange, decision, seconds))

    def routed(self, message: Message, accepted_ms: int, decision: Done | Dead) -> None:
        trace_id, parent = _trace_of(message.traceparent, message.id)
        own = self._context(trace_id, message_span_id(trace_id, message.id), parent)
        if own.sampled:
            self._write(lambda: self._routed(message, own, parent, accepted_ms, decision))

    def close(self) -> None:
        """Send the rest. Blocks, for some seconds at most."""
        self.writer.close()

    # spans

    def _write(self, make: Callable[[], Span]) -> None:
        try:
            self.writer.write(make())
        except Exception as error:  # noqa: BLE001  # a bug of ours or the SDK's must not affect a delivery
            if not self._failed:
                self._failed = True
                _log.error("span_not_written", error=f"{type(error).__name__}: {error}")

    def _sent(
        self, message: Message, own: TraceContext, parent: TraceContext | None, begun: float, at: Coordinate | None
    ) -> Span:
        topic = self.topics.from_sender
        attributes = self._messaging("send", message, topic)
        if at is not None:
            attributes |= {"messaging.destination.partition.id": str(at.partition)}
        error = None if at is not None else "the log did not accept it"
        end = self.clock.time()
        return Span(f"send {topic}", "producer", own, begun, end, attributes, parent, message.tracestate, error=error)

    def _routed(
        self, message: Message, own: TraceContext, parent: TraceContext | None, ms: int, decision: Done | Dead
    ) -> Span:
        topic, dead = self.topics.from_sender, decision if isinstance(decision, Dead) else None
        attributes = self._messaging("process", message, topic) | {
            "messaging.consumer.group.name": self.topics.group("from-sender"),
            "relay.records": len(decision.records) if isinstance(decision, Done) else 1,
        }
        return Span(
            f"process {topic}",
            "consumer",
            own,
            ms / 1000,
            self.clock.time(),
            attributes if dead is None else attributes | {"error.type": dead.reason},
            parent,
            message.tracestate if parent is not None else None,
            error=None if dead is None else dead.reason,
        )

    def _messaging(self, operation: str, message: Message, topic: str) -> dict[str, Value]:
        return {
            "messaging.system": self.system,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
            "messaging.message.id": message.message_id,
            "relay.source_id": message.source_id,
        }

    def _requested(
        self,
        about: RequestPurpose,
        delivery: DeliveryId,
        own: TraceContext,
        state: str | None,
        request: Request,
        exchange: Exchange,
        decision: Decision,
        seconds: float,
    ) -> Span:
        end, follows = self.clock.time(), None if isinstance(decision, Done) else decision
        outcome = outcome_of(about.kind, exchange, follows)
        attributes = _http(about, request, exchange) | _relay(about, delivery, outcome)
        error = None if outcome in FINE else reason_of(follows)
        if error is not None:
            attributes["error.type"] = str(exchange.status) if isinstance(exchange, Response) else exchange.kind
        over = TraceContext(own.trace_id, message_span_id(own.trace_id, _message(delivery)), own.sampled)
        return Span(
            NAMES[about.kind],
            "client",
            own,
            end - seconds,
            end,
            attributes,
            over,
            state,
            _links(about, delivery, own),
            error,
            _wait(decision),
        )


def traces_of(environ: Mapping[str, str], plan: ProcessPlan, topics: Topics, clock: Clock) -> Traces | None:
    """The traces of a process; None if tracing is off."""
    writer = writer_of(environ, __version__)
    if writer is None:
        return None
    return Traces(writer, topics, clock, secrets.token_bytes, system="kafka" if plan.data_dir is None else "valkey")


def _message(delivery: DeliveryId) -> MessageId:
    return MessageId(delivery.source_id, delivery.message_id)


def _trace_of(traceparent: str | None, message: MessageId) -> tuple[str, TraceContext | None]:
    """The trace of a message, and the sender's span, if the sender started the trace."""
    parent = parse_traceparent(traceparent)
    return (trace_id_of(message), None) if parent is None else (parent.trace_id, parent)


def _http(about: RequestPurpose, request: Request, exchange: Exchange) -> dict[str, Value]:
    address, port = _server_of(request.url)
    attributes: dict[str, Value] = {
        "http.request.method": request.method,
        "url.full": shown_url(request.url, about.endpoint),
        "server.address": address,
        "server.port": port,
    }
    if isinstance(exchange, Response):
        attributes["http.response.status_code"] = exchange.status
    if about.attempt > 1:
        attributes["http.request.resend_count"] = about.attempt - 1
    return attributes


@lru_cache(maxsize=1_024)
def _server_of(url: str) -> tuple[str, int]:
    """Its host and port."""
    place = urlsplit(url)
    return place.hostname or "", place.port or (443 if place.scheme == "https" else 80)


def _relay(about: RequestPurpose, delivery: DeliveryId, outcome: str) -> dict[str, Value]:
    return {
        "messaging.message.id": delivery.message_id,
        "relay.source_id": delivery.source_id,
        "relay.receiver": delivery.receiver,
        "relay.generation": about.generation,
        "relay.attempt": about.attempt,
        "relay.outcome": outcome,
    }


def _links(about: RequestPurpose, delivery: DeliveryId, own: TraceContext) -> tuple[TraceContext, ...]:
    """The span before it: for a retry the attempt before, for what follows a POST that POST."""
    earlier: list[tuple[AttemptKind, int]] = []
    if about.kind == "callback" and about.attempt > 1:
        earlier.append(("callback", about.attempt - 1))
    if about.posts > 0:
        earlier.append(("post", about.posts))
    return tuple(
        TraceContext(own.trace_id, request_span_id(own.trace_id, kind, delivery, about.generation, n), own.sampled)
        for kind, n in earlier
    )


def _wait(decision: Decision) -> tuple[str, dict[str, Value]] | None:
    """The wait that follows it, as it was planned."""
    if not isinstance(decision, Later) or not 0 < decision.due_in_s < float("inf"):
        return None
    return _WAIT, {"relay.wait.reason": decision.reason, "relay.wait.seconds": round(decision.due_in_s, 3)}
