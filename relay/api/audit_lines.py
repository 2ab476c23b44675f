"""Makes the audit's lines of requests whose route declares an audit verb.

A handler adds only what the path does not say: the object of a request that names it in its body, or that nothing was
changed after all.
"""

import secrets
from typing import Final
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from relay.api.access import access_of, is_known
from relay.api.audit_trail import AuditTrail
from relay.api.client_address import address_of
from relay.api.context import ApiContext
from relay.api.problems import FORBIDDEN, ProblemKind, problem_of
from relay.api.route import READING, declared_of
from relay.api.view import rfc3339
from relay.domain.audit import AuditLine, Fact, Outcome, bounded
from relay.telemetry.redaction import escape_control
from relay.telemetry.throttle import Throttle

REFUSED_EVERY_S: Final = 60.0
REFUSED_OVERALL: Final = 100
"""At most so many refusals are recorded in that time, each kind once: a client can cause any number of them."""
_KINDS_KNOWN: Final = 1_000
_FAILED: Final = 500
"""From this status on, it may have been done all the same."""


class _Notes:
    """What a handler says of its request."""

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
    """It was done, whatever becomes of the rest of the request."""
    _notes(request).changed = True


def changed_nothing(request: web.Request) -> None:
    """It was only asked what would happen."""
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
    """Has a line kept of each request that changes something, is refused for its rights, or fails in between. The
    answer is given when the line is on the log, or that takes too long."""
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
    """Of a request that ended with a problem. None: nothing was changed, and that is no matter of rights."""
    if _notes(request).changed:
        return "done"
    if kind is FORBIDDEN:
        return "refused"
    return "unknown" if kind.status >= _FAILED else None


def _line(context: ApiContext, request: web.Request, verb: str, outcome: Outcome, status: int | None) -> AuditLine:
    access = access_of(request)
    key = None if context.keys is None or access.key is None else context.keys.keys.get(access.key)
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
    """What the handler said, else the names and ids in the path, in their order."""
    told = _notes(request).whom
    if told is None:
        told = "/".join(quote(value, safe=" @:+,", errors="replace") for value in request.match_info.values())
    return escape_control(told)
