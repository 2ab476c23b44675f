"""Reader of server-sent events. Pure."""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

SILENT_S: Final = 60.0
"""A stream without a byte for so long is broken: the API sends a comment each 15 s."""
_LARGEST: Final = 8 * 1024**2


class ServerSentEvent(NamedTuple):
    """`data`: its JSON, decoded."""

    name: str
    data: Any


class EventReader:
    """Assembles events from the bytes of a stream. Pure. Other content is skipped."""

    def __init__(self, most_bytes: int = _LARGEST) -> None:
        self._left = b""
        self._most_bytes = most_bytes

    def feed(self, data: bytes) -> Iterator[ServerSentEvent]:
        """The events that are complete with these bytes. Raises ValueError where one is too large."""
        *blocks, self._left = (self._left + data).split(b"\n\n")
        for block in blocks:
            event = _event(block)
            if event is not None:
                yield event
        if len(self._left) > self._most_bytes:
            raise ValueError(f"an event of more than {self._most_bytes} bytes")


def _event(block: bytes) -> ServerSentEvent | None:
    fields = dict(line.split(": ", 1) for line in block.decode(errors="replace").split("\n") if ": " in line)
    try:
        return ServerSentEvent(fields["event"], json.loads(fields["data"]))
    except (KeyError, ValueError, RecursionError):
        return None
