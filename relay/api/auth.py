"""Who may call: a bearer key for everything under /v1, except for answer URLs, whose token is the proof."""

import hashlib
import hmac
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from relay.api.problems import UNAUTHORIZED, Problem

ANSWER_PATH: Final = "/v1/answers/{token}"
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="relay"'}


def require_key(api_key: str | None) -> Middleware:
    """The middleware that lets only bearers of `api_key` pass; None: everybody."""

    wanted = None if api_key is None else _digest(api_key)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if wanted is not None and is_protected(request) and not _bears(request, wanted):
            raise Problem(UNAUTHORIZED, "Send the header Authorization: Bearer <key>.", headers=_CHALLENGE)
        return await handler(request)

    return check


def is_protected(request: web.Request) -> bool:
    """Judged by the route that was found, not by the path: a path can be spelled in more than one way."""
    resource = request.match_info.route.resource
    path = request.path if resource is None else resource.canonical
    return path.startswith("/v1/") and path != ANSWER_PATH


def _bears(request: web.Request, wanted: bytes) -> bool:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    return hmac.compare_digest(_digest(credentials.strip()), wanted) and scheme.lower() == "bearer"


def _digest(key: str) -> bytes:
    """Compared in place of the key: that takes the same time whatever its length."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
