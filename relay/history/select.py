"""Builder of SELECT statements with parameters. Pure: builds SQL texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
