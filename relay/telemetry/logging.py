"""Logs: one line per event, JSON for machines, coloured for people at a terminal.

Event names are constant, facts are fields: `log.info("delivered", receiver=..., attempt=...)`. Fields named like a
secret are hidden, byte strings are replaced by their length, URLs lose user, password and query, and control characters
are escaped, whatever the logging code does. Records of the standard library's `logging` (client libraries) get the
same form.
"""

import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from relay.domain.secrecy import is_secret_name
from relay.telemetry.redaction import escape_control, public_url

LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]

_HIDDEN: Final = "[hidden]"
_HEADLINE: Final = ("timestamp", "level", "event", "logger")
_CHATTY: Final = ("aiokafka", "aiohttp.access", "asyncio", "sentry_sdk", "urllib3")
"""Loggers of libraries that log routine work at level info."""

_FACTS: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure(
    format: LogFormat = "auto",
    level: LogLevel = "info",
    stream: TextIO | None = None,
    *,
    without: Collection[str] = (),
) -> None:
    """Set up logging for this process; may be called again. `without`: events that are not logged.

    `auto`: console if `stream` (default: stderr, because stdout belongs to a command's output) is a terminal, else
    JSON.
    With the console format a traceback follows its line, each of its lines marked with `  | `.
    """
    out = stream if stream is not None else sys.stderr
    console = format == "console" or (format == "auto" and out.isatty())
    renderers = _renderers(console=console, colors=console and out.isatty())
    structlog.configure(
        processors=[partial(_wanted, without), *_FACTS, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *name: _Lines(out, *name),
        cache_logger_on_first_use=False,
    )
    _install(_handler(out, renderers), level)


def get_logger(name: str, **fields: object) -> structlog.typing.FilteringBoundLogger:
    """A logger that adds `fields` to each of its events. `name`: the module or worker that logs.

    It follows later calls of `configure`, too. `bind()` it once if it logs many lines: that freezes the look-up.
    """
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger(name, **fields))


class _Lines:
    """The output of structlog's lines. A log that cannot be written (full disk, closed pipe) stops no work."""

    def __init__(self, out: TextIO, name: str = "root") -> None:
        self.name = name
        self._out = out

    def write(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self._out.write(line + "\n")
            self._out.flush()

    debug = info = warning = error = critical = write


def _handler(out: TextIO, renderers: Sequence[Processor]) -> logging.Handler:
    """The handler that gives records of the standard library's `logging` the same form."""
    handler = logging.StreamHandler(out)
    drop_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_FACTS, structlog.stdlib.ExtraAdder()],
            processors=[drop_meta, *renderers],
        )
    )
    return handler


def _install(handler: logging.Handler, level: LogLevel) -> None:
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # otherwise a failed write dumps the raw, unescaped record to stderr
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if level == "debug" else logging.WARNING)
    # each of its errors is raised, too, and logged then
    logging.getLogger("aiokafka").setLevel(logging.NOTSET if level == "debug" else logging.CRITICAL)
    # at level debug they log whole requests: passwords of log-ins, and messages; and URLs with their secrets
    for name in ("aiokafka.conn", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.INFO if level == "debug" else logging.NOTSET)


def _renderers(*, console: bool, colors: bool) -> list[Processor]:
    if not console:
        return [
            structlog.processors.format_exc_info,
            _cleaned,
            _headline_first,
            structlog.processors.JSONRenderer(),
        ]
    return [
        _cleaned,
        marked_stack,
        structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=24, exception_formatter=_marked_traceback),
    ]


def _wanted(without: Collection[str], logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if event["event"] in without:
        raise structlog.DropEvent
    return event


def _cleaned(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Hide, shorten and escape: a structlog processor."""
    return {escape_control(str(name)): _clean(str(name), value) for name, value in event.items()}


def _headline_first(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    return {name: event[name] for name in _HEADLINE if name in event} | dict(event)


def _clean(name: str, value: Any) -> Any:
    if name == "exc_info":
        return value  # rendered, and escaped, by _marked_traceback
    if name == "exception":
        return "\n".join(map(escape_control, str(value).split("\n")))  # JSON escapes these newlines anyway
    if is_secret_name(name):
        return _HIDDEN
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {escape_control(str(key)): _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(name, inner) for inner in value]
    text = str(value)
    return escape_control(public_url(text) if name == "url" or name.endswith("_url") else text)


def marked_stack(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The field `stack`, a list of calls, as `_marked_traceback` has a traceback: structlog's renderer takes a text."""
    if isinstance(stack := event.get("stack"), list):
        event["stack"] = "\n".join(f"  | {call}" for call in stack)
    return event


def _marked_traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """Write a traceback so that none of its lines can be mistaken for an event's line."""
    text = structlog.processors.format_exc_info(None, "error", {"exc_info": exc_info})["exception"]
    for line in text.split("\n"):
        out.write(f"\n  | {escape_control(line)}")
