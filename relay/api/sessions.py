"""Sessions and links into the portal: signed tokens in place of a key, for people with browsers."""

import math
import secrets
from typing import Final, Literal
from urllib.parse import quote

from aiohttp import web

from relay.api.access import CALLER, OPEN, OWNERS, forbidden, owner_of
from relay.api.audit import changed_nothing, record_audit
from relay.api.authentication import Caller, Callers, bearer_in, caller_of, tenants_in
from relay.api.body import duration_in
from relay.api.context import ApiContext
from relay.api.problems import (
    FORBIDDEN,
    TOO_MANY,
    TOO_MANY_KEYS,
    UNAUTHORIZED,
    UNKNOWN_RECEIVER,
    Problem,
    invalid,
    invalid_at,
)
from relay.api.route import Example, route
from relay.domain.identity import check_id
from relay.domain.scope import in_text
from relay.domain.session import LONGEST_S, Session, issue
from relay.domain.times import rfc3339
from relay.schema.access import EndedSession, NewLink, NewSession, SessionView, WantedLink, WantedSession

MOST_BYTES: Final = 64 * 1024
LONGEST_HOURS: Final = int(LONGEST_S // 3_600)
PORTAL: Final = "/ui/portal"
"""The page that takes a portal token once, and keeps it as a cookie."""
_ID_BYTES: Final = 8
_ALLOWED: Final = "more than 0, and at most 7 days are allowed"
_KEY: Final = "This is a key, and no session: DELETE /v1/keys/{id} revokes one that was made."
_LINK: Final = "A link into the portal goes on until its time is over, or its key is revoked; forget the token."


class SessionsResource:
    """`/v1/sessions`, `/v1/session`, `/v1/portal-links`."""

    noun = "sessions"

    def __init__(self, context: ApiContext, callers: Callers) -> None:
        self._context = context
        self._callers = callers
        self._tenant_of = tenants_in(context)

    @route(
        "POST",
        "/v1/sessions",
        scope=OPEN,
        audit="session.created",
        most_bytes=MOST_BYTES,
        answer="The session is valid. Send `token` like a key.",
        status=201,
        problems=(UNAUTHORIZED, FORBIDDEN, TOO_MANY),
        example=Example(201, body={"key": "the key of the examples", "expires_in": "12h"}),
    )
    async def create_session(self, request: web.Request, body: WantedSession) -> NewSession:
        """Create a session with a key.

        The key is that of the header, or `key` in the body. The session has the rights of the key, and ends with it. It
        needs no key while none was created.
        """
        text = bearer_in(request) if body.key is None else body.key.strip()
        given = body.key is not None or "Authorization" in request.headers
        caller = self._callers.judged(request, text, given=given)
        self._callers.prove(request, caller, self._tenant_of)
        session = caller.session
        if session is not None and session.kind == "session":
            raise Problem(FORBIDDEN, "A session cannot create another session: send the key.")
        if session is not None:  # the portal comes with its token, and stays until that is over
            record_audit(request, f"portal:{session.id}")
            return _new_session(text or "", caller)
        until = self._until(_seconds(body.expires_in), caller)
        made = Session("session", secrets.token_hex(_ID_BYTES), caller.maker, until)
        record_audit(request, f"session:{made.id}")
        return _new_session(issue(self._context.session_secrets[0], made), caller._replace(expires_at=until))

    @route("GET", "/v1/session", scope=CALLER, answer="The caller and its rights.")
    async def get_session(self, request: web.Request) -> SessionView:
        """Get the caller and its rights."""
        access, maker, session, expires_at = caller_of(request)
        proof: Literal["key", "session", "portal", "nothing"]
        proof = session.kind if session is not None else "key" if maker.key else "nothing"
        return {
            "who": access.who,
            "proof": proof,
            "key": access.key,
            "owner": None if session is None else session.owner,
            "scopes": in_text(access.scopes),
            "receivers": None if access.only is None else sorted(access.only),
            "expires_at": rfc3339(expires_at),
        }

    @route(
        "DELETE",
        "/v1/session",
        scope=CALLER,
        audit="session.ended",
        answer="Whether the session has ended; a key or a link cannot be ended here.",
        problems=(TOO_MANY_KEYS, TOO_MANY),
    )
    async def end_session(self, request: web.Request) -> EndedSession:
        """End the session of the request.

        In effect in this process with the response, and in all others within 2 s.
        """
        session = caller_of(request).session
        if session is None or session.kind == "portal":
            changed_nothing(request)
            return EndedSession(ended=False, detail=_KEY if session is None else _LINK)
        record_audit(request, f"session:{session.id}")
        await self._context.keys.end(session, self._context.clock.time())
        return EndedSession(ended=True, detail="Every process rejects it after two seconds.")

    @route(
        "POST",
        "/v1/portal-links",
        scope=OWNERS,
        audit="portal.linked",
        most_bytes=MOST_BYTES,
        answer="The link.",
        status=201,
        problems=(UNKNOWN_RECEIVER,),
        example=Example(201, body={"owner": "team-42", "hours": 24}),
    )
    async def create_portal_link(self, request: web.Request, body: WantedLink) -> NewLink:
        """Create a link into the portal.

        Everyone who has the link has the rights of this owner, until it expires or the key that created it is revoked.
        A key with `owner:<id>` creates links for that owner.
        """
        caller, owner = caller_of(request), _owner(body.owner)
        if caller.session is not None and caller.session.kind == "portal":
            raise Problem(FORBIDDEN, "A portal session cannot create portal links.")
        if not caller.access.may("owner", owner):
            raise forbidden(OWNERS)
        only = self._receivers(request, owner, body.receivers)
        until = self._until(_hours(body.hours), caller)
        made = Session("portal", secrets.token_hex(_ID_BYTES), caller.maker, until, owner, only)
        shown = None if only is None else sorted(only)
        record_audit(request, f"portal:{made.id}", owner=owner, expires_at=rfc3339(until) or "", receivers=shown or [])
        url = f"{self._base(request)}{PORTAL}?token={issue(self._context.session_secrets[0], made)}"
        return NewLink(url=url, expires_at=rfc3339(until), owner=owner, receivers=shown)

    def _until(self, lives_s: float, caller: Caller) -> int:
        """Unix seconds. No longer than what it is made with."""
        until = self._context.clock.time() + lives_s
        return math.ceil(until if caller.expires_at is None else min(until, caller.expires_at))

    def _receivers(self, request: web.Request, owner: str, names: list[str] | None) -> frozenset[str] | None:
        if names is None:
            return None
        for place, name in enumerate(names):
            if owner_of(request, name) != owner:
                detail = f"{owner[:80]!r} has no receiver {name[:80]!r}"
                raise invalid(detail, kind=UNKNOWN_RECEIVER, pointer=f"/receivers/{place}")
        return frozenset(names)

    def _base(self, request: web.Request) -> str:
        """The URL at which the caller has reached the API, unless a public URL is configured."""
        return self._context.public_url or f"{request.scheme}://{quote(request.host, safe=':[]')}"


def _new_session(token: str, caller: Caller) -> NewSession:
    only = caller.access.only
    return {
        "token": token,
        "expires_at": rfc3339(caller.expires_at),
        "scopes": in_text(caller.access.scopes),
        "receivers": None if only is None else sorted(only),
    }


def _owner(text: str) -> str:
    with invalid_at(pointer="/owner"):
        return check_id(text, "owner")


def _hours(hours: float) -> float:
    if not 0 < hours <= LONGEST_HOURS:
        raise invalid(f"hours is {hours:g}; more than 0, and at most {LONGEST_HOURS} are allowed", pointer="/hours")
    return hours * 3_600


def _seconds(value: float | str) -> float:
    seconds = duration_in(value, "/expires_in", LONGEST_S, _ALLOWED)
    if not seconds:
        raise invalid(_ALLOWED, pointer="/expires_in")
    return seconds
