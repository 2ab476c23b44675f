"""Reads all rows of a history from SQLite or PostgreSQL, so that tests can compare two histories."""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import asyncpg

from relay.domain.attempt import decode_attempt
from relay.domain.statistics import OUTCOMES
from relay.history.postgres_tables import SCHEMA
from relay.history.sql import TABLES

Rows = dict[str, list[tuple[Any, ...]]]
"""The sorted rows of each table."""

COUNTED: Final = 5
"""The number of columns of `counts` before its numbers."""
VALUE: Final = -2
"""The column of `attempts` with the record's value."""


def of_file(path: Path) -> Rows:
    """The rows of a SQLite file, even while it is written. Empty if it has no tables yet."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.execute("BEGIN")
        return {table: _sorted(database.execute(f"SELECT * FROM {table}").fetchall()) for table in TABLES}  # noqa: S608


async def of_server(url: str) -> Rows:
    """The rows of a PostgreSQL server."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            found = {table: await connection.fetch(f"SELECT * FROM {SCHEMA}.{table}") for table in TABLES}  # noqa: S608
    finally:
        await connection.close()
    return {table: _sorted(map(tuple, rows)) for table, rows in found.items()}


def _sorted(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


Positions = dict[tuple[str, int], int]


def positions_of(path: Path) -> Positions:
    """The next offsets in a SQLite file, by topic and partition."""
    try:
        return positions(of_file(path))
    except sqlite3.OperationalError:  # not made yet
        return {}


def positions(rows: Rows) -> Positions:
    return {(topic, partition): offset for topic, partition, offset in rows["positions"]}


def reaches(found: Positions, wanted: Positions) -> bool:
    return all(found.get(place, 0) >= offset for place, offset in wanted.items())


def posts(rows: Rows) -> Counter[tuple[str, str, int]]:
    """How many records each POST has, by message, receiver and number of the attempt."""
    attempts = [decode_attempt(row[VALUE]) for row in rows["attempts"]]
    return Counter((one.message_id or "", one.receiver or "", one.attempt) for one in attempts if one.kind == "post")


def counted(rows: Rows) -> tuple[int, int]:
    """The numbers of POSTs counted by minute, and by hour."""
    minutes, hours = (
        sum(sum(row[COUNTED : COUNTED + len(OUTCOMES)]) for row in rows["counts"] if row[0] == span)
        for span in (60, 3600)
    )
    return minutes, hours
