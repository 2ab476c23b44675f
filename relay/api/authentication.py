"""Authenticates the caller by a key, or by a session or portal token that was made with one, and checks its scopes.

A route's declaration says which scope it requires. No key is required while none exists and only this machine has
access. Some requests carry a proof of their own and need no key: the token of an answer URL, the signature of a
webhook, the key that a session is made with. `access` says what a key may do."""

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Final, NamedTuple

from aiohttp import web

from relay.api.access import ADMIN, MONITOR, OPEN, Need, Tenant, TenantOf, access_of, check_access
from relay.api.bounds import bounds_of
from relay.api.connection import address_of, network_of
from relay.api.context import ApiContext
from relay.api.keys import KeyUse
from relay.api.landing import is_for_people
from relay.api.origin_check import Refusals
from relay.api.problem_details import Check, template_of
from relay.api.problems import TOO_MANY, UNAUTHORIZED, Problem, busy
from relay.api.route import declared_of
from relay.domain.api_key import id_of
from relay.domain.errors import LogUnavailable
from relay.domain.scope import Access, Scope, may_do_everything
from relay.domain.session import (
    NOBODY,
    Session,
    SessionInvalid,
    SessionIssuer,
    SessionOver,
    kind_of,
    proof_of,
    proof_of_digest,
    read,
)


@dataclass(slots=True)
class _Span:
    began: float
    count: int = 0


class FailedKeys:
    """Counts per address: `most` in `span_s` seconds are answered as usual, those beyond are too many.

    Remembers the `addresses` seen last. An IPv6 network of 64 bits counts as one address: a client that has one has
    all.
    """

    def __init__(self, *, most: int, span_s: float, addresses: int) -> None:
        self._most = most
        self._span_s = span_s
        self._addresses = addresses
        self._spans: OrderedDict[str, _Span] = OrderedDict()

    def note(self, address: str | None, now: float) -> int | None:
        """One more. None: not too many yet; else the whole seconds until they are forgotten, at least 1."""
        key = network_of(address)
        span = self._spans.get(key)
        if span is None or now - span.began >= self._span_s:
            span = self._spans[key] = _Span(now)
        self._spans.move_to_end(key)
        if len(self._spans) > self._addresses:
            self._spans.popitem(last=False)
        span.count += 1
        return None if span.count <= self._most else max(1, ceil(span.began + self._span_s - now))


MOST_FAILED: Final = 20
FAILED_SPAN_S: Final = 60.0
"""Time span in seconds in which wrong keys of an address are counted; beyond the limit they get a 429 instead of a
401."""
SETTING: Final = "RELAY_API_KEY"
_ADDRESSES: Final = 10_000
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="relay"'}


class Caller(NamedTuple):
    """The caller, its rights and its proof. `session`: None if the proof is a key. `expires_at`: Unix seconds; None:
    never."""

    access: Access
    maker: SessionIssuer
    session: Session | None = None
    expires_at: float | None = None


_CALLER: Final = web.RequestKey("caller", Caller)


def caller_of(request: web.Request) -> Caller:
    """The caller of an authenticated request."""
    return request[_CALLER]


class Callers:
    """Authenticates requests.

    A valid key always passes: behind a proxy all clients have one address, and a client with a wrong key must not lock
    out the others. So only the responses to wrong keys are limited; the length of a key protects it against guessing.
    """

    def __init__(self, context: ApiContext, refusals: Refusals, uses: KeyUse) -> None:
        self._context = context
        self._refusals = refusals
        self._uses = uses
        self._made = context.keys.keys
        given = (
            ("api", may_do_everything(SETTING, "api"), context.api_key),
            ("own", may_do_everything("relay"), context.own_key),
            ("metrics", Access("RELAY_METRICS_KEY", frozenset({Scope("metrics")}), "metrics"), context.metrics_key),
        )
        self._given = {name: (access, _digest(key)) for name, access, key in given if key is not None}
        self._failed = FailedKeys(most=MOST_FAILED, span_s=FAILED_SPAN_S, addresses=_ADDRESSES)

    @property
    def is_closed(self) -> bool:
        """Whether a key was ever made."""
        return self._made.closed

    @property
    def _is_unread(self) -> bool:
        """Whether it is not known yet which keys were made."""
        return not self._made.known

    @property
    def guards_metrics(self) -> bool:
        """Whether /metrics takes a key: as soon as there is one."""
        return self.is_closed or bool({"api", "metrics"} & self._given.keys())

    def caller(self, request: web.Request, *, with_key: bool = False) -> Caller:
        """The caller, by the request's header. `with_key`: require a key even while none was created. Raises a Problem,
        and LogUnavailable until the keys are known."""
        given = "Authorization" in request.headers
        found = self.judged(request, bearer_in(request), given=given, with_key=with_key)
        request[_CALLER] = found
        return found

    def judged(self, request: web.Request, text: str | None, *, given: bool, with_key: bool = False) -> Caller:
        """The caller with the credential `text`; `given`: whether the request had one. Raises as `caller`."""
        found = None if text is None else self._of(text)
        if found is not None:
            return found
        if text is None or kind_of(text) is None:  # a token that is none is never better than no token
            if self._is_unread and (self._may_be_open or (text and id_of(text))):
                raise LogUnavailable("the keys are not read yet")
            if self._is_open and not with_key:
                return Caller(may_do_everything("anybody"), NOBODY)
        raise self._refused(request, given=given)

    def may_monitor(self, request: web.Request) -> bool:
        """Whether the caller of an open route may see what /metrics shows. An unknown caller is no error."""
        try:  # not counted as a guess: the response is the same for a wrong key and for none
            found = self.judged(request, bearer_in(request), given=False, with_key=self.guards_metrics)
        except (Problem, LogUnavailable):
            return False
        return found.access.may("metrics")

    def prove(self, request: web.Request, caller: Caller, tenant_of: TenantOf) -> None:
        """Sets the caller of a request that was admitted without one."""
        request[_CALLER] = caller
        check_access(request, caller.access, OPEN, tenant_of)

    def ended(self, request: web.Request) -> str | None:
        """Why the caller's rights differ from those at the beginning of a long request; None if they do not."""
        try:  # not counted as a guess: the caller had a valid key
            access = self.judged(request, bearer_in(request), given=False).access
        except Problem as problem:
            return f"{problem.kind.title}: {problem.detail}"
        except LogUnavailable as error:
            return str(error)
        return None if access == access_of(request) else "What the caller may do has changed; ask again."

    @property
    def _may_be_open(self) -> bool:
        return self._context.api_key is None and self._context.may_be_open

    @property
    def _is_open(self) -> bool:
        return self._may_be_open and not self.is_closed

    def _of(self, text: str) -> Caller | None:
        if kind_of(text) is not None:
            return self._of_token(text)
        given, now = _digest(text), self._context.clock.time()
        for name, (access, digest) in self._given.items():
            if hmac.compare_digest(given, digest):
                return Caller(access, SessionIssuer(name, proof_of(self._context.session_secrets[0], digest)))
        key = self._made.find(text)
        secret = None if key is None else key.secret_of(text, now)
        if key is None or secret is None:
            return None
        if key.is_over(now):
            raise Problem(UNAUTHORIZED, "This key has expired.", headers=_CHALLENGE)
        self._uses.note(key.id)
        return Caller(key.access, SessionIssuer(key.id, proof_of_digest(secret.digest)), None, key.expires_at)

    # sessions

    def _of_token(self, text: str) -> Caller | None:
        """The caller of a session token. None if it is not a token of this relay. Raises a Problem for an expired
        one."""
        try:
            session = read(self._context.session_secrets, text, self._context.clock.time())
        except SessionInvalid:
            return None
        except SessionOver:
            raise _over("its time is over") from None
        if self._is_unread:
            raise LogUnavailable("the keys are not read yet")
        maker = self._access_of(session.maker)
        if maker is None:
            raise _over("the key that it was made with is good no more")
        if session.id in self._made.ended:
            raise _over("it was ended")
        return Caller(_access(session, maker), session.maker, session, session.expires)

    def _access_of(self, maker: SessionIssuer) -> Access | None:
        """The rights of the key that created a session; None if the key is no longer valid."""
        if maker == NOBODY:
            return may_do_everything("anybody") if self._is_open else None
        if maker.key in self._given:
            access, digest = self._given[maker.key]
            proofs = [proof_of(secret, digest) for secret in self._context.session_secrets]
            return access if any(hmac.compare_digest(maker.proof, each) for each in proofs) else None
        key = self._made.get(maker.key)
        if key is None or not key.has_good(maker.proof, self._context.clock.time()):
            return None
        self._uses.note(key.id)
        return key.access

    def _refused(self, request: web.Request, *, given: bool) -> Problem:
        if not given:
            return Problem(UNAUTHORIZED, "Send the header Authorization: Bearer <key>.", headers=_CHALLENGE)
        wait_s = self._failed.note(address_of(request), self._context.clock.monotonic())
        self._refusals.log("key", request)
        if wait_s is None:
            return Problem(UNAUTHORIZED, "The header Authorization has no key of this API.", headers=_CHALLENGE)
        return busy("Too many wrong keys came from this address.", TOO_MANY, wait_s)


def tenants_in(context: ApiContext) -> TenantOf:
    """Finds the owner of a receiver, also of one that this process cannot use, or that was removed."""

    def tenant_of(name: str) -> Tenant:
        receiver, registry = context.directory.receiver(name), context.registry
        is_refused = receiver is None or receiver.unusable is not None
        if is_refused and registry.is_declared(name):
            return Tenant(registry.owner_of(name), registry.life_of(name))
        receiver = receiver or context.directory.removed(name)
        return Tenant() if receiver is None else Tenant(receiver.owner, receiver.life)

    return tenant_of


def _access(session: Session, maker: Access) -> Access:
    """The rights of a session, given the current rights of its creator."""
    if session.kind == "session":
        return replace(maker, who=f"session of {maker.who}")
    owner = session.owner or ""
    scopes = frozenset({Scope("owner", owner)}) if maker.may("owner", owner) else frozenset[Scope]()
    return Access(f"portal for {owner} of {maker.who}", scopes, maker.key, session.receivers)


def _over(why: str) -> Problem:
    return Problem(UNAUTHORIZED, f"This token is no longer valid: {why}.", headers=_CHALLENGE)


def bearer_in(request: web.Request) -> str | None:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    """The digest of a key. It is compared instead of the key, which takes the same time for any length."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


_ANYBODY: Final = Access("anybody", frozenset())


def need_of(request: web.Request) -> Need | None:
    """The scopes that the request's route requires. None for an unknown route, which requires only a valid key."""
    declared = declared_of(request)
    if declared is not None:
        return declared.scope
    template = template_of(request)
    if template is None:
        return None if request.path.startswith("/v1/") else OPEN
    return OPEN if is_for_people(template) else ADMIN


def require_access(context: ApiContext, callers: Callers) -> Check:
    """Middleware that rejects callers without the scopes of the route."""
    tenant_of = tenants_in(context)

    def check(request: web.Request) -> None:
        need = need_of(request)
        if need is OPEN or (need is MONITOR and not callers.guards_metrics):
            check_access(request, _ANYBODY, OPEN, tenant_of)
        else:
            check_access(request, callers.caller(request, with_key=need is MONITOR).access, need, tenant_of)
            bounds_of(request).check_again = partial(_check_again, request, callers, need, tenant_of)

    return check


def _check_again(request: web.Request, callers: Callers, need: Need | None, tenant_of: TenantOf) -> None:
    if (why := callers.ended(request)) is not None:
        raise Problem(UNAUTHORIZED, why, headers=_CHALLENGE)
    check_access(request, access_of(request), need, tenant_of)  # its receiver may have another owner now


def require_no_key(request: web.Request) -> None:
    """Everybody passes: where only our own processes can reach us."""
    check_access(request, may_do_everything("relay"), OPEN, lambda _name: Tenant())
