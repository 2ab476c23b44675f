"""Who calls: the bearer of a key, or anybody while there is no key and nobody else can reach us.

Some requests have a proof of their own, and are asked for no key: the token of an answer URL, the signature of a
webhook. What a key may do is in `access`.
"""

import hashlib
import hmac
from typing import Final

from aiohttp import web

from relay.api.access import ANSWER_PATH as ANSWER_PATH
from relay.api.access import INBOUND_ROUTE as INBOUND_ROUTE
from relay.api.access import MONITOR, OPEN, let_in, need_of
from relay.api.context import ApiContext
from relay.api.failed_keys import FailedKeys
from relay.api.key_use import KeyUse
from relay.api.problems import TOO_MANY, UNAUTHORIZED, Check, Problem
from relay.api.refusals import Refusals
from relay.domain.api_key import id_of
from relay.domain.errors import LogUnavailable
from relay.domain.scope import Access, may_do_everything

MOST_FAILED: Final = 20
FAILED_SPAN_S: Final = 60.0
"""So many wrong keys from an address in so many seconds are answered with 401; those beyond with 429."""
SETTING: Final = "RELAY_API_KEY"
_ADDRESSES: Final = 10_000
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="relay"'}
_NOBODY: Final = Access("anybody", frozenset())


def require_access(context: ApiContext, refusals: Refusals, uses: KeyUse) -> Check:
    """Only who has what the route takes passes."""
    known = _Callers(context, refusals, uses)

    def owner_of(name: str) -> str | None:
        receiver, registrar = context.directory.receiver(name), context.registrar
        if receiver is None and registrar is not None and (declared := registrar.registry.owner_of(name)) is not None:
            return declared  # of one that is refused here
        receiver = receiver or context.directory.removed(name)
        return None if receiver is None else receiver.owner

    def check(request: web.Request) -> None:
        need = need_of(request)
        if need is OPEN or (need is MONITOR and not known.is_closed):
            let_in(request, _NOBODY, OPEN, owner_of)
        else:
            let_in(request, known.caller(request), need, owner_of)

    return check


def require_no_key(request: web.Request) -> None:
    """Everybody passes: where only our own processes can reach us."""
    let_in(request, may_do_everything("relay"), OPEN, lambda _name: None)


class _Callers:
    """Tells who calls.

    A right key always passes: behind a proxy everybody has one address, and one with a wrong key must not shut out the
    others. So what is limited is the answers to wrong ones, and what they cost; that nobody guesses a right one is a
    matter of its length.
    """

    def __init__(self, context: ApiContext, refusals: Refusals, uses: KeyUse) -> None:
        self._context = context
        self._refusals = refusals
        self._uses = uses
        self._made = context.keys.keys if context.keys is not None else None
        given = ((may_do_everything(SETTING, "api"), context.api_key), (may_do_everything("relay"), context.own_key))
        self._given = [(access, _digest(key)) for access, key in given if key is not None]
        self._failed = FailedKeys(most=MOST_FAILED, span_s=FAILED_SPAN_S, addresses=_ADDRESSES)

    @property
    def is_closed(self) -> bool:
        """Whether a key was ever made."""
        return self._made is not None and self._made.closed

    def caller(self, request: web.Request) -> Access:
        """Raises a Problem, and LogUnavailable while it is not known yet which keys there are."""
        text = _bearer(request)
        access = None if text is None else self._of(text)
        if access is not None:
            return access
        may_be_open = self._context.api_key is None and self._context.may_be_open
        if self._made is not None and not self._made.known and (may_be_open or (text and id_of(text))):
            raise LogUnavailable("the keys are not read yet")
        if may_be_open and not self.is_closed:
            return may_do_everything("anybody")
        raise self._refused(request)

    def _of(self, text: str) -> Access | None:
        given = _digest(text)
        for access, digest in self._given:
            if hmac.compare_digest(given, digest):
                return access
        key, now = self._made.find(text) if self._made is not None else None, self._context.clock.time()
        if key is None or not key.proves(text, now):
            return None
        if key.is_over(now):
            raise Problem(UNAUTHORIZED, "This key has expired.", headers=_CHALLENGE)
        self._uses.note(key.id)
        return key.access

    def _refused(self, request: web.Request) -> Problem:
        detail = "Send the header Authorization: Bearer <key>."
        if "Authorization" not in request.headers:
            return Problem(UNAUTHORIZED, detail, headers=_CHALLENGE)
        wait_s = self._failed.note(request.remote, self._context.clock.monotonic())
        self._refusals.tell("key", request)
        if wait_s is None:
            return Problem(UNAUTHORIZED, detail, headers=_CHALLENGE)
        return Problem(TOO_MANY, "Too many wrong keys from this address.", headers={"Retry-After": str(wait_s)})


def _bearer(request: web.Request) -> str | None:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    """Compared in place of the key: that takes the same time whatever its length."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
