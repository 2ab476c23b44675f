"""Builder of SQL statements with parameters, and the statements that erase payloads. Pure: builds SQL texts.

After an erasure, the rows of messages and deliveries stay, so that lists and statistics do; attempts are deleted, as
responses may repeat a payload.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from relay.domain.erasure import Erasure

LAST_CHARACTER: Final = "\U0010ffff"
"""Appended to a prefix, sorts after every text with that prefix."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Differences between databases. `sign`: prefix of a numbered parameter. `is_first`: condition that a row `m` is
    the first arrival of its id. `holds`: condition that a column contains the bytes of a parameter."""

    sign: str
    is_first: str
    holds: Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Select:
    text: str
    values: tuple[Any, ...]


class SelectWriter:
    """Collects conditions and the values of their parameters."""

    def __init__(self, dialect: Dialect) -> None:
        self._sign = dialect.sign
        self.values: list[Any] = []
        self.conditions: list[str] = []
        self.head = ""

    def mark(self, value: object) -> str:
        self.values.append(value)
        return f"{self._sign}{len(self.values)}"

    def where(self, text: str, *values: object) -> None:
        """Add a condition: `text` with {} for each value. Adds nothing if the only value is None."""
        if values != (None,):
            self.conditions.append(text.format(*map(self.mark, values)))

    def since(self, column: str, time: float | None) -> None:
        """Add the lower bound of the column that a page is ordered by. Without any, SQLite 3.46 sorts the whole table,
        although an index has the order."""
        self.where(f"{column} >= {{}}", -inf if time is None else time)

    def select(self, columns: str, tables: str, order: str, limit: int) -> Select:
        where = " AND ".join(self.conditions) or "TRUE"
        text = f"{self.head}SELECT {columns} FROM {tables} WHERE {where} ORDER BY {order} LIMIT {limit}"
        return Select(text, tuple(self.values))


def wanted(writer: SelectWriter, keys: Sequence[tuple[str, str]]) -> str:
    """A table `wanted` of these keys, to be joined first: an IN would scan every row of the other table."""
    pairs = ", ".join(f"({writer.mark(source_id)}, {writer.mark(message_id)})" for source_id, message_id in keys)
    return f"WITH wanted(s, m) AS (VALUES {pairs}) "


def beginning(column: str, prefix: str) -> tuple[str, str, str]:
    """Arguments of `where` for a prefix match, as an index range."""
    return f"{column} >= {{}} AND {column} < {{}}", prefix, prefix + LAST_CHARACTER


# --- erasing --------------------------------------------------------------------------------------------------------


ERASED_AT_ONCE = 1_000
"""Rows changed by one statement, so that writes can run in between."""
_HAS_PAYLOAD = "(headers IS NOT NULL OR body IS NOT NULL)"


def erasing(dialect: Dialect, erasure: Erasure) -> Iterator[Select]:
    """Statements, each to be repeated until it changes fewer than ERASED_AT_ONCE rows."""
    yield _messages(dialect, erasure)
    yield _attempts(dialect, erasure)


def _messages(dialect: Dialect, erasure: Erasure) -> Select:
    """Those of a receiver that other receivers got, too, keep their payload for these."""
    writer = SelectWriter(dialect)
    if erasure.receiver is None:
        _where_message(writer, erasure)
    else:
        same = "d.source_id = messages.source_id AND d.message_id = messages.message_id"
        other = f"SELECT 1 FROM deliveries d WHERE {same} AND d.receiver <> {{}}"
        own = "SELECT source_id, message_id FROM deliveries WHERE receiver = {}"
        writer.where(f"(source_id, message_id) IN ({own}) AND NOT EXISTS ({other})", *2 * [erasure.receiver])
    writer.where("received_at <= {}", erasure.made_at)
    where = " AND ".join((*writer.conditions, _HAS_PAYLOAD))
    keys = f"SELECT source_id, message_id FROM messages WHERE {where} LIMIT {ERASED_AT_ONCE}"
    until = writer.mark(erasure.made_at)
    text = f"UPDATE messages SET headers = NULL, body = NULL WHERE (source_id, message_id) IN ({keys})"
    return Select(f"{text} AND received_at <= {until}", tuple(writer.values))


def _attempts(dialect: Dialect, erasure: Erasure) -> Select:
    writer = SelectWriter(dialect)
    if erasure.receiver is None:
        _where_message(writer, erasure)
    else:
        writer.where("receiver = {} AND message_id <> ''", erasure.receiver)
    writer.where("started_at <= {}", erasure.made_at)
    key = "started_at, at_partition, at_offset"
    some = f"SELECT {key} FROM attempts WHERE {' AND '.join(writer.conditions)} LIMIT {ERASED_AT_ONCE}"
    return Select(f"DELETE FROM attempts WHERE ({key}) IN ({some})", tuple(writer.values))


def _where_message(writer: SelectWriter, erasure: Erasure) -> None:
    writer.where("source_id = {}", erasure.source_id)
    writer.where("message_id = {}", erasure.message_id)
