"""A pseudo-translation of the portal: text that is still in Latin letters afterwards was not translated."""

import re
from typing import Final

from relay.pages.portal_strings import texts

_WORD: Final = re.compile("[A-Za-z]{2,}")
UNITS: Final = frozenset({"HTTP", "UTC", "ms", "min", "p50", "p99", "KiB"})


def pseudo(text: str) -> str:
    """Each letter replaced, but for slots."""
    parts = re.split(r"(\{\d\})", text)
    return "".join(part if place % 2 else re.sub("[A-Za-z]", "\u0436", part) for place, part in enumerate(parts))


def strings() -> dict[str, str]:
    """Of all texts of the portal."""
    return {text: "eo" if text == "en" else pseudo(text) for text in texts()}


def left_of(text: str, *data: str) -> list[str]:
    """The words that were not translated, without units and `data`."""
    for each in sorted(data, key=len, reverse=True):
        text = text.replace(each, " ")
    return [word for word in _WORD.findall(text) if word not in UNITS]
