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

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if api_key is not None and is_protected(request) and not _bears(request, api_key):
            raise Problem(UNAUTHORIZED, "Send the header Authorization: Bearer <key>.", headers=_CHALLENGE)
        return await handler(request)

    return check


def is_protected(request: web.Request) -> bool:
    """Judged by the route that was found, not by the path: a path can be spelled in more than one way."""
    resource = request.match_info.route.resource
    path = request.path if resource is None else resource.canonical
    return path.startswith("/v1/") and path != ANSWER_PATH


def _bears(request: web.Request, api_key: str) -> bool:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    # digests: the comparison takes the same time whatever the length
    given, wanted = (
        hashlib.sha256(text.encode(errors="surrogateescape")).digest() for text in (credentials.strip(), api_key)
    )
    return hmac.compare_digest(given, wanted) and scheme.lower() == "bearer"
