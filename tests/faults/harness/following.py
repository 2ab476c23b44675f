"""Reads a ledger while it grows: each call returns the new records."""

from pathlib import Path

from tests.faults.harness.history import Record
from tests.faults.harness.ledger import decode


class Follower:
    """`path` need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._number = 0

    def more(self) -> list[Record]:
        """The records of the whole lines that were written since the last call. Raises ValueError as `ledger.read`."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        records = []
        for line in whole.splitlines():
            self._number += 1
            records.append(decode(line, self._path, self._number))
        return records
