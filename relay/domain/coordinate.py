"""Coordinates of records (topic, partition, offset), their text form, and the type of record headers."""

import re
from typing import Final, NamedTuple

Headers = tuple[tuple[str, bytes], ...]

_COORDINATE: Final = re.compile("([^/]+)/([0-9]{1,18})/([0-9]{1,18})")
"""18 digits fit 64 bits; int() is slow, and then refuses, on very long input."""


class Coordinate(NamedTuple):
    """The place of a record. Offsets grow along a partition but may have gaps."""

    topic: str
    partition: int
    offset: int


def coordinate_text(at: Coordinate) -> str:
    """`topic/partition/offset`, as in the header `relay-origin` (a topic's name has no slash)."""
    return f"{at.topic}/{at.partition}/{at.offset}"


def parse_coordinate(text: str) -> Coordinate:
    """The reverse of `coordinate_text`. Raises ValueError that names the expected form."""
    match = _COORDINATE.fullmatch(text)
    if match is None:
        raise ValueError("expected topic/partition/offset")
    topic, partition, offset = match.groups()
    return Coordinate(topic, int(partition), int(offset))
