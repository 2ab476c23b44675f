"""Pages that need nothing but themselves: no script, no font, no picture. Their templates are in `templates/`."""

import hashlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp import web
from markupsafe import Markup, escape

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES: Final = Path(__file__).with_name("templates")
_STYLE: Final = (_TEMPLATES / "page.css").read_text()
_DIGEST: Final = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_CODE: Final = re.compile(r"`([^`]*)`")


def html_response(text: str) -> web.Response:
    """`text`: what `render` returned."""
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=_HEADERS)


def render(template: str, **values: object) -> str:
    """The page of a template. Values are escaped."""
    return _environment().get_template(template).render(values, style=_STYLE)


def prose(text: str) -> Markup:
    """Plain text, with what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader  # takes memory, and few processes need it

    found = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    found.filters["prose"] = prose
    return found
