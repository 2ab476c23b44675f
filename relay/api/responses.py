"""Responses: JSON, and bodies that a sender or a receiver wrote, which a browser never shows as a page of this
origin."""

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

JSON: Final = "application/json"


def json_response(status: int, view: object, **headers: str) -> web.Response:
    """`view`: what msgspec encodes. `headers`: names with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(status=status, body=msgspec.json.encode(view), headers={**named, "Content-Type": JSON})


_SANDBOX: Final = "sandbox; default-src 'none'"
_PLAIN: Final = frozenset({JSON, "text/plain"})
"""Media types that a browser shows as text; any other is saved."""


def foreign_response(body: bytes, content_type: str | None, headers: Mapping[str, str]) -> web.Response:
    """200 with `body` as it is. None: it has no content type. What `headers` say of its disposition counts."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    saved = {} if media_type in _PLAIN else {"Content-Disposition": "attachment"}
    typed = {} if content_type is None else {"Content-Type": content_type}
    return web.Response(body=body, headers={**saved, **typed, **headers, "Content-Security-Policy": _SANDBOX})
