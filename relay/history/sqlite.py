"""The history in an SQLite file, for one machine. One thread writes; another reads at the same time on a connection of
its own (WAL)."""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from relay.domain.errors import HistoryUnavailable
from relay.domain.statistics import NUMBERS
from relay.domain.topics import DAY_S
from relay.history.port import FactBatch, Size
from relay.history.rows import MESSAGE_COLUMNS, check_not_newer, new_rows
from relay.history.searching import Row, Searching
from relay.history.select import Dialect, Select
from relay.history.sql import ADD_COUNT, ATTEMPT, COUNT, JOIN_DELIVERY, NUMBER, STORED_DELIVERY, TABLES
from relay.log.port import TopicPartition

T = TypeVar("T")

VERSION: Final = 2
"""Version of the tables. Those of version 1 are migrated; those of a newer version are not touched."""
BUSY_S: Final = 5.0
_DAMAGED_TEXT: Final = "Could not decode to UTF-8"
"""Beginning of an OperationalError that is none of the file or its disk."""
PRUNED_AT_ONCE: Final = 5_000
"""Rows deleted per transaction, so that writes can run in between."""

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS messages (
    source_id TEXT NOT NULL, message_id TEXT NOT NULL, webhook_id TEXT NOT NULL,
    at_topic TEXT NOT NULL, at_partition INTEGER NOT NULL, at_offset INTEGER NOT NULL, received_at REAL NOT NULL,
    event_type TEXT, content_type TEXT, size INTEGER NOT NULL, headers BLOB, body BLOB, routed INTEGER NOT NULL,
    PRIMARY KEY (source_id, message_id)
);
CREATE INDEX IF NOT EXISTS messages_time ON messages (received_at);
CREATE INDEX IF NOT EXISTS messages_source ON messages (source_id, received_at);
CREATE INDEX IF NOT EXISTS messages_type ON messages (event_type, received_at);
CREATE INDEX IF NOT EXISTS messages_new ON messages (received_at) WHERE routed = 0;
CREATE INDEX IF NOT EXISTS messages_id ON messages (message_id);
CREATE INDEX IF NOT EXISTS messages_webhook ON messages (webhook_id);
CREATE TABLE IF NOT EXISTS deliveries (
    source_id TEXT NOT NULL, message_id TEXT NOT NULL, receiver TEXT NOT NULL, generation INTEGER NOT NULL,
    progress INTEGER NOT NULL, attempts INTEGER NOT NULL, said_rank INTEGER NOT NULL, said_number INTEGER NOT NULL,
    said_partition INTEGER NOT NULL, said_offset INTEGER NOT NULL, last_status INTEGER, reason TEXT, detail TEXT,
    updated_at REAL NOT NULL, received_at REAL, life TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (source_id, message_id, receiver)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS deliveries_receiver ON deliveries (receiver, received_at);
CREATE INDEX IF NOT EXISTS deliveries_status ON deliveries (progress, received_at);
CREATE INDEX IF NOT EXISTS deliveries_both ON deliveries (receiver, progress, received_at);
CREATE INDEX IF NOT EXISTS deliveries_reason ON deliveries (reason, received_at) WHERE reason IS NOT NULL;
CREATE INDEX IF NOT EXISTS deliveries_age ON deliveries (updated_at);
CREATE TABLE IF NOT EXISTS attempts (
    at_topic TEXT NOT NULL, at_partition INTEGER NOT NULL, at_offset INTEGER NOT NULL, started_at REAL NOT NULL,
    kind TEXT NOT NULL, receiver TEXT NOT NULL, source_id TEXT NOT NULL, message_id TEXT NOT NULL,
    well INTEGER NOT NULL, value BLOB NOT NULL, life TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (at_partition, at_offset)
);
CREATE INDEX IF NOT EXISTS attempts_time ON attempts (started_at);
CREATE INDEX IF NOT EXISTS attempts_message ON attempts (source_id, message_id);
CREATE INDEX IF NOT EXISTS attempts_receiver ON attempts (receiver, started_at);
CREATE INDEX IF NOT EXISTS attempts_bad ON attempts (receiver, started_at) WHERE well = 0;
CREATE TABLE IF NOT EXISTS counts (
    span INTEGER NOT NULL, begins_at INTEGER NOT NULL, receiver TEXT NOT NULL, source_id TEXT NOT NULL,
    life TEXT NOT NULL DEFAULT '', {", ".join(f"{name} INTEGER NOT NULL" for name in NUMBER)},
    PRIMARY KEY (span, begins_at, receiver, source_id, life)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
"""
_FROM_1: Final = (
    "ALTER TABLE deliveries ADD COLUMN life TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE attempts ADD COLUMN life TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE counts RENAME TO counts_1",
)
_COUNTS_FROM_1: Final = (
    f"INSERT INTO counts ({COUNT.replace('life, ', '')}) SELECT {COUNT.replace('life, ', '')} FROM counts_1",
    "DROP TABLE counts_1",
)


_NUMBER: Final = "ALTER TABLE deliveries ADD COLUMN number INTEGER"
"""Added without a new version, as older releases go on with this table, too."""
_NUMBERS: Final = "CREATE INDEX IF NOT EXISTS deliveries_number ON deliveries (receiver, number) WHERE number > 0"


def _values(count: int) -> str:
    return f"VALUES ({', '.join('?' * count)})"


_MESSAGE: Final = (
    f"INSERT INTO messages ({MESSAGE_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,"
    " max(?13, EXISTS (SELECT 1 FROM deliveries WHERE source_id = ?1 AND message_id = ?2)))"
    " ON CONFLICT DO UPDATE SET at_topic = excluded.at_topic, at_partition = excluded.at_partition,"
    " at_offset = excluded.at_offset, received_at = excluded.received_at, event_type = excluded.event_type,"
    " content_type = excluded.content_type, size = excluded.size, headers = excluded.headers, body = excluded.body"
    " WHERE (excluded.received_at, excluded.at_partition, excluded.at_offset)"
    " < (messages.received_at, messages.at_partition, messages.at_offset)"
)
_TIME: Final = (
    "UPDATE deliveries SET received_at = (SELECT received_at FROM messages WHERE source_id = ?1 AND message_id = ?2)"
    " WHERE source_id = ?1 AND message_id = ?2 AND received_at IS NOT ?3"
)
_DELIVERY: Final = (
    f"INSERT INTO deliveries ({STORED_DELIVERY}, received_at) VALUES ({', '.join(f'?{n}' for n in range(1, 17))},"
    f" (SELECT received_at FROM messages WHERE source_id = ?1 AND message_id = ?2)) {JOIN_DELIVERY}"
)
_ROUTED: Final = "UPDATE messages SET routed = 1 WHERE source_id = ? AND message_id = ? AND routed = 0"
_ATTEMPT: Final = f"INSERT OR REPLACE INTO attempts ({ATTEMPT}) {_values(11)}"
_COUNT: Final = f"INSERT INTO counts ({COUNT}) {_values(5 + NUMBERS)} {ADD_COUNT}"
_POSITION: Final = (
    "INSERT INTO positions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET"
    " next_offset = max(next_offset, excluded.next_offset)"
)
_REWIND: Final = "UPDATE positions SET next_offset = ? WHERE topic = ? AND partition = ?"
_OLD: Final = {
    "attempts": "started_at",
    "counts": "begins_at",
    "deliveries": "updated_at",
    "messages": "received_at",
}
_KEYS: Final = {
    "deliveries": "source_id, message_id, receiver",
    "counts": "span, begins_at, receiver, source_id, life",
}

DIALECT: Final = Dialect("?", "", lambda column, mark: f"instr({column}, {mark}) > 0")


class SqliteHistory(Searching):
    """`path`: the file, whose directory must exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(DIALECT, self._read, self._changed)
        self._path = path
        self._writing = _Thread(path, "history writer", "BEGIN IMMEDIATE")
        self._reading = _Thread(path, "history reader", "BEGIN")

    async def start(self) -> None:
        await self._writing.run(_prepare)

    async def close(self) -> None:
        for thread in (self._writing, self._reading):
            await thread.close()

    async def next_offsets(self) -> dict[TopicPartition, int]:
        return await self._reading.run(_known_offsets)

    async def size(self) -> Size:
        return await self._reading.run(_size)

    async def write(
        self, batch: FactBatch, next_offsets: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
    ) -> None:
        await self._writing.run(lambda database: _write(database, batch, next_offsets, first))

    async def skip(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        await self._writing.run(lambda database: _skip(database, next_offsets))

    async def rewind(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        rows = [(offset, *partition) for partition, offset in next_offsets.items()]
        await self._writing.run(lambda database: database.executemany(_REWIND, rows))

    async def prune(self, before: float) -> int:
        day, messages = before // DAY_S * DAY_S, 0
        for table, column in _OLD.items():
            key = _KEYS.get(table, "rowid")
            old = f"SELECT {key} FROM {table} WHERE {column} < ? LIMIT {PRUNED_AT_ONCE}"
            while deleted := await self._changed(Select(f"DELETE FROM {table} WHERE ({key}) IN ({old})", (day,))):
                messages += deleted if table == "messages" else 0
        return messages

    async def clear(self) -> None:
        await self._writing.run(_clear)

    async def _changed(self, statement: Select) -> int:
        return await self._writing.run(lambda database: database.execute(statement.text, statement.values).rowcount)

    async def _read(self, selects: Sequence[Select]) -> list[list[Row]]:
        return await self._reading.run(lambda database: _fetch(database, selects))


class _Thread:
    """A connection, and the only thread that uses it. `begin`: begins a transaction.

    A file that was removed or replaced is opened again: SQLite would go on with the one that has no name any more. The
    new file must not be read with the log of the former one, which has the name that its own would have."""

    def __init__(self, path: Path, name: str, begin: str) -> None:
        self._path = path
        self._begin = begin
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._database: sqlite3.Connection | None = None
        self._file: _File | None = None
        self._log: _File | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `work` in the thread, in a transaction. Raises HistoryUnavailable for errors of the file or its
        disk."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._work, work)

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._database is None or self._file != _file_at(self._path):
                with _locked(_beside(self._path, "-lock")):
                    self._close()
                    self._database = self._opened()
            with self._database:
                self._database.execute(self._begin)
                self._log = self._log or _file_at(_beside(self._path, "-wal"))
                return work(self._database)
        except (sqlite3.DatabaseError, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: in a table's name
            if isinstance(error, sqlite3.OperationalError | OSError) and not str(error).startswith(_DAMAGED_TEXT):
                raise HistoryUnavailable(f"the history in {self._path}: {error}") from error
            raise HistoryUnavailable(
                f"the history in {self._path} is damaged or not a database ({error});"
                " remove the file to have it rebuilt"
            ) from error

    def _opened(self) -> sqlite3.Connection:
        with suppress(OSError):  # the last line reports the error better
            self._path.touch(mode=0o600, exist_ok=True)  # bodies are confidential
        self._file = _file_at(self._path)  # of before: a replacement meanwhile is then noticed
        return _connect(self._path)

    async def close(self) -> None:
        """Close after the work in progress, which is bounded."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close_last)
        self._executor.shutdown()

    def _close_last(self) -> None:
        with _locked(_beside(self._path, "-lock")):
            self._close()

    def _close(self) -> None:
        """SQLite removes the log by its name, so one that is not of the file that was open is put aside meanwhile."""
        if self._database is None:
            return
        log = _beside(self._path, "-wal")
        is_ours = _file_at(log) == self._log
        paths = [log, _beside(self._path, "-shm")] if self._file != _file_at(self._path) else []
        aside = [(path.replace(_beside(path, ".aside")), path) for path in paths if path.exists()]
        self._database.close()
        for there, path in aside:
            there.unlink() if is_ours else there.replace(path)
        self._database = self._log = None


_File = tuple[int, int]
"""(device, inode)"""


def _file_at(path: Path) -> _File | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all threads and processes that open or close a history with this file of locks. The lock on the
    directory is that of the relay whose private directory it is."""
    with ExitStack() as stack:
        with suppress(OSError):  # there is no such directory, or its file system has no locks
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        # NORMAL: a power cut may lose the last transactions, each as a whole, which are read from the log again
        database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -32000;")
        # The pages of indexes change in nearly each transaction: with the default, 1,000, they are copied too often.
        database.execute("PRAGMA wal_autocheckpoint = 4000")  # pages, 16 MB
    except BaseException:
        database.close()
        raise
    return database


def _version(database: sqlite3.Connection) -> int:
    """Version of the tables; 0 if there are none. Raises HistoryUnavailable if a newer release has created them."""
    [version] = database.execute("PRAGMA user_version").fetchone()
    check_not_newer(version, VERSION, "remove its file")
    return int(version)


def _known_offsets(database: sqlite3.Connection) -> dict[TopicPartition, int]:
    _version(database)
    return _next_offsets(database)


def _prepare(database: sqlite3.Connection) -> None:
    version = _version(database)
    before, after = (_FROM_1, _COUNTS_FROM_1) if version == 1 else ((), ())
    for statement in (*before, *_SCHEMA.split(";"), *after):
        database.execute(statement)
    if not any(column[1] == "number" for column in database.execute("PRAGMA table_info(deliveries)")):
        database.execute(_NUMBER)
    database.execute(_NUMBERS)
    database.execute(f"PRAGMA user_version = {VERSION}")


def _write(
    database: sqlite3.Connection,
    batch: FactBatch,
    next_offsets: Mapping[TopicPartition, int],
    first: Mapping[TopicPartition, int],
) -> None:
    rows = new_rows(batch, _next_offsets(database), first)
    database.executemany(_MESSAGE, rows.messages)
    database.executemany(_TIME, rows.times)
    database.executemany(_DELIVERY, rows.deliveries)
    database.executemany(_ROUTED, {row[:2] for row in rows.deliveries})
    database.executemany(_ATTEMPT, rows.attempts)
    database.executemany(_COUNT, rows.counts)
    _skip(database, next_offsets)


def _skip(database: sqlite3.Connection, next_offsets: Mapping[TopicPartition, int]) -> None:
    database.executemany(_POSITION, ((*partition, offset) for partition, offset in next_offsets.items()))


def _clear(database: sqlite3.Connection) -> None:
    for table in TABLES:
        database.execute(f"DELETE FROM {table}")


def _fetch(database: sqlite3.Connection, selects: Sequence[Select]) -> list[list[Any]]:
    return [database.execute(select.text, select.values).fetchall() for select in selects]


def _next_offsets(database: sqlite3.Connection) -> dict[TopicPartition, int]:
    rows = database.execute("SELECT topic, partition, next_offset FROM positions")
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}


def _size(database: sqlite3.Connection) -> Size:
    rows = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES[:3]]
    [pages] = database.execute("PRAGMA page_count").fetchone()
    [page] = database.execute("PRAGMA page_size").fetchone()
    return Size(rows[0], rows[1], rows[2], pages * page)
