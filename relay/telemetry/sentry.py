"""Reports to Sentry: dead letters grouped by (receiver, reason), crashes by their stack; no secrets, and rate-limited.

A client of our own instead of `sentry_sdk.init`: nothing else in the process is hooked, so nothing reaches Sentry that
was not built here, and no trace header is added to requests to receivers. An event has allowed fields only
(`_allowed`): no ids, no payloads, no texts of exceptions, no local variables, no host names, and no URL but
that of our own page about the problem, where the ids are.
The SDK is imported when a DSN is given: it takes time and memory of every start.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlencode

from relay.domain.errors import UserError
from relay.domain.headers import SIGNATURE_HEADERS
from relay.domain.identity import is_receiver_name
from relay.domain.reasons import REASONS
from relay.telemetry.throttle import Throttle

if TYPE_CHECKING:
    import sentry_sdk
    from sentry_sdk.transport import Transport
    from sentry_sdk.types import Event, Hint

_DENYLIST: Final = [
    *SIGNATURE_HEADERS,
    *("webhook_secret", "signing_key", "secrets", "redis_url", "sentry_dsn", "dsn", "bearer"),
    *("relay-answer-url", "answer_url", "payload", "body"),
]
_EVENT_KEYS: Final = frozenset(
    {"event_id", "timestamp", "level", "logger", "platform", "release", "environment", "sdk"}
    | {"message", "fingerprint", "tags", "extra", "exception"}
)
_TAGS: Final = frozenset({"receiver", "reason", "reason_class", "stage", "page"})
_EXTRA: Final = frozenset(
    {"attempts", "last_status", "suppressed", "partition", "offset", "phase", "work_event", "times"}
    | {"link", "incident"}
)
_EXCEPTION_KEYS: Final = frozenset({"type", "module"})
_MECHANISM_KEYS: Final = frozenset({"type", "handled", "exception_id", "parent_id", "is_exception_group"})
_FRAME_KEYS: Final = frozenset({"filename", "function", "module", "lineno", "in_app"})

_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_UNKNOWN: Final = "-"
_LANES: Final = "/ui/workers"
"""The page for problems without a message or receiver."""
_HELD: Final = frozenset({"gone", "disabled"})


def check_dsn(dsn: str) -> None:
    """Raises UserError."""
    from sentry_sdk.utils import BadDsn, Dsn

    try:
        Dsn(dsn)
    except BadDsn:
        raise UserError("SENTRY_DSN is not a DSN; it looks like https://<key>@<host>/<project>") from None


class SentryReporter:
    """Reports to Sentry at most once a minute per (receiver, reason) and per place of a crash; others are counted.

    Calls return at once: a thread of the SDK sends. Until `start` with a DSN, nothing is done. `transport`: instead
    of HTTP, for tests.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic, transport: Transport | None = None) -> None:
        self._now = now
        self._transport = transport
        self._throttle = Throttle(every_s=60.0, overall=100, keys=10_000)
        self._client: sentry_sdk.Client | None = None
        self._pages: str | None = None

    def start(self, dsn: str | None, environment: str, release: str, pages: str | None = None) -> None:
        """Send to `dsn` from now on; None or empty: send nothing. `pages`: public URL of the pages; None: events
        have no link. Raises UserError for an invalid DSN."""
        if not dsn:
            return
        check_dsn(dsn)
        self._pages = pages
        self._client = _client(dsn, environment, release, self._transport)

    def report_failure(
        self,
        receiver: str,
        reason: str,
        reason_class: str,
        stage: str,
        attempts: int,
        last_status: int | None,
        incident: str | None = None,
    ) -> None:
        """A dead letter. Only the class `system` is an error that pages an operator; the others are warnings.

        `receiver` and `stage` (a topic) may be foreign: a text that cannot be a name becomes `-`. `incident`: a page.
        """
        receiver = receiver if is_receiver_name(receiver) else _UNKNOWN
        reason, reason_class = _word(reason), _word(reason_class)
        suppressed = self._admit((receiver, reason))
        if suppressed is None:
            return
        page = reason_class == "system"
        self._capture(
            {
                "level": "error" if page else "warning",
                "logger": "relay.failures",
                "message": f"{receiver}: {reason}",
                "fingerprint": [receiver, reason],
                "tags": {
                    "receiver": receiver,
                    "reason": reason,
                    "reason_class": reason_class,
                    "stage": stage if _TOPIC.fullmatch(stage) else _UNKNOWN,
                    "page": "yes" if page else "no",
                },
                "extra": {
                    "attempts": attempts,
                    "last_status": last_status,
                    "suppressed": suppressed,
                    **self._link(page_of(receiver, reason)),
                    **({} if incident is None else self._link(incident, "incident")),
                },
            }
        )

    def report_crash(self, error: BaseException, stage: str = _UNKNOWN, **where: str | int | None) -> None:
        """An unexpected exception: its types and origin, without its text and local variables. `stage`: its topic;
        `where`: partition, offset, phase, work_event, times, where known."""
        place = f"{_origin(error)} {where.get('phase')} {where.get('work_event')}"
        suppressed = self._admit((type(error).__qualname__, place))
        if suppressed is None or self._client is None:
            return
        from sentry_sdk.utils import event_from_exception

        event, _ = event_from_exception(error, client_options=self._client.options)
        event["level"] = "error"
        event["logger"] = "relay.crashes"
        event["tags"] = {"page": "yes", "stage": stage if _TOPIC.fullmatch(stage) else _UNKNOWN}
        event["extra"] = {"suppressed": suppressed, **where, **self._link(_LANES)}
        self._capture(event)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send queued events, for at most `timeout_s`, and stop. Blocks: call it from a thread."""
        if self._client is not None:
            self._client.close(timeout=timeout_s)
            self._client = None

    def _link(self, page: str, name: str = "link") -> dict[str, str]:
        return {} if self._pages is None else {name: f"{self._pages}{page}"}

    def _admit(self, key: tuple[str, str]) -> int | None:
        return self._throttle.admit(key, self._now()) if self._client is not None else None

    def _capture(self, event: Event) -> None:
        if self._client is not None:
            self._client.capture_event(event)


def page_of(receiver: str, reason: str) -> str:
    """Our page about such failures; for a paused receiver, its own page."""
    if reason in _HELD and receiver != _UNKNOWN:
        return f"/ui/receivers/{receiver}"
    if reason in REASONS:
        chosen = {"reason": reason} if receiver == _UNKNOWN else {"receiver": receiver, "reason": reason}
        return f"/ui/failed?{urlencode(chosen)}"
    return _LANES


def _client(dsn: str, environment: str, release: str, transport: Transport | None) -> sentry_sdk.Client:
    import sentry_sdk
    from sentry_sdk.scrubber import DEFAULT_DENYLIST, EventScrubber

    # send_default_pii is off unless it is set; setting it is deprecated, and its successor turns the scrubber off
    return sentry_sdk.Client(
        dsn,
        environment=environment,
        release=release,
        transport=transport,
        default_integrations=False,
        auto_enabling_integrations=False,
        include_local_variables=False,
        include_source_context=False,
        max_request_body_size="never",
        max_breadcrumbs=0,
        trace_propagation_targets=[],
        propagate_traces=False,
        auto_session_tracking=False,
        enable_backpressure_handling=False,
        spotlight=False,
        event_scrubber=EventScrubber(recursive=True, denylist=[*DEFAULT_DENYLIST, *_DENYLIST]),
        before_send=_allowed,
    )


def _origin(error: BaseException) -> str:
    """The place where `error` was raised, as file:line."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else _UNKNOWN


def _allowed(event: Event, hint: Hint) -> Event | None:
    """The allow list: all other fields that the SDK, or a later version of it, adds to an event are dropped."""
    kept = cast("Event", _only(cast(Mapping[str, Any], event), _EVENT_KEYS))
    if "tags" in kept:
        kept["tags"] = _only(kept["tags"], _TAGS)
    if "extra" in kept:
        kept["extra"] = _only(kept["extra"], _EXTRA)
    if "exception" in kept:
        kept["exception"] = {"values": [_bare_exception(value) for value in kept["exception"]["values"]]}
    return kept


def _bare_exception(value: Mapping[str, Any]) -> dict[str, Any]:
    bare = _only(value, _EXCEPTION_KEYS)
    bare["mechanism"] = _only(value.get("mechanism") or {}, _MECHANISM_KEYS)
    frames = (value.get("stacktrace") or {}).get("frames") or []
    bare["stacktrace"] = {"frames": [_only(frame, _FRAME_KEYS) for frame in frames]}
    return bare


def _only(mapping: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name in names}


def _word(text: str) -> str:
    return text if _WORD.fullmatch(text) else _UNKNOWN
