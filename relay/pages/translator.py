"""Replaces the texts of pages: those of templates while these are compiled, so that rendering costs no more; those that
code makes, exact ones and sentences with names and numbers, in the rendered page.

In a rendered page, ids and text of others are in elements that are left as they are (`_KEPT`), or have
`translate="no"`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape, unescape
from pathlib import Path
from typing import Any, Final

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

_TAG: Final = re.compile(
    r"<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:[^>\"']|\"[^\"]*\"|'[^']*')*)>|<!--.*?-->|<!doctype[^>]*>", re.S
)
_ATTRIBUTE: Final = re.compile(r"""((?:\s|^)(?:aria-label|placeholder|title|alt)=")([^"]*)""")
_KEPT: Final = frozenset({"bdi", "code", "pre", "script", "style", "textarea"})
SLOT: Final = re.compile(r"\{(\d)\}")
_IN_SLOT: Final = r"((?:(?!\. ).)+?)"
"""Within a sentence."""
_COUNTED: Final = re.compile(r"\{0\} [a-z -]+")
"""A key of a number and a few words, which would fit the end of many sentences."""
_NUMBER: Final = "([0-9][0-9,. a-z]{0,12})"
_IN_BRACKETS: Final = re.compile(r"(.+) \(([^()]+)\)")
_CACHED: Final = 4_096
_LONGEST: Final = 2_000
"""Maximum characters of a text that is looked up."""


class Translator:
    """Replaces texts of the pages. `strings`: replacements by the English text. A key may have slots, such as `Attempt
    {0}: {1}`; the content of a slot is replaced, too, if it is a text of the pages."""

    def __init__(self, strings: Mapping[str, str]) -> None:
        self._exact = strings
        slotted = sorted((key for key in strings if SLOT.search(key)), key=_literal_length, reverse=True)
        self._patterns: Sequence[tuple[re.Pattern[str], str]] = [(_pattern(key), strings[key]) for key in slotted]
        self.text: Callable[[str], str] = lru_cache(maxsize=_CACHED)(self._text)

    def html(self, page: str) -> str:
        """The page with its texts and labels replaced."""
        return "".join(self._parts(page))

    def _parts(self, page: str) -> Iterator[str]:
        at, kept, depth = 0, "", 0
        for tag in _TAG.finditer(page):
            text = page[at : tag.start()]
            yield text if depth else _escaped(text, self.text)
            at, closing, name, rest = tag.end(), tag[1], (tag[2] or "").lower(), tag[3] or ""
            if depth:
                depth += 0 if name != kept else -1 if closing else 1
            elif not closing and not rest.endswith("/") and (name in _KEPT or 'translate="no"' in rest):
                kept, depth = name, 1
            if depth or closing or not name:
                yield tag[0]
            else:
                yield f"<{tag[2]}{_ATTRIBUTE.sub(lambda found: found[1] + _escaped(found[2], self.text), rest)}>"
        yield _escaped(page[at:], self.text)

    def _text(self, text: str) -> str:
        whole = self._whole(text)
        if whole is not None:
            return whole
        for between in (" · ", ". ", "; ", ", ", ": "):
            parts = self._split(text, between)
            if parts is not None:
                return parts
        if (found := _IN_BRACKETS.fullmatch(text)) is not None:
            return f"{self.text(found[1])} ({self.text(found[2])})"
        return text

    def _whole(self, text: str) -> str | None:
        """As a text of ours; None if it is none."""
        exact = self._exact.get(text)
        if exact is not None:
            return exact
        for pattern, replacement in self._patterns:
            match = pattern.fullmatch(text)
            if match is not None:
                slots = [self.text(slot) for slot in match.groups()]
                return SLOT.sub(lambda found, slots=slots: slots[int(found[1])], replacement)  # type: ignore[misc]
        return None

    def _split(self, text: str, between: str) -> str | None:
        """Replaced piece by piece, the longest first piece that is ours; None if none is."""
        end = len(text)
        while (at := text.rfind(between, 0, end)) > 0:
            first = self._whole(text[: at + len(between.rstrip()) - (between != ". ")])
            if first is not None:
                glue = " " if between == ". " else between
                return f"{first}{glue}{self.text(text[at + len(between) :])}"
            end = at
        begin, found, rest = text.partition(between)
        if found:
            replaced = f"{self.text(begin)}{between}{self.text(rest)}"
            return None if replaced == text else replaced
        return None


def _literal_length(key: str) -> int:
    return len(SLOT.sub("", key))


def _pattern(key: str) -> re.Pattern[str]:
    slot = _NUMBER if _COUNTED.fullmatch(key) else _IN_SLOT
    pieces = SLOT.split(key)
    text = "".join(slot if place % 2 else re.escape(piece) for place, piece in enumerate(pieces))
    return re.compile(text)


TEMPLATES: Final = Path(__file__).parent / "templates"
_IN_TEMPLATE: Final = re.compile(r"""((?:\s|^)(?:aria-label|placeholder|title|alt|lang)=")([^"]*)""")
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
            parts.append(_IN_TEMPLATE.sub(lambda found: found[1] + _escaped(found[2], replace), part))
        else:
            parts.append(_escaped(part, replace))
        in_tag, at = in_tag != (end >= 0), stop
    return "".join(parts), in_tag


def _escaped(html: str, replace: Replace) -> str:
    """HTML text replaced, with the spaces around it."""
    text = unescape(html)
    replaced = _in_place(text, replace)
    return html if replaced == text else escape(replaced)


def _in_place(text: str, replace: Replace) -> str:
    """`text` replaced, with the spaces around it."""
    key = " ".join(text.split())
    if len(key) > _LONGEST or not any(map(str.isalpha, key)):
        return text
    replaced = replace(key)
    if replaced == key:
        return text
    start = len(text) - len(text.lstrip())
    return text[:start] + replaced + text[len(text.rstrip()) :]
