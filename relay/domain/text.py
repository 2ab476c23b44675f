"""Text: counts and durations for people, whole numbers, patterns, replaced parts, halves of surrogate pairs. Pure."""

import re
from collections.abc import Callable, Iterable
from typing import Final

MOST_DIGITS: Final = 18
"""Of a whole number from outside: it fits in 64 bits, and `int` is slow, and then refuses, on very long input."""

_STEPS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_SHORT_S: Final = 120.0
_HALF: Final = re.compile(
    rb"""\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}    # a pair
    |(\\u[dD][89a-fA-F][0-9a-fA-F]{2})(?!\\?\Z|\\u[0-9a-fA-F]{0,3}\Z)  # a half that is not the end of the text
    |\\.""",
    re.DOTALL | re.VERBOSE,
)


def counted(count: int, one: str, more: bool = False) -> str:
    """`1 message`, `187 messages`, `500 or more messages`."""
    return f"{count:,}{' or more' if more else ''} {one}{'' if count == 1 and not more else 's'}"


def lasting(seconds: float, parts: int = 2) -> str:
    """`12 s`, `3 min 4 s`, `2 d 5 h`: a duration in its `parts` largest units."""
    if seconds < _SHORT_S and (parts > 1 or seconds < 60):
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
    for (unit_s, unit), (next_s, next_unit) in zip(_STEPS, (*_STEPS[1:], (1.0, "s")), strict=True):
        if seconds >= unit_s:
            whole, rest = divmod(seconds, unit_s)
            more = int(rest / next_s)
            return f"{whole:.0f} {unit} {more} {next_unit}" if more and parts > 1 else f"{whole:.0f} {unit}"
    return f"{seconds:.0f} s"


def whole_number(text: str | bytes) -> int | None:
    """The number that a text from outside is; None if it is anything but up to `MOST_DIGITS` ASCII digits."""
    return int(text) if len(text) <= MOST_DIGITS and text.isascii() and text.isdigit() else None


def matches(pattern: str, text: str) -> bool:
    """Whether `text` is the pattern, or begins with the part before its final `*`."""
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def half_pair(json: bytes) -> str | None:
    """Error of a JSON text with half a surrogate pair, if it has one. The decoder has several errors for it, one of
    which is that the text is cut."""
    half = next((found[1] for found in _HALF.finditer(json) if found[1]), None)
    return None if half is None else f"{half.decode()} is half of a surrogate pair, and so no Unicode text"


def with_replaced(text: str, spans: Iterable[tuple[int, int]], new: Callable[[str], str]) -> str:
    """`text` with the part at each of `spans` (start and end, in order) replaced by what `new` makes of it."""
    parts, end = [], 0
    for start, stop in spans:
        parts += [text[end:start], new(text[start:stop])]
        end = stop
    return "".join((*parts, text[end:]))
