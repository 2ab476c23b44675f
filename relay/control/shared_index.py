"""Index of the records of receivers in the shared lane, which may be millions, in a temporary SQLite file,
and a fast partial decoding of these records, in a microsecond, without validation or secrets.

The file is private to the process: it is built from the topic at each start and deleted with the process, so it can
never be outdated. Reading one record takes microseconds.
"""

import asyncio
import sqlite3
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from relay.domain.errors import LogUnavailable
from relay.domain.json_pointer import NOT_JSON
from relay.domain.own_events import is_feed, subscribed
from relay.domain.receiver import NO_LIFE, Endpoint, Life, Receiver, RetryPolicy
from relay.domain.topics import SHARED

_DEADLINE_S: Final = Receiver("", Endpoint("")).answer_deadline


class _Retry(msgspec.Struct, frozen=True, gc=False):
    max_age: float = RetryPolicy().max_age


class _EntryFields(msgspec.Struct, frozen=True, gc=False):
    post_endpoint: str = ""
    verification: str = "none"
    lane: str = "dedicated"
    sources: tuple[str, ...] = ()
    event_types: tuple[str, ...] = ()
    enabled: bool = True
    owner: str | None = None
    answer_deadline: float | None = None
    retry: _Retry | None = None


def _wait_s(entry: _EntryFields) -> float:
    max_age = (_Retry() if entry.retry is None else entry.retry).max_age
    return max_age + (_DEADLINE_S if entry.answer_deadline is None else entry.answer_deadline)


class RecordHeader(msgspec.Struct, frozen=True, gc=False):
    """The parts of a receiver's record that an index needs."""

    declared_by: str
    entry: _EntryFields
    life: Life = NO_LIFE

    @property
    def is_shared(self) -> bool:
        """Whether its entry has the shared lane; a route may override it."""
        return self.entry.lane == SHARED

    @property
    def wait_s(self) -> float:
        """Maximum lifetime of its messages, in seconds: `max_age` of its retries plus the `answer_deadline`."""
        entry = self.entry
        return DEFAULT_WAIT_S if entry.retry is None and entry.answer_deadline is None else _wait_s(entry)


NOTHING: Final = RecordHeader("", _EntryFields(enabled=False))
"""Stands for an unreadable record."""
DEFAULT_WAIT_S: Final = _wait_s(_EntryFields())
_decode: Final = msgspec.json.Decoder(RecordHeader).decode


def record_header(value: bytes) -> RecordHeader | None:
    """The header of a record; None if it is invalid, for which only a full validation gives the reason."""
    try:
        return _decode(value)
    except NOT_JSON:
        return None


def lacks(value: bytes, known: Container[bytes]) -> bool:
    """Whether a record refers to a variable, or has a secret with a key (`enc:<id>`), that is not `known`. Expressions
    (`${{ ... }}`) have neither."""
    at = value.find(b"${")
    while at >= 0:
        is_expression = value.startswith(b"${{", at)
        end = value.find(b"}}" if is_expression else b"}", at)
        name = value[at + 2 : end]
        if not is_expression and name not in known and not (name.startswith(b"enc:") and name[:12] in known):
            return True
        at = value.find(b"${", end)
    return False


AT_ONCE: Final = 200
"""Records that are processed before other tasks may run: a few ms."""
_FEW: Final = 10_000
"""Records that can be sealed within a few ms; more are sealed in a thread."""
_PAGE: Final = 1_000
_CACHE_KB: Final = 16_384
"""Cache in this process's memory; beyond that, the system's page cache keeps it fast."""

_SCHEMA: Final = f"""
PRAGMA page_size = 8192;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -{_CACHE_KB};
CREATE TABLE entries (
    offset INTEGER PRIMARY KEY, name TEXT, value BLOB, refused INTEGER, by TEXT, owner TEXT, wait_s REAL, former BLOB
);
CREATE INDEX by_refusal ON entries (name) WHERE refused;
CREATE INDEX by_wait ON entries (wait_s DESC) WHERE wait_s IS NOT NULL;
CREATE TABLE subscriptions (pattern INTEGER, offset INTEGER);
CREATE TABLE gone (offset INTEGER PRIMARY KEY);
"""

# One sorted pass each: a million inserts in random order would take as many lookups. The newest record of each name
# counts: a topic has older ones until it is compacted, and tombstones for a while.
_SEAL: Final = """
CREATE INDEX by_name ON entries (name);
DELETE FROM entries WHERE offset IN (
    SELECT entries.offset
    FROM (SELECT name, max(offset) AS newest FROM entries GROUP BY name HAVING count(*) > 1) JOIN entries USING (name)
    WHERE entries.offset < newest
);
DELETE FROM entries WHERE offset IN (SELECT offset FROM gone);
DROP TABLE gone;
CREATE INDEX by_pattern ON subscriptions (pattern, offset);
CREATE INDEX by_owner ON entries (owner, name) WHERE owner IS NOT NULL;
"""

# Rows bind no None, bool or bytes if possible: the library searches an adapter for each, which takes longer than the
# row. Several rows share a statement for the same reason.
_ADD: Final = "INSERT OR REPLACE INTO entries (offset, name, value, refused, by, owner, wait_s, former) VALUES "
_AS_LOADED: Final = f"(?, ?, ?, ?, ?, nullif(?, ''), nullif(?, {DEFAULT_WAIT_S!r}), NULL)"
_AS_PUT: Final = f"(?, ?, ?, ?, ?, nullif(?, ''), nullif(?, {DEFAULT_WAIT_S!r}), ?)"
_AS_GONE: Final = "(?, ?, NULL, 0, NULL, NULL, NULL, NULL)"
_SUBSCRIBE: Final = "INSERT INTO subscriptions VALUES "
_TOGETHER: Final = 100
"""Rows per statement."""
LISTS_KEPT: Final = 32
"""Lists of event types that have a number of their own."""
_GET: Final = "SELECT offset, name, value, former, refused FROM entries WHERE name = ?"
_MATCH: Final = "SELECT DISTINCT name FROM subscriptions JOIN entries USING (offset) WHERE pattern IN ({}) LIMIT ?"


class IndexBroken(LogUnavailable):
    """The disk is full or fails: the index has to be rebuilt."""


class TemporaryDatabase:
    """A database in a temporary file, closed at the latest when it is collected. Only one thread at a time may use it.
    Its one transaction is never committed: no other process reads it, and after an error it is rebuilt.

    Every method may raise IndexBroken.
    """

    def __init__(self, schema: str) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self.define = self._db.create_function
        self.close = weakref.finalize(self, self._db.close)
        for statement in f"{schema}; BEGIN".split(";"):
            self.run(statement)

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of its result."""
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise IndexBroken(f"the index of receivers in the temporary directory failed: {error}") from error


class IndexedRecord(NamedTuple):
    """A receiver's newest record. `former`: the previous one, in effect if this one is `refused`."""

    offset: int
    name: str
    value: bytes
    former: bytes | None
    refused: bool


Loaded = tuple[int, str, bytes, bool, RecordHeader]
"""(offset, name, record, whether it is refused, its header)"""


class SharedIndex:
    """First `load` all records and `seal` the index; then it can be queried and changed.

    Every method may raise IndexBroken.
    """

    def __init__(self) -> None:
        self._db = TemporaryDatabase(_SCHEMA)
        self._lists: dict[tuple[str, ...], list[int]] = {}
        self._source_lengths: set[int] = set()
        self._type_lengths: set[int] = set()

    def close(self) -> None:
        self._db.close()

    # built from the topic

    def load(self, rows: Sequence[Loaded], gone: Sequence[tuple[int, str]]) -> None:
        """Add records in any order; `gone`: offset and name of tombstones, and of records of other lanes."""
        values: list[Any] = []
        for offset, name, value, refused, seen in rows:
            entry = seen.entry
            values += (offset, name, bytearray(value), int(refused), seen.declared_by, entry.owner or "", seen.wait_s)
        self._add(_ADD, _AS_LOADED, values)
        self._add(_ADD, _AS_GONE, [*chain.from_iterable(gone)])
        self._add("INSERT OR REPLACE INTO gone VALUES ", "(?)", [offset for offset, _ in gone])
        self._subscribe((row[0], row[4]) for row in rows)

    def seal(self) -> None:
        """Complete the index. Takes seconds for millions of records, mostly without blocking other threads."""
        for statement in _SEAL.split(";"):
            self._db.run(statement)

    # updated from the topic

    def put(self, row: IndexedRecord, seen: RecordHeader) -> None:
        """Replace the receiver's row. `seen`: the header of its newest record."""
        self.drop(row.name)
        header = (seen.declared_by, seen.entry.owner or "", seen.wait_s)
        self._add(_ADD, _AS_PUT, [row.offset, row.name, row.value, row.refused, *header, row.former])
        former = None if row.former is None else record_header(row.former)
        self._subscribe((row.offset, each) for each in (seen, former) if each is not None)

    def drop(self, name: str) -> IndexedRecord | None:
        """Remove a receiver; returns its row."""
        row = self.get(name)
        if row is not None:
            self._db.run("DELETE FROM entries WHERE offset = ?", (row.offset,))
            for pattern in chain.from_iterable(map(self._patterns, _headers(row))):
                self._db.run("DELETE FROM subscriptions WHERE pattern = ? AND offset = ?", (pattern, row.offset))
        return row

    def refuse(self, name: str) -> None:
        self._db.run("UPDATE entries SET refused = 1 WHERE name = ?", (name,))

    def forgive(self, still: Callable[[bytes], bool]) -> None:
        """Clear the refusal of all records for which `still` returns False."""
        self._db.define("still", 1, still)
        self._db.run("UPDATE entries SET refused = 0 WHERE refused AND NOT still(value)")

    # queries

    def get(self, name: str) -> IndexedRecord | None:
        found = self._db.run(_GET, (name,))
        return IndexedRecord(*found[0]) if found else None

    def matching(self, source: str, event_type: str, most: int) -> set[str]:
        """Names of receivers whose patterns match (in either record of the row), at most `most`; rarely also one that
        does not match. Costs one lookup per length of source patterns in use, for each matching type pattern, and each
        list that has one."""
        patterns = set(_candidates(event_type, self._type_lengths))
        types = [crc32(each.encode()) for each in patterns]
        types += [number for known, [number] in self._lists.items() if not patterns.isdisjoint(known)]
        query = _MATCH.format(",".join("?" * len(types)))
        found: set[str] = set()
        for candidate in [source] if is_feed(source) else _candidates(source, self._source_lengths):
            above = crc32(candidate.encode()) << 31
            wanted = [above ^ each for each in types]
            found.update(name for (name,) in self._db.run(query, (*wanted, most)))
            if len(found) >= most:
                break
        return found

    def names(self, after: str, most: int, owner: str | None = None) -> list[str]:
        """Names in order, the first `most` after `after`; only those of `owner`, if it is given."""
        whose, of = ("", ()) if owner is None else ("owner = ? AND", (owner,))
        query = f"SELECT name FROM entries WHERE {whose} name > ? ORDER BY name LIMIT ?"  # noqa: S608  no external text
        return [name for (name,) in self._db.run(query, (*of, after, most))]

    def all_names(self) -> Iterator[str]:
        """All names in order, read page by page."""
        last = ""
        while page := self.names(last, _PAGE):
            yield from page
            last = page[-1]

    def declared_by(self, who: str) -> list[str]:
        """Names of receivers with this origin; reads the whole file."""
        return [name for (name,) in self._db.run("SELECT name FROM entries WHERE by = ?", (who,))]

    def unusable(self, most: int) -> list[str]:
        """Names of refused receivers without a former record in effect."""
        query = "SELECT name FROM entries WHERE refused AND former IS NULL LIMIT ?"
        return [name for (name,) in self._db.run(query, (most,))]

    def longest_waits(self, most: int) -> dict[str, float]:
        """Maximum lifetime of a receiver's messages in seconds, by name, longest first. One name stands for all
        receivers with default settings."""
        usual = "SELECT name, ? FROM entries WHERE wait_s IS NULL LIMIT 1"
        query = "SELECT name, wait_s FROM entries WHERE wait_s IS NOT NULL ORDER BY wait_s DESC, offset LIMIT ?"
        found = self._db.run(query, (most,)) + self._db.run(usual, (DEFAULT_WAIT_S,))
        return dict(sorted(found, key=lambda each: -each[1])[:most])

    def __len__(self) -> int:
        return int(self._db.run("SELECT count(*) FROM entries")[0][0])

    @property
    def refused(self) -> int:
        """Number of refused receivers."""
        return int(self._db.run("SELECT count(*) FROM entries WHERE refused")[0][0])

    def _add(self, into: str, one: str, values: Sequence[Any]) -> None:
        """Insert rows. `into`: the beginning of the statement; `one`: its part for one row; `values`: of all rows."""
        width = one.count("?")
        for at in range(0, len(values), width * _TOGETHER):
            some = values[at : at + width * _TOGETHER]
            self._db.run(into + ",".join([one] * (len(some) // width)), some)

    def _subscribe(self, entries: Iterable[tuple[int, RecordHeader]]) -> None:
        """Insert the subscriptions of `entries`, given with their offsets."""
        values: list[int] = []
        for offset, seen in entries:
            for source in seen.entry.sources:
                if source[-1:] == "*":
                    self._source_lengths.add(len(source) - 1)
            for pattern in self._patterns(seen):
                values += (pattern, offset)
        self._add(_SUBSCRIBE, "(?, ?)", values)

    def _patterns(self, seen: RecordHeader) -> list[int]:
        """A number for each pair of source and event type, or list of types, of its subscription. Collisions are rare
        but possible."""
        entry = seen.entry
        if not entry.sources or not entry.enabled:
            return []
        types = self._lists.get(entry.event_types) or self._numbers(entry.event_types)
        sources = subscribed(entry.sources, entry.owner)
        return [crc32(source.encode()) << 31 ^ each for source in sources for each in types]

    def _numbers(self, event_types: tuple[str, ...]) -> list[int]:
        """Numbers of a list of event types. Almost all receivers have one of a few lists, so each of the first lists
        has one number, and any other list those of its types. The mapping never changes, so that rows can be
        deleted."""
        self._type_lengths.update(len(each) - 1 for each in event_types if each[-1:] == "*")
        if len(self._lists) < LISTS_KEPT:
            self._lists[event_types] = [crc32("\n".join(event_types).encode())]
            return self._lists[event_types]
        return [crc32(each.encode()) for each in event_types]


class Loading:
    """An index under construction, with its unwritten rows."""

    def __init__(self) -> None:
        self.rows: list[Loaded] = []
        self.gone: list[tuple[int, str]] = []
        self._index = SharedIndex()
        self._written = 0

    @property
    def is_due(self) -> bool:
        """Whether there are enough rows for a write."""
        return len(self.rows) + len(self.gone) >= AT_ONCE

    async def write(self) -> None:
        """Write the rows so far, then let other tasks run."""
        self._write()
        await asyncio.sleep(0)

    async def sealed(self) -> SharedIndex:
        """The completed index."""
        self._write()
        if self._written > _FEW:
            await asyncio.to_thread(self._index.seal)
        else:
            self._index.seal()
        return self._index

    def _write(self) -> None:
        self._index.load(self.rows, self.gone)
        self._written += len(self.rows)
        self.rows.clear()
        self.gone.clear()


def _headers(row: IndexedRecord) -> list[RecordHeader]:
    """The headers of a row's records."""
    return [
        seen for value in (row.value, row.former) if value is not None and (seen := record_header(value)) is not None
    ]


def _candidates(text: str, lengths: Iterable[int]) -> list[str]:
    """All patterns with these lengths that match `text`."""
    return [text, *(f"{text[:length]}*" for length in lengths if length <= len(text))]
