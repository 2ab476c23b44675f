"""Replaces the texts of a rendered page that code makes: exact ones, and sentences with names and numbers.

Texts of templates are replaced before, while those are compiled. Ids and text of others are in elements that are left
as they are (`_KEPT`), or have `translate="no"`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape, unescape
from typing import Final

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
_NUMBER: Final = "([0-9][0-9\u202f,. a-z]{0,12})"
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
            yield text if depth else self._escaped(text)
            at, closing, name, rest = tag.end(), tag[1], (tag[2] or "").lower(), tag[3] or ""
            if depth:
                depth += 0 if name != kept else -1 if closing else 1
            elif not closing and not rest.endswith("/") and (name in _KEPT or 'translate="no"' in rest):
                kept, depth = name, 1
            if depth or closing or not name:
                yield tag[0]
            else:
                yield f"<{tag[2]}{_ATTRIBUTE.sub(lambda found: found[1] + self._escaped(found[2]), rest)}>"
        yield self._escaped(page[at:])

    def _escaped(self, html: str) -> str:
        key = " ".join(unescape(html).split())
        if len(key) > _LONGEST or not any(map(str.isalpha, key)):
            return html
        replaced = self.text(key)
        if replaced == key:
            return html
        start = len(html) - len(html.lstrip())
        return html[:start] + escape(replaced) + html[len(html.rstrip()) :]

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
