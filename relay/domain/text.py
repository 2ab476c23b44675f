"""Text: counts for people, patterns, and replacement of parts. Pure."""

from collections.abc import Callable, Iterable


def counted(count: int, one: str, more: bool = False) -> str:
    """`1 message`, `187 messages`, `500 or more messages`."""
    return f"{count:,}{' or more' if more else ''} {one}{'' if count == 1 and not more else 's'}"


def matches(pattern: str, text: str) -> bool:
    """Whether `text` is the pattern, or begins with the part before its final `*`."""
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def with_replaced(text: str, spans: Iterable[tuple[int, int]], new: Callable[[str], str]) -> str:
    """`text` with the part at each of `spans` (start and end, in order) replaced by what `new` makes of it."""
    parts, end = [], 0
    for start, stop in spans:
        parts += [text[end:start], new(text[start:stop])]
        end = stop
    return "".join((*parts, text[end:]))
