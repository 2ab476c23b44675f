"""The audit: a line for each request that changes something, on the topic `audit` and in the log of the process.

A route declares the verb of its lines. A handler adds only what the path does not say: the object of a request that
names it in its body, or that nothing was changed after all.

A line is written after the action, so it cannot undo the action: while the log is away, a request that was carried out
is still answered as such, after a bounded wait, and its line follows when the log is back. If the process ends before
that, the line is in its own log only."""

import asyncio
import secrets
from collections import deque
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Meta

from relay.api.access import ADMIN, access_of, is_known
from relay.api.connection import address_of
from relay.api.context import ApiContext
from relay.api.parameter import PageLimit, Parameter
from relay.api.problem_details import problem_of
from relay.api.problems import FORBIDDEN, UNAVAILABLE, Problem, ProblemKind
from relay.api.route import READING, declared_of, route
from relay.clock import set_within
from relay.domain.audit import AuditLine, Fact, Outcome, bounded, decode_line, encode_line
from relay.domain.errors import InvalidRecord, LogUnavailable, RecordTooLarge
from relay.domain.text import whole_number
from relay.domain.times import rfc3339
from relay.domain.topics import Topics
from relay.engine.supervision import end
from relay.log.port import Log, NewRecord, Record
from relay.schema.operation import AuditPage
from relay.telemetry.logging import get_logger
from relay.telemetry.redaction import escape_control
from relay.telemetry.throttle import Throttle

PATIENCE_S: Final = 2.0
"""For which an answer waits for its line to be on the log."""
AGAIN_S: Final = 1.0
MOST_WAITING: Final = 1_000
"""Lines that wait for the log; beyond these, a line is in the log of the process alone."""
_AT_ONCE: Final = 100
MOST_READ: Final = 20_000
"""Lines that a request with filters reads at most; the page may be short then, and its cursor leads on."""
_STEP: Final = 1_000

_log = get_logger("relay.audit")


class AuditTrail:
    """One per process. After an append that failed half way, a line may be on the topic twice, with the same id."""

    def __init__(self, log: Log, topic: str, patience_s: float = PATIENCE_S, again_s: float = AGAIN_S) -> None:
        self._log = log
        self._topic = topic
        self._patience_s = patience_s
        self._again_s = again_s
        self._waiting: deque[tuple[AuditLine, asyncio.Event]] = deque()
        self._wake = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def start(self, _app: web.Application | None = None) -> None:
        self._writing = asyncio.create_task(self._write())

    async def close(self, _app: web.Application | None = None) -> None:
        """Wait a bounded time for the lines that are not written yet."""
        if self._writing is None:
            return
        if self._waiting:
            await set_within(self._waiting[-1][1], self._patience_s)
        await end([self._writing])
        if self._waiting:
            _log.error("audit_lines_not_on_the_log", lines=len(self._waiting))

    async def keep(self, line: AuditLine, *, wait: bool = True) -> None:
        """Return when it is on the topic, or will be there later. Not with `wait` false."""
        _log_line(line)
        if len(self._waiting) >= MOST_WAITING:
            _log.error("audit_line_not_on_the_log", line=line.id, why="too many records wait for the log")
            return
        written = asyncio.Event()
        self._waiting.append((line, written))
        self._wake.set()
        if wait:
            await set_within(written, self._patience_s)
            if not written.is_set():
                _log.warning("audit_line_late", line=line.id)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                some = [self._waiting[n] for n in range(min(len(self._waiting), _AT_ONCE))]
                try:
                    await self._log.append(
                        [NewRecord(self._topic, line.who.encode(), encode_line(line)) for line, _ in some]
                    )
                except LogUnavailable:
                    await asyncio.sleep(self._again_s)
                    continue
                except RecordTooLarge:
                    _log.error("audit_lines_not_on_the_log", lines=len(some), why="they are too large for the topic")
                for _, written in some:
                    self._waiting.popleft()
                    written.set()


def _log_line(line: AuditLine) -> None:
    """Into the log of the process."""
    say = _log.info if line.outcome == "done" else _log.warning
    say(
        "audit",
        what=line.what,
        whom=line.whom,
        who=line.who,
        remote=line.remote,
        outcome=line.outcome,
        status=line.status,
        line=line.id,
        **{f"fact_{name}": value for name, value in line.facts.items()},
    )


REFUSED_EVERY_S: Final = 60.0
REFUSED_OVERALL: Final = 100
"""Maximum number of rejections recorded in that time, each kind once: a client can cause any number of them."""
_KINDS_KNOWN: Final = 1_000
_FAILED: Final = 500
"""From this status on, it may have been done all the same."""


class _Notes:
    """What a handler adds to the audit record of its request."""

    def __init__(self) -> None:
        self.whom: str | None = None
        self.facts: dict[str, Fact] = {}
        self.changed: bool | None = None


_NOTES: Final = web.RequestKey("notes", _Notes)


def record_audit(request: web.Request, whom: str | None = None, **facts: Fact) -> None:
    """Adds to the audit line of a request: the object, if the path does not name it, and facts, never secrets. Empty
    facts are left out."""
    notes = _notes(request)
    notes.whom = whom if whom is not None else notes.whom
    notes.facts |= {name: value for name, value in facts.items() if value not in ("", [])}


def has_changed(request: web.Request) -> None:
    """Marks the request's change as made, even if the rest of the request fails."""
    _notes(request).changed = True


def changed_nothing(request: web.Request) -> None:
    """Marks the request as a dry run, which is not audited."""
    _notes(request).changed = False


def _notes(request: web.Request) -> _Notes:
    if _NOTES not in request:
        request[_NOTES] = _Notes()
    return request[_NOTES]


def verb_of(request: web.Request) -> str | None:
    """The verb of the request's line in the audit; None if it changes nothing."""
    declared = declared_of(request)
    return None if declared is None or request.method in READING else declared.verb


def keep_audit(context: ApiContext, trail: AuditTrail) -> Middleware:
    """Middleware that writes an audit record of each request that changes something, is rejected for its rights, or
    fails in between. The response is sent once the record is on the log, or after a time limit."""
    refused = Throttle(every_s=REFUSED_EVERY_S, overall=REFUSED_OVERALL, keys=_KINDS_KNOWN)

    async def keep(request: web.Request, verb: str, outcome: Outcome, status: int | None) -> None:
        if not is_known(request):
            return
        if outcome == "refused":
            who = access_of(request).who, verb, _whom(request)
            before = refused.admit(who, context.clock.monotonic())
            if before is None:
                return
            if before:
                record_audit(request, before=before)
        await trail.keep(_line(context, request, verb, outcome, status), wait=outcome == "done")

    @web.middleware
    async def audited(request: web.Request, handler: Handler) -> web.StreamResponse:
        verb = verb_of(request)
        if verb is None:
            return await handler(request)
        try:
            response = await handler(request)
        except Exception as error:
            kind = problem_of(error).kind
            if (outcome := _outcome(request, kind)) is not None:
                await keep(request, verb, outcome, kind.status)
            raise
        except BaseException:  # cut off: the server stops
            await keep(request, verb, "unknown", None)
            raise
        if _notes(request).changed is not False:
            await keep(request, verb, "done", response.status)
        return response

    return audited


def _outcome(request: web.Request, kind: ProblemKind) -> Outcome | None:
    """The outcome of a request that ended with a problem. None if nothing was changed, for another reason than
    rights."""
    if _notes(request).changed:
        return "done"
    if kind is FORBIDDEN:
        return "refused"
    return "unknown" if kind.status >= _FAILED else None


def _line(context: ApiContext, request: web.Request, verb: str, outcome: Outcome, status: int | None) -> AuditLine:
    access = access_of(request)
    key = None if access.key is None else context.keys.keys.get(access.key)
    line = AuditLine(
        id=secrets.token_hex(8),
        at=rfc3339(context.clock.time()) or "",
        who=access.who,
        who_name=None if key is None else key.name,
        what=verb,
        whom=_whom(request),
        remote=address_of(request),
        outcome=outcome,
        status=status,
        facts=_notes(request).facts,
    )
    return bounded(line)


def _whom(request: web.Request) -> str:
    """The subject that the handler named, else the names and ids in the path, in order."""
    whom = _notes(request).whom
    if whom is None:
        whom = "/".join(map(quoted_name, request.match_info.values()))
    return escape_control(whom)


def quoted_name(name: str) -> str:
    """A name or id of a path, as `whom` of a line has it: percent-encoded, so that a slash separates two."""
    return quote(name, safe=" @:+,", errors="replace")


CURSOR: Final = "[0-9]{1,18}"
_GROUP: Final = "audit"
"""A group name to query offsets with. No consumer group reads the topic."""


def _before(text: str) -> int:
    if (found := whole_number(text)) is None:
        raise ValueError("which was not issued by this API")
    return found


_BEFORE: Final = Parameter(
    "cursor",
    Annotated[str, Meta(pattern=f"^{CURSOR}$")],
    "`cursor` of the previous page, to continue after it.",
    parse=_before,
)


class _AuditFilter(NamedTuple):
    """A None does not restrict."""

    who: Annotated[str | None, "Only by this caller: `key:<id>`, or the name of the key."] = None
    what: Annotated[
        str | None, "Only with this verb, such as `receiver.paused`, or all with a prefix, such as `receiver.`."
    ] = None
    whom: Annotated[str | None, "Only about this name or id."] = None

    def takes(self, line: AuditLine) -> bool:
        of_kind = self.what is not None and self.what.endswith(".") and line.what.startswith(self.what)
        return (
            self.who in (None, line.who, line.who_name)
            and (self.what in (None, line.what) or of_kind)
            and self.whom in (None, line.whom)
        )


_ALL: Final = _AuditFilter()


class AuditResource:
    """`GET /v1/audit`, for administrators."""

    noun = "audit"

    def __init__(self, context: ApiContext) -> None:
        self._log = context.log
        self._topics = context.topics

    @route("GET", "/v1/audit", scope=ADMIN, answer="A page, newest first.")
    async def list_audit(
        self, wanted: _AuditFilter, limit: PageLimit, cursor: Annotated[int | None, _BEFORE]
    ) -> AuditPage:
        """List changes and rejected requests.

        There is a line for each request that changed something, was rejected for its rights, or failed while it changed
        something. Lines are on the topic `audit`, by default for 90 days. With a filter, a page may be short or empty,
        and still have a cursor.
        """
        found, read_to = await _newest(self._log, self._topics, limit + 1, cursor, wanted)
        items = [line for _, line in found[:limit]]
        following = str(found[limit - 1][0]) if len(found) > limit else read_to
        return AuditPage(items=items, cursor=following)


async def newest_lines(log: Log, topics: Topics, most: int) -> list[AuditLine]:
    """The newest lines, the newest first. Raises LogUnavailable."""
    found, _ = await _newest(log, topics, most, None, _ALL)
    return [line for _, line in found]


async def _newest(
    log: Log, topics: Topics, most: int, before: int | None, wanted: _AuditFilter
) -> tuple[list[tuple[int, AuditLine]], str | None]:
    """The newest records with their offsets, and the cursor of those that were not read; None if all were."""
    topic = topics.audit
    spans = await log.backlogs({topic: topics.group(_GROUP)})
    if not spans:
        raise Problem(UNAVAILABLE, f"There is no topic {topic}: `relay topics apply` creates it.")
    first, end = spans[0].first, spans[0].end if before is None else min(before, spans[0].end)
    found: list[tuple[int, AuditLine]] = []
    last, step = max(first, end - MOST_READ), most if wanted == _ALL else _STEP
    while end > last and len(found) < most:
        start = max(last, end - step)
        read = [each async for batch in log.scan(topic, 0, start=start, end=end) for each in batch]
        found += [(offset, line) for offset, line in _lines(read) if wanted.takes(line)]
        end = start
    return found[:most], str(end) if end > first else None


def _lines(records: list[Record]) -> list[tuple[int, AuditLine]]:
    """Newest first; records that are not audit lines are left out."""
    found = []
    for record in reversed(records):
        try:
            found.append((record.offset, decode_line(record.value)))
        except InvalidRecord:
            continue
    return found
