"""The history in PostgreSQL: COPY into staging tables, then one statement per table, all in one transaction."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import asyncpg

from relay.domain.errors import HistoryUnavailable
from relay.domain.topics import DAY_S
from relay.history.port import FactBatch, Size
from relay.history.postgres_tables import (
    ADD_NUMBER,
    BY_DAY,
    CREATE,
    DROP_NUMBERS,
    FROM_1,
    HAS_NUMBER,
    HAS_NUMBERS,
    INDEX_NUMBERS,
    SCHEMA,
    STAGING,
    VERSION,
    create_partition,
    day_of,
    day_of_partition,
)
from relay.history.rows import MESSAGE_COLUMNS, NewRows, check_not_newer, new_rows
from relay.history.searching import Row, Searching
from relay.history.select import Dialect, Select
from relay.history.sql import ADD_COUNT, ATTEMPT, COUNT, JOIN_DELIVERY, STORED_DELIVERY, TABLES
from relay.log.port import TopicPartition

CONNECT_S: Final = 10.0
WRITE_S: Final = 60.0
MIGRATE_S: Final = 86_400.0
"""An index on billions of deliveries takes hours, and one that was cut off would begin again without end."""
READ_S: Final = 20.0
CLOSE_S: Final = 5.0
READERS: Final = 4
PRUNED_AT_ONCE: Final = 10_000
ESTIMATED_FROM: Final = 100_000
"""Number of rows above which the server's estimate is used."""
_MAKING: Final = 7_236_519_401
"""Advisory lock for creating tables."""
_INDEXING: Final = 7_236_519_402
"""Advisory lock for building an index, held outside of transactions. No process may wait for it, because the index
waits for their transactions."""
_JOINING: Final = 7_236_519_403
"""Advisory lock for writing messages and deliveries, each of which needs columns of the other: two writers at once
would not see each other's."""
_FAILURES: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that the server has closed between two calls is in none of its states
    OSError,
    TimeoutError,
)
_CLOSED: Final = "unexpected connection_lost() call"
"""The client library's words for a connection that is closed before it is established."""
_PLANS: Final = dict.fromkeys(("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "jit"), "off")
"""Staged rows are few and best joined by index, but the planner has no statistics about them."""

_MESSAGES: Final = (
    f"INSERT INTO messages ({MESSAGE_COLUMNS}) SELECT {MESSAGE_COLUMNS.removesuffix(', routed')}, CASE WHEN EXISTS"
    " (SELECT 1 FROM deliveries d WHERE d.source_id = n.source_id AND d.message_id = n.message_id) THEN 1"
    " ELSE n.routed END FROM new_messages n ORDER BY source_id, message_id ON CONFLICT DO NOTHING"
)
_TIMES: Final = (
    "UPDATE deliveries d SET received_at = (SELECT min(m.received_at) FROM messages m WHERE m.source_id = n.source_id"
    " AND m.message_id = n.message_id) FROM new_messages n WHERE d.source_id = n.source_id"
    " AND d.message_id = n.message_id AND d.received_at IS DISTINCT FROM n.received_at"
)
_DELIVERIES: Final = (
    f"INSERT INTO deliveries ({STORED_DELIVERY}, received_at) SELECT {STORED_DELIVERY},"
    " (SELECT min(m.received_at) FROM messages m WHERE m.source_id = n.source_id AND m.message_id = n.message_id)"
    f" FROM new_deliveries n ORDER BY source_id, message_id, receiver {JOIN_DELIVERY}"
)
_ROUTED: Final = (
    "UPDATE messages m SET routed = 1 FROM (SELECT DISTINCT source_id, message_id FROM new_deliveries) n"
    " WHERE m.source_id = n.source_id AND m.message_id = n.message_id AND m.routed = 0"
)
_ATTEMPTS: Final = f"INSERT INTO attempts ({ATTEMPT}) SELECT {ATTEMPT} FROM new_attempts ON CONFLICT DO NOTHING"
_COUNTS: Final = f"INSERT INTO counts ({COUNT}) SELECT {COUNT} FROM new_counts ORDER BY {COUNT} {ADD_COUNT}"
_POSITIONS: Final = (
    "INSERT INTO positions SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])"
    " ON CONFLICT (topic, partition) DO UPDATE SET next_offset = GREATEST(positions.next_offset, excluded.next_offset)"
)
_REWIND: Final = "UPDATE positions SET next_offset = $3 WHERE topic = $1 AND partition = $2"
_PARTITIONS: Final = (
    "SELECT c.relname, c.reltuples FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = $1::text::regclass"
)
_ROWS: Final = (
    "SELECT sum(greatest(c.reltuples, 0)) FROM pg_class c WHERE c.oid = $1::text::regclass"
    " OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = $1::text::regclass)"
)
_BYTES: Final = (
    "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c"
    " WHERE c.relnamespace = $1::text::regnamespace AND c.relkind = 'r'"
)

DIALECT: Final = Dialect(
    "$",
    "NOT EXISTS (SELECT 1 FROM messages e WHERE e.source_id = m.source_id AND e.message_id = m.message_id"
    " AND (e.received_at, e.at_partition, e.at_offset) < (m.received_at, m.at_partition, m.at_offset))",
    lambda column, mark: f"position({mark}::bytea IN {column}) > 0",
)


class PostgresHistory(Searching):
    """`url`: as in libpq. `now`: Unix seconds; days near it have partitions."""

    def __init__(self, url: str, now: Callable[[], float] = time.time) -> None:
        super().__init__(DIALECT, self._read, self._changed)
        self._url = url
        self._now = now
        self._writer: Any = None
        self._staged = False
        self._one_at_a_time = asyncio.Lock()
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._days: set[tuple[str, int]] = set()

    # lifecycle

    async def start(self) -> None:
        async with self._connection() as writer, writer.transaction():
            try:
                await writer.execute("SELECT pg_advisory_xact_lock($1)", _MAKING)
            except TimeoutError as error:
                raise HistoryUnavailable("PostgreSQL: another process is preparing its tables") from error
            version = await _version(writer)
            if version == 1:
                await writer.execute(FROM_1, timeout=MIGRATE_S)
            elif version != VERSION:
                _check_encoding(await writer.fetchval("SHOW server_encoding"))
                await writer.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
                await writer.execute(CREATE)
                self._days.clear()
            if not await writer.fetchval(HAS_NUMBER):
                await writer.execute(ADD_NUMBER, timeout=MIGRATE_S)
        async with self._connection() as writer:
            await _index_numbers(writer)

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        pool, self._pool = self._pool, None
        if writer is not None:
            await _closed(writer)
        if pool is not None:
            pool.terminate()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """The writing connection, for one caller at a time; after a failure the next caller gets a new one."""
        async with self._one_at_a_time:
            with _translated():
                if self._writer is None or self._writer.is_closed():
                    self._staged = False
                    self._days.clear()  # the tables may have been created again
                    settings = {"search_path": SCHEMA, "application_name": "relay history", **_PLANS}
                    settings["idle_in_transaction_session_timeout"] = f"{WRITE_S:.0f}s"  # of a frozen process
                    settings |= dict.fromkeys(("statement_timeout", "lock_timeout"), "0")  # each call has its own limit
                    self._writer = await asyncpg.connect(
                        self._url, timeout=CONNECT_S, command_timeout=WRITE_S, server_settings=settings
                    )
                try:
                    yield self._writer
                except BaseException:
                    writer, self._writer = self._writer, None
                    if writer is not None:
                        writer.terminate()
                    raise

    # writing

    async def write(
        self, batch: FactBatch, next_offsets: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
    ) -> None:
        async with self._connection() as writer:
            await self._make_days(writer, batch)
            if not self._staged:
                await writer.execute(STAGING)
                self._staged = True
            async with writer.transaction():
                await _lock(writer, next_offsets)
                await _fill(writer, new_rows(batch, await _positions(writer), first))
                await _advance(writer, next_offsets)

    async def skip(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        async with self._connection() as writer, writer.transaction():
            await _lock(writer, next_offsets)
            await _advance(writer, next_offsets)

    async def rewind(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        async with self._connection() as writer, writer.transaction():
            await _lock(writer, next_offsets)
            await writer.executemany(_REWIND, [(*partition, offset) for partition, offset in next_offsets.items()])

    async def _make_days(self, writer: Any, batch: FactBatch) -> None:
        now = self._now()
        moments = [("messages", one.received_at) for one in batch.arrivals]
        moments += [("attempts", one.started_at) for _, one in batch.attempts]
        found = {(table, day_of(moment, now)) for table, moment in moments}
        wanted = {(table, day) for table, day in found if day is not None}
        for table, day in sorted(wanted - self._days):
            with suppress(asyncpg.CheckViolationError):  # the default partition has rows of that day
                async with writer.transaction():
                    await writer.execute("SELECT pg_advisory_xact_lock($1)", _MAKING)
                    await writer.execute(create_partition(table, day))
            self._days.add((table, day))

    async def prune(self, before: float) -> int:
        day = int(before // DAY_S)
        async with self._connection() as writer:
            messages = 0
            for table, column in BY_DAY.items():
                for name, estimate in await writer.fetch(_PARTITIONS, table):
                    its_day = day_of_partition(name)
                    if its_day is not None and its_day < day:
                        rows = await _count(writer, name, estimate)
                        await writer.execute(f"DROP TABLE {name}")
                        self._days.discard((table, its_day))
                        messages += rows if table == "messages" else 0
                rows = await _changed(writer, _old(f"{table}_other", column, day))
                messages += rows if table == "messages" else 0
        for table, column in (("deliveries", "updated_at"), ("counts", "begins_at")):
            while await self._changed(_old(table, column, day)) == PRUNED_AT_ONCE:
                pass  # writes can run in between
        return messages

    async def _changed(self, statement: Select) -> int:
        async with self._connection() as writer:
            return await _changed(writer, statement)

    async def clear(self) -> None:
        async with self._connection() as writer:
            await writer.execute(f"TRUNCATE {', '.join(TABLES)}")

    # reading

    async def next_offsets(self) -> dict[TopicPartition, int]:
        async with self._reader() as reader:
            await _version(reader)
            return await _positions(reader)

    async def size(self) -> Size:
        async with self._reader() as reader:
            rows = []
            for table in TABLES[:3]:
                estimate = await reader.fetchval(_ROWS, table)
                rows.append(await _count(reader, table, estimate))
            return Size(rows[0], rows[1], rows[2], await reader.fetchval(_BYTES, SCHEMA))

    async def _read(self, selects: Sequence[Select]) -> list[list[Row]]:
        async with self._reader() as reader:
            return [await reader.fetch(select.text, *select.values) for select in selects]

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[Any]:
        with _translated():
            async with self._opening:
                if self._pool is None:
                    settings = {"search_path": SCHEMA, "application_name": "relay history pages", "jit": "off"}
                    self._pool = await asyncpg.create_pool(
                        self._url,
                        min_size=0,
                        max_size=READERS,
                        timeout=CONNECT_S,
                        command_timeout=READ_S,
                        server_settings=settings,
                    )
            async with self._pool.acquire(timeout=CONNECT_S) as reader:
                yield reader


async def _closed(connection: Any) -> None:
    try:
        await connection.close(timeout=CLOSE_S)
    except _FAILURES:
        connection.terminate()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        first = _first(error)
        silent = "no answer in time" if isinstance(first, TimeoutError) else type(first).__name__
        said = " ".join(str(first).split()).replace(_CLOSED, "the server has closed the connection")
        advice = "; `relay worker history` creates the tables" if isinstance(first, asyncpg.UndefinedTableError) else ""
        raise HistoryUnavailable(f"PostgreSQL: {said or silent}{advice}") from error


def _first(error: BaseException) -> BaseException:
    """The failure that led to `error`: a transaction cannot be left on a connection that the server has closed."""
    while isinstance(error.__context__, _FAILURES):
        error = error.__context__
    return error


async def _index_numbers(writer: Any) -> None:
    """Build the index while others read and write. It cannot be part of a transaction: what a process that ended left
    of it is dropped."""
    if not await writer.fetchval("SELECT pg_try_advisory_lock($1)", _INDEXING):
        return  # another process builds it
    if not await writer.fetchval(HAS_NUMBERS):
        await writer.execute(DROP_NUMBERS)
        await writer.execute(INDEX_NUMBERS, timeout=MIGRATE_S)
    await writer.execute("SELECT pg_advisory_unlock($1)", _INDEXING)


async def _lock(writer: Any, partitions: Iterable[TopicPartition]) -> None:
    """Lock partitions of the log for this transaction, so that each has one writer that sees all its rows."""
    keys = sorted(_lock_key(partition) for partition in partitions)
    await writer.execute("SELECT pg_advisory_xact_lock(key) FROM unnest($1::bigint[]) key", keys)
    # a crash of the server loses whole transactions with their positions, which are read from the log again
    await writer.execute("SET LOCAL synchronous_commit = off")


def _lock_key(partition: TopicPartition) -> int:
    digest = hashlib.sha256(f"{partition.topic}/{partition.partition}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


async def _version(connection: Any) -> int | None:
    """Version of the tables; None if there are none. Raises HistoryUnavailable if a newer release has created them."""
    if await connection.fetchval("SELECT to_regclass($1)", f"{SCHEMA}.version") is None:
        return None
    version: int = await connection.fetchval(f"SELECT number FROM {SCHEMA}.version")
    check_not_newer(version, VERSION, f"drop its schema {SCHEMA}")
    return version


def _check_encoding(encoding: str) -> None:
    """Raises HistoryUnavailable for a database that cannot store every character: the first one that it lacks would
    stop the history for good."""
    if encoding not in ("UTF8", "SQL_ASCII"):  # the latter stores any bytes
        raise HistoryUnavailable(
            f"PostgreSQL: the database has the encoding {encoding}, which lacks characters that ids may have;"
            " create it with ENCODING 'UTF8'"
        )


async def _positions(connection: Any) -> dict[TopicPartition, int]:
    rows = await connection.fetch("SELECT topic, partition, next_offset FROM positions")
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}


async def _advance(writer: Any, next_offsets: Mapping[TopicPartition, int]) -> None:
    topics, partitions = [at.topic for at in next_offsets], [at.partition for at in next_offsets]
    await writer.execute(_POSITIONS, topics, partitions, list(next_offsets.values()))


async def _fill(writer: Any, rows: NewRows) -> None:
    if rows.attempts:
        await _stage(writer, "attempts", ATTEMPT, rows.attempts)
        await writer.execute(_ATTEMPTS)
    await writer.execute("SELECT pg_advisory_xact_lock($1)", _JOINING)
    if rows.messages:
        await _stage(writer, "messages", MESSAGE_COLUMNS, rows.messages)
        await writer.execute(_MESSAGES)
        await writer.execute(_TIMES)
    if rows.deliveries:
        await _stage(writer, "deliveries", STORED_DELIVERY, rows.deliveries)
        await writer.execute(_DELIVERIES)
        await writer.execute(_ROUTED)
    if rows.counts:
        await _stage(writer, "counts", COUNT, rows.counts)
        await writer.execute(_COUNTS)


async def _stage(writer: Any, table: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
    await writer.copy_records_to_table(f"new_{table}", records=rows, columns=columns.split(", "))


def _old(table: str, column: str, day: int) -> Select:
    """Deletes at most PRUNED_AT_ONCE rows from before `day`."""
    old = f"SELECT ctid FROM {table} WHERE {column} < $1 LIMIT {PRUNED_AT_ONCE}"
    return Select(f"DELETE FROM {table} WHERE ctid = ANY(ARRAY({old}))", (float(day * DAY_S),))


async def _changed(writer: Any, statement: Select) -> int:
    done: str = await writer.execute(statement.text, *statement.values)
    return int(done.split()[-1])


async def _count(connection: Any, table: str, estimate: float | None) -> int:
    if estimate is not None and estimate >= ESTIMATED_FROM:
        return int(estimate)
    found: int = await connection.fetchval(f"SELECT count(*) FROM {table}")
    return found
