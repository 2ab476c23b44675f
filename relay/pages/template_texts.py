"""Replaces the texts of templates while these are compiled, so that rendering costs no more."""

import re
from collections.abc import Callable, Iterator
from html import escape, unescape
from pathlib import Path
from typing import Any, Final

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

TEMPLATES: Final = Path(__file__).parent / "templates"
_ATTRIBUTE: Final = re.compile(r"""((?:\s|^)(?:aria-label|placeholder|title|alt|lang)=")([^"]*)""")
_PHRASE: Final = re.compile(r"[A-Z].*[a-z].*|[a-z]+,? [a-z].*", re.DOTALL)
"""A text in an expression of a template; other strings there are names and paths."""

Replace = Callable[[str], str]
"""The text for a text in English."""


class Replacing(Extension):
    """Replaces texts while a template is compiled, by `environment.replace`."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        replace: Replace = self.environment.replace  # type: ignore[attr-defined]
        in_tag = False
        for token in stream:
            value: Any = token.value
            if token.type == "data":
                value, in_tag = _of_html(value, replace, in_tag)
            elif token.type == "string" and _PHRASE.fullmatch(value):
                value = _in_place(value, replace)
            yield Token(token.lineno, token.type, value)


def _of_html(html: str, replace: Replace, in_tag: bool) -> tuple[str, bool]:
    """A piece of a template with its texts replaced, and whether it ends within a tag. `in_tag`: it begins so."""
    parts: list[str] = []
    at = 0
    while at < len(html):
        end = html.find(">" if in_tag else "<", at)
        stop = len(html) if end < 0 else end + in_tag
        part = html[at:stop]
        if in_tag:
            parts.append(_ATTRIBUTE.sub(lambda found: found[1] + _escaped(found[2], replace), part))
        else:
            parts.append(_escaped(part, replace))
        in_tag, at = in_tag != (end >= 0), stop
    return "".join(parts), in_tag


def _escaped(html: str, replace: Replace) -> str:
    text = unescape(html)
    replaced = _in_place(text, replace)
    return html if replaced == text else escape(replaced)


def _in_place(text: str, replace: Replace) -> str:
    """`text` replaced, with the spaces around it."""
    key = " ".join(text.split())
    if not any(map(str.isalpha, key)):
        return text
    replaced = replace(key)
    if replaced == key:
        return text
    start = len(text) - len(text.lstrip())
    return text[:start] + replaced + text[len(text.rstrip()) :]
