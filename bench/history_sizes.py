"""What the history takes in SQLite and in PostgreSQL, with indexes: filled by its own worker from the log of a rig."""

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

import asyncpg

from bench.postgres import Postgres
from bench.rig import Rig
from relay.history.postgres_tables import SCHEMA

_FILLED_S: Final = 900.0
_LOOK_S: Final = 0.5
_ROWS: Final = {"messages": "message", "deliveries": "delivery", "attempts": "attempt", "counts": "count"}

_SIZES_IN_FILE: Final = "SELECT m.tbl_name, sum(d.pgsize) FROM dbstat d JOIN sqlite_master m USING (name) GROUP BY 1"
_SIZES_ON_SERVER: Final = f"""
SELECT coalesce(whole.relname, part.relname)::text, sum(pg_total_relation_size(part.oid))::bigint
FROM pg_class part LEFT JOIN pg_inherits ON inhrelid = part.oid LEFT JOIN pg_class whole ON whole.oid = inhparent
WHERE part.relnamespace = '{SCHEMA}'::regnamespace AND part.relkind = 'r' AND pg_relation_size(part.oid) > 0
GROUP BY 1
"""  # noqa: S608
"""Without days on which nothing came: their indexes have a page each all the same."""

Place = tuple[str, int]
"""Topic and partition."""


class _Store(Protocol):
    name: str
    url: str
    schema: str
    sizes: str

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """None, while the tables are not made yet."""
        ...


class _File:
    name, schema, sizes = "SQLite", "", _SIZES_IN_FILE

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite://{path}"

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as opened:
                return opened.execute(statement).fetchall()
        except sqlite3.OperationalError:
            return []


class _Server:
    name, schema, sizes = "PostgreSQL", f"{SCHEMA}.", _SIZES_ON_SERVER

    def __init__(self, url: str) -> None:
        self.url = url

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self.url)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        except asyncpg.UndefinedTableError:
            return []
        finally:
            await connection.close()


def reached(taken: Mapping[Place, int], ends: Mapping[Place, int]) -> bool:
    """Whether every record below `ends` is taken."""
    return all(taken.get(place, 0) >= end for place, end in ends.items())


def size_lines(store: str, sizes: Mapping[str, int], counts: Mapping[str, int]) -> Iterator[str]:
    """Both by table."""
    for table, one in _ROWS.items():
        if counts[table]:
            yield f"{store:24} {sizes[table] / counts[table]:7,.0f} bytes per {one} ({counts[table]:,})"


async def history_lines(rig: Rig, ends: Mapping[Place, int]) -> list[str]:
    """Of both stores. `ends`: of all topics that a history reads; nothing is added to them any more."""
    found = await _filled(rig, _File(rig.directory / "measured.db"), ends)
    server = Postgres(durable=True)
    server.start()
    try:
        return found + await _filled(rig, _Server(server.url), ends)
    finally:
        server.stop()


async def _filled(rig: Rig, store: _Store, ends: Mapping[Place, int]) -> list[str]:
    worker = rig.relay.command(f"history-{store.name}", "worker", "history", RELAY_HISTORY_URL=store.url)
    await worker.start()
    try:
        async with asyncio.timeout(_FILLED_S):
            while not reached(await _taken(store), ends):
                if worker.ended:
                    raise worker.failed("ended by itself")
                await asyncio.sleep(_LOOK_S)
    finally:
        await worker.stop()
    sizes = {str(table): int(size) for table, size in await store.rows(store.sizes)}
    counts = {table: (await store.rows(f"SELECT count(*) FROM {store.schema}{table}"))[0][0] for table in _ROWS}  # noqa: S608
    return list(size_lines(store.name, sizes, counts))


async def _taken(store: _Store) -> dict[Place, int]:
    rows = await store.rows(f"SELECT topic, partition, next_offset FROM {store.schema}positions")  # noqa: S608
    return {(topic, partition): offset for topic, partition, offset in rows}
