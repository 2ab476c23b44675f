"""The history on disk: an append-only file with one JSON line for each record.

A line is written with a single `write` call, so it is complete in the page cache before a response is sent, and
survives a kill of its process.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from tests.faults.harness.history import Arrival, Asked, Died, Fault, Peak, Ping, Record, Returned, Sent, Unheard

_KINDS: Final[Mapping[str, type[Record]]] = {
    "sent": Sent,
    "arrival": Arrival,
    "peak": Peak,
    "unheard": Unheard,
    "asked": Asked,
    "ping": Ping,
    "returned": Returned,
    "died": Died,
    "fault": Fault,
}
_STARTS: Final = {kind: b'{"kind":"%s",' % name.encode() for name, kind in _KINDS.items()}
_encode = msgspec.json.Encoder().encode


class _Kind(msgspec.Struct):
    kind: str


class Ledger:
    """Appends to the file at `path`, which is created if necessary. For one process at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, record: Record) -> None:
        """Append a record, which then survives this process. Raises OSError if it cannot be written completely."""
        line = _STARTS[type(record)] + _encode(record)[1:] + b"\n"
        written = os.write(self._file, line)
        if written < len(line):
            raise OSError(f"only {written} of {len(line)} bytes of a ledger line were written; is the disk full?")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> list[Record]:
    """All records of a ledger, in the order in which they were written; none if there is no such file.

    An incomplete last line, of a killed process, is left out. Raises ValueError for any other line that is not a
    record, because an incomplete history proves nothing.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    *whole, _torn = content.split(b"\n")
    return [decode(line, path, number) for number, line in enumerate(whole, start=1)]


def decode(line: bytes, path: Path, number: int) -> Record:
    """Decodes a line of the ledger at `path`. Raises ValueError if it is not a record."""
    try:
        kind = msgspec.json.decode(line, type=_Kind).kind
        return msgspec.json.decode(line, type=_KINDS[kind])
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"{path}, line {number}: not a record of the history: {error}") from error
