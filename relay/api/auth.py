"""Who may call: a bearer key for everything under /v1, except where the request has a proof of its own: the token of an
answer URL, or the signature of a webhook."""

import hashlib
import hmac
from typing import Final

from aiohttp import web

from relay.api.failed_keys import FailedKeys
from relay.api.problems import TOO_MANY, UNAUTHORIZED, Check, Problem
from relay.api.refusals import Refusals
from relay.engine.clock import Clock

ANSWER_PATH: Final = "/v1/answers/{token}"
INBOUND_ROUTE: Final = "/v1/in/{source_id}"
MOST_FAILED: Final = 20
FAILED_SPAN_S: Final = 60.0
"""So many wrong keys from an address in so many seconds are answered with 401; those beyond with 429."""
_PROVEN_OTHERWISE: Final = frozenset({ANSWER_PATH, INBOUND_ROUTE})
_ADDRESSES: Final = 10_000
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="relay"'}


def require_key(api_key: str | None, clock: Clock, refusals: Refusals) -> Check:
    """Only bearers of `api_key` pass; None: everybody.

    The right key always passes: behind a proxy everybody has one address, and one with a wrong key must not shut out
    the others. So what is limited is the answers to wrong ones, and what they cost; that nobody guesses the right one
    is a matter of its length.
    """

    wanted = None if api_key is None else _digest(api_key)
    failed = FailedKeys(most=MOST_FAILED, span_s=FAILED_SPAN_S, addresses=_ADDRESSES)

    def check(request: web.Request) -> None:
        if wanted is not None and is_protected(request) and not _bears(request, wanted):
            raise refused(request)

    def refused(request: web.Request) -> Problem:
        detail = "Send the header Authorization: Bearer <key>."
        if "Authorization" not in request.headers:
            return Problem(UNAUTHORIZED, detail, headers=_CHALLENGE)
        wait_s = failed.note(request.remote, clock.monotonic())
        refusals.tell("key", request)
        if wait_s is None:
            return Problem(UNAUTHORIZED, detail, headers=_CHALLENGE)
        return Problem(TOO_MANY, "Too many wrong keys from this address.", headers={"Retry-After": str(wait_s)})

    return check


def is_protected(request: web.Request) -> bool:
    """Judged by the route that was found, not by the path: a path can be spelled in more than one way."""
    resource = request.match_info.route.resource
    path = request.path if resource is None else resource.canonical
    return path.startswith("/v1/") and path not in _PROVEN_OTHERWISE


def _bears(request: web.Request, wanted: bytes) -> bool:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    return hmac.compare_digest(_digest(credentials.strip()), wanted) and scheme.lower() == "bearer"


def _digest(key: str) -> bytes:
    """Compared in place of the key: that takes the same time whatever its length."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
