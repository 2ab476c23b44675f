"""Responses: JSON, and bodies that a sender or a receiver wrote, which a browser never shows as a page of this
origin."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

import msgspec
from aiohttp import web

JSON: Final = "application/json"
V = TypeVar("V")


def json_response(status: int, view: object, **headers: str) -> web.Response:
    """`view`: what msgspec encodes. `headers`: names with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(status=status, body=msgspec.json.encode(view), headers={**named, "Content-Type": JSON})


def view_as(kind: type[V], source: object, **others: object) -> V:
    """A TypedDict of this kind: of what it requires, `others`, and for the rest the attributes of `source` with the
    same names. Raises AttributeError if one is missing."""
    names = (name for name in kind.__annotations__ if name in others or name in kind.__required_keys__)  # type: ignore[attr-defined]
    return cast("V", {name: others[name] if name in others else getattr(source, name) for name in names})


@dataclass(frozen=True, slots=True)
class Reply(Generic[V]):
    """What a handler returns to have it sent as JSON with headers of its own."""

    view: V
    headers: Mapping[str, str]


def text_or_base64(body: bytes) -> tuple[str | None, str | None]:
    """The body as text if it is UTF-8, else in base64; None for the other one."""
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(body).decode()


_SANDBOX: Final = "sandbox; default-src 'none'"
PLAIN: Final = frozenset({JSON, "text/plain"})
"""Media types that a browser shows as text, and never runs; any other is saved."""


def foreign_response(body: bytes, content_type: str | None, headers: Mapping[str, str]) -> web.Response:
    """200 with `body` as it is. None: it has no content type. What `headers` say of its disposition counts."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    saved = {} if media_type in PLAIN else {"Content-Disposition": "attachment"}
    typed = {} if content_type is None else {"Content-Type": content_type}
    return web.Response(body=body, headers={**saved, **typed, **headers, "Content-Security-Policy": _SANDBOX})
