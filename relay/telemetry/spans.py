"""Whether and where spans are written, from the standard variables of OpenTelemetry. If off, nothing of it is
imported."""

from collections.abc import Mapping
from typing import Final, Protocol

from relay.domain.trace import Span, TraceContext
from relay.telemetry.logging import get_logger

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SPOKEN: Final = "http/protobuf"
_NOT_INSTALLED: Final = "it needs the extra otel: pip install 'webhook-relay[otel]'"

_log = get_logger("relay.traces")


class Writer(Protocol):
    """Calls return at once: a separate thread sends. Spans that cannot be sent are dropped."""

    def samples(self, trace_id: str, parent: TraceContext | None) -> bool:
        """Whether spans of that trace are written; the same in every process with the same settings."""
        ...

    def write(self, span: Span) -> None: ...

    def close(self) -> None:
        """Send the rest, for two seconds at most. Blocks."""
        ...


def are_wanted(environ: Mapping[str, str]) -> bool:
    """By the standard variables: `otlp` is requested, or an endpoint is set."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environ.get(_EXPORTER, "").strip()
    if exporters:
        return "otlp" in [each.strip() for each in exporters.split(",")]
    return any(environ.get(name) for name in _ENDPOINTS)


def writer_of(environ: Mapping[str, str], version: str) -> Writer | None:
    """None: no traces; if they are configured, the reason is logged. Deliveries continue without them."""
    if not are_wanted(environ):
        return None
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _SPOKEN)
    problem = f"the protocol {protocol!r} is not supported: it has to be {_SPOKEN}"
    if protocol == _SPOKEN:
        try:
            return _opened(version)
        except ImportError:
            problem = _NOT_INSTALLED
        except (ValueError, OSError) as error:
            problem = f"a variable OTEL_... cannot be used: {error}"
    _log.warning("traces_off", problem=problem)
    return None


def _opened(version: str) -> Writer:
    from relay.telemetry.tracing import open_writer  # its imports are an extra, and take time

    return open_writer(version)
