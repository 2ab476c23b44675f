"""What happened, on disk: an append-only file of JSON lines, one for each record of the history.

A line is written with a single `write` call, so the page cache has it whole before anything is answered: it outlives
the process that wrote it, which may be killed at any moment.
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
    """Appends to the file at `path`, which is made when it is not there. For one process at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, record: Record) -> None:
        """On return the record outlives this process. Raises OSError when it cannot be written whole."""
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

    A last line without its end is one whose writer died over it: it is left out. Raises ValueError for any other line
    that is not a record, since a history with a hole proves nothing.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    *whole, _torn = content.split(b"\n")
    return [decode(line, path, number) for number, line in enumerate(whole, start=1)]


def decode(line: bytes, path: Path, number: int) -> Record:
    """A whole line of the ledger at `path`. Raises ValueError for one that is no record."""
    try:
        kind = msgspec.json.decode(line, type=_Kind).kind
        return msgspec.json.decode(line, type=_KINDS[kind])
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"{path}, line {number}: not a record of the history: {error}") from error
