"""Pages that need nothing but themselves: no script, no font, no picture, from nowhere."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import Final

from aiohttp import web

_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.45 ui-monospace,monospace}"
    "pre{overflow-x:auto;padding:.75rem;border:1px solid #8886;border-radius:6px}"
    "table{border-collapse:collapse;width:100%;display:block;overflow-x:auto}"
    "th,td{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0;border-bottom:1px solid #8884}"
    "details{margin:.4rem 0;border:1px solid #8886;border-radius:6px;padding:.4rem .75rem}"
    "summary{cursor:pointer}h2{margin-top:2.5rem}h4{margin:1rem 0 .25rem}"
    "b.m{display:inline-block;min-width:5rem}"
)
_DIGEST: Final = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_CODE: Final = re.compile(r"`([^`]*)`")


def page(title: str, content: str) -> web.Response:
    """`title`: text. `content`: HTML, of which everything that is not ours was escaped."""
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{content}</body></html>\n"
    )
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=_HEADERS)


def prose(text: str) -> str:
    """Plain text as HTML, with what stands between backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Cells are HTML."""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{lines}</tbody></table>"
    )
