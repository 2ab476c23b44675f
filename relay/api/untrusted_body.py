"""Responses whose body others wrote, a sender or a receiver: in a browser they are never a page of this origin."""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from relay.api.json_body import JSON

_SANDBOX: Final = "sandbox; default-src 'none'"
_PLAIN: Final = frozenset({JSON, "text/plain"})
"""Media types that a browser shows as text; any other is saved."""


def foreign_response(body: bytes, content_type: str | None, headers: Mapping[str, str]) -> web.Response:
    """200 with `body` as it is. None: it has no content type. What `headers` say of its disposition counts."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    saved = {} if media_type in _PLAIN else {"Content-Disposition": "attachment"}
    typed = {} if content_type is None else {"Content-Type": content_type}
    return web.Response(body=body, headers={**saved, **typed, **headers, "Content-Security-Policy": _SANDBOX})
