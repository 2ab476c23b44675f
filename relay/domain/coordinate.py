"""Where a record is, how that is written as text, and what a record carries beside its value."""

from typing import Final, NamedTuple

Headers = tuple[tuple[str, bytes], ...]

_MAX_DIGITS: Final = 18  # fits 64 bits; int() is slow, and then refuses, on very long input


class Coordinate(NamedTuple):
    """Where a record is. Offsets grow along a partition; nothing else may be read into them."""

    topic: str
    partition: int
    offset: int


def coordinate_text(at: Coordinate) -> str:
    """`topic/partition/offset`, as in the header `relay-origin` (a topic's name has no slash)."""
    return f"{at.topic}/{at.partition}/{at.offset}"


def parse_coordinate(text: str) -> Coordinate:
    """The reverse of `coordinate_text`. Raises ValueError that says what was expected."""
    parts = text.split("/")
    if len(parts) != 3:
        raise ValueError("expected topic/partition/offset")
    topic, partition, offset = parts
    if not topic or not _is_number(partition) or not _is_number(offset):
        raise ValueError("expected topic/partition/offset")
    return Coordinate(topic, int(partition), int(offset))


def _is_number(text: str) -> bool:
    return len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()
