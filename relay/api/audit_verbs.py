"""Which routes change something, by which verb the audit tells of it, and the one place where its lines are made.

A handler says only what its path does not: whom a request was about that names them in its body, or that it changed
nothing after all.
"""

import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from relay.api.access import ANSWER_PATH, INBOUND_ROUTE, SESSION, SESSIONS, access_of, is_known, route_of
from relay.api.audit_trail import AuditTrail
from relay.api.client_address import address_of
from relay.api.context import ApiContext
from relay.api.landing import is_for_people
from relay.api.problems import FORBIDDEN, ProblemKind, problem_of
from relay.api.view import rfc3339
from relay.domain.audit import AuditLine, Fact, Outcome, bounded
from relay.telemetry.redaction import escape_control
from relay.telemetry.throttle import Throttle

_MESSAGES: Final = "/v1/sources/{source_id}/messages"
_DELIVERY: Final = f"{_MESSAGES}/{{message_id}}/deliveries/{{receiver}}"
VERBS: Final[Mapping[tuple[str, str], str]] = {
    ("POST", "/v1/receivers"): "receiver.created",
    ("PATCH", "/v1/receivers/{name}"): "receiver.changed",
    ("DELETE", "/v1/receivers/{name}"): "receiver.removed",
    ("POST", "/v1/receivers/{name}/rotate"): "receiver.rotated",
    ("POST", "/v1/receivers/{name}/verify"): "receiver.verified",
    ("POST", "/v1/receivers/{name}/pause"): "receiver.paused",
    ("POST", "/v1/receivers/{name}/resume"): "receiver.resumed",
    ("POST", "/v1/receivers/{name}/test"): "receiver.tested",
    ("POST", "/v1/sources"): "source.created",
    ("PATCH", "/v1/sources/{source_id}"): "source.changed",
    ("DELETE", "/v1/sources/{source_id}"): "source.removed",
    ("POST", "/v1/sources/{source_id}/callback/pause"): "callback.paused",
    ("POST", "/v1/sources/{source_id}/callback/resume"): "callback.resumed",
    ("POST", "/v1/failed/{partition}/{offset}/replay"): "delivery.replayed",
    ("POST", "/v1/failed/{partition}/{offset}/discard"): "delivery.discarded",
    ("POST", f"{_DELIVERY}/replay"): "delivery.replayed",
    ("POST", f"{_DELIVERY}/discard"): "delivery.discarded",
    ("POST", "/v1/replays"): "replay.started",
    ("POST", "/v1/discards"): "discard.started",
    ("POST", "/v1/replays/{id}/stop"): "replay.stopped",
    ("POST", "/v1/secrets/reencrypt"): "secrets.reencrypted",
    ("POST", "/v1/keys"): "key.created",
    ("DELETE", "/v1/keys/{id}"): "key.revoked",
    ("POST", "/v1/keys/{id}/rotate"): "key.rotated",
    ("POST", SESSIONS): "session.created",
    ("DELETE", SESSION): "session.ended",
    ("POST", "/v1/portal-links"): "portal.linked",
}
"""Each route that changes what the relay does. A new one has its verb here; a test asks for it."""
NOT_AUDITED: Final = frozenset(
    {
        ("POST", _MESSAGES),
        ("POST", f"{_MESSAGES}:batch"),
        ("POST", INBOUND_ROUTE),
        ("POST", ANSWER_PATH),
    }
)
"""What brings messages and answers: these are on the log themselves."""

REFUSED_EVERY_S: Final = 60.0
REFUSED_OVERALL: Final = 100
"""So many refusals are told in that time, and each kind of them once: whoever has a key can have any number."""
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
    """Of a request that changes something: whom it is about, where its path does not say that, and facts; no secrets.
    What is empty is left out."""
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
    """None: it changes nothing that the audit tells of. A route that somebody forgot is told by its template."""
    route = route_of(request)
    if route is None or route[0] in ("GET", "OPTIONS") or route in NOT_AUDITED or is_for_people(route[1]):
        return None
    return VERBS.get(route, " ".join(route))


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
