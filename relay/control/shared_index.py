"""Records of receivers in the shared lane, by name: millions of them, so they lie in a file of this process alone.

The file is SQLite's, temporary and private: it is made from the topic at each start, and is gone with the process, so
there is never an old one to be believed. Reading one record takes microseconds.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, NamedTuple
from zlib import crc32

from relay.control.record_header import DEFAULT_WAIT_S, RecordHeader, glance
from relay.domain.errors import LogUnavailable
from relay.domain.own_events import is_feed, subscribed

AT_ONCE: Final = 200
"""Records that are taken before other tasks get a turn: a few ms."""
_FEW: Final = 10_000
"""Records whose index is made in a few ms; a thread is for more."""
_PAGE: Final = 1_000
_CACHE_KB: Final = 16_384
"""Of the file in this process's memory; beyond that it is the system's page cache that makes it fast."""

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

# One sorted pass each: a million inserts in random order would take as many look-ups. Of each name the newest record
# counts: a topic holds older ones until it is compacted, and tombstones for a while.
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

# What is usual binds neither None nor a bool or bytes: the library looks for an adapter of each, which takes longer
# than the row does. Nor is each row a statement of its own.
_ADD: Final = "INSERT OR REPLACE INTO entries (offset, name, value, refused, by, owner, wait_s, former) VALUES "
_AS_LOADED: Final = f"(?, ?, ?, ?, ?, nullif(?, ''), nullif(?, {DEFAULT_WAIT_S!r}), NULL)"
_AS_PUT: Final = f"(?, ?, ?, ?, ?, nullif(?, ''), nullif(?, {DEFAULT_WAIT_S!r}), ?)"
_AS_GONE: Final = "(?, ?, NULL, 0, NULL, NULL, NULL, NULL)"
_SUBSCRIBE: Final = "INSERT INTO subscriptions VALUES "
_TOGETHER: Final = 100
"""Rows of one statement."""
LISTS_KEPT: Final = 32
"""Lists of event types that have a number each."""
_GET: Final = "SELECT offset, name, value, former, refused FROM entries WHERE name = ?"
_MATCH: Final = "SELECT DISTINCT name FROM subscriptions JOIN entries USING (offset) WHERE pattern IN ({}) LIMIT ?"


class IndexBroken(LogUnavailable):
    """The disk is full or fails: the index has to be made anew."""


class IndexedRecord(NamedTuple):
    """A receiver's newest record. `former`: the one before it, in force where this one is `refused`."""

    offset: int
    name: str
    value: bytes
    former: bytes | None
    refused: bool


Loaded = tuple[int, str, bytes, bool, RecordHeader]
"""Offset, name, record, whether it is refused, and what it says."""


class SharedIndex:
    """First `load` all there is and `seal` it; then it can be asked, and changed.

    Every method may raise IndexBroken.
    """

    def __init__(self) -> None:
        with index_errors():
            # One thread at a time has it: the loop's, or the one of `seal`.
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._db.executescript(_SCHEMA)
            self._db.execute("BEGIN")  # and never committed: nobody else reads it, and what fails is made anew
        self._lists: dict[tuple[str, ...], list[int]] = {}
        self._source_lengths: set[int] = set()
        self._type_lengths: set[int] = set()

    def close(self) -> None:
        self._db.close()

    # made from the topic

    def load(self, rows: Sequence[Loaded], gone: Sequence[tuple[int, str]]) -> None:
        """Add records in any order; `gone`: offset and name of those that say that there is no such receiver."""
        told: list[Any] = []
        for offset, name, value, refused, seen in rows:
            entry = seen.entry
            told += (offset, name, bytearray(value), int(refused), seen.declared_by, entry.owner or "", seen.wait_s)
        with index_errors():
            self._add(_ADD, _AS_LOADED, told)
            self._add(_ADD, _AS_GONE, [*chain.from_iterable(gone)])
            self._db.executemany("INSERT OR REPLACE INTO gone VALUES (?)", [(offset,) for offset, _ in gone])
            self._subscribe((row[0], row[4]) for row in rows)

    def seal(self) -> None:
        """All is loaded. Takes seconds for millions, almost all of it without holding up other threads."""
        with index_errors():
            for statement in _SEAL.split(";"):
                self._db.execute(statement)

    # as the topic goes on

    def put(self, row: IndexedRecord, seen: RecordHeader) -> None:
        """In place of the receiver's row. `seen`: what its newest record says."""
        with index_errors():
            self.drop(row.name)
            told = (seen.declared_by, seen.entry.owner or "", seen.wait_s)
            self._add(_ADD, _AS_PUT, [row.offset, row.name, row.value, row.refused, *told, row.former])
            former = None if row.former is None else glance(row.former)
            self._subscribe((row.offset, each) for each in (seen, former) if each is not None)

    def drop(self, name: str) -> IndexedRecord | None:
        """The row that it had."""
        row = self.get(name)
        if row is not None:
            with index_errors():
                self._db.execute("DELETE FROM entries WHERE offset = ?", (row.offset,))
                old = [(pattern, row.offset) for each in _told(row) for pattern in self._patterns(each)]
                self._db.executemany("DELETE FROM subscriptions WHERE pattern = ? AND offset = ?", old)
        return row

    def refuse(self, name: str) -> None:
        with index_errors():
            self._db.execute("UPDATE entries SET refused = 1 WHERE name = ?", (name,))

    def forgive(self, still: Callable[[bytes], bool]) -> None:
        """Take no record for refused any more but those of which `still` says so."""
        with index_errors():
            self._db.create_function("still", 1, still)
            self._db.execute("UPDATE entries SET refused = 0 WHERE refused AND NOT still(value)")

    # asked

    def get(self, name: str) -> IndexedRecord | None:
        with index_errors():
            found = self._db.execute(_GET, (name,)).fetchone()
        return None if found is None else IndexedRecord(*found)

    def matching(self, source: str, event_type: str, most: int) -> set[str]:
        """Names of those whose patterns match (of any record that the row holds), at most `most`: then there may be
        more. Now and then one that does not. Costs a look-up for each length of sources' patterns in use, with each of
        types' patterns, and with each list that one of them is in."""
        patterns = set(_candidates(event_type, self._type_lengths))
        types = [crc32(each.encode()) for each in patterns]
        types += [number for known, [number] in self._lists.items() if not patterns.isdisjoint(known)]
        query = _MATCH.format(",".join("?" * len(types)))
        found: set[str] = set()
        with index_errors():
            for candidate in [source] if is_feed(source) else _candidates(source, self._source_lengths):
                above = crc32(candidate.encode()) << 31
                wanted = [above ^ each for each in types]
                found.update(name for (name,) in self._db.execute(query, (*wanted, most)))
                if len(found) >= most:
                    break
        return found

    def names(self, after: str, most: int, owner: str | None = None) -> list[str]:
        """In their order, those behind `after`; of one `owner` only, if that is given."""
        whose, of = ("", ()) if owner is None else ("owner = ? AND", (owner,))
        query = f"SELECT name FROM entries WHERE {whose} name > ? ORDER BY name LIMIT ?"  # noqa: S608  no text of others
        with index_errors():
            return [name for (name,) in self._db.execute(query, (*of, after, most))]

    def all_names(self) -> Iterator[str]:
        """In their order; they are read page by page."""
        last = ""
        while page := self.names(last, _PAGE):
            yield from page
            last = page[-1]

    def declared_by(self, who: str) -> list[str]:
        """Names; reads the whole file."""
        with index_errors():
            return [name for (name,) in self._db.execute("SELECT name FROM entries WHERE by = ?", (who,))]

    def unusable(self, most: int) -> list[str]:
        """Names of those that are refused, and have no former record in force."""
        with index_errors():
            found = self._db.execute("SELECT name FROM entries WHERE refused AND former IS NULL LIMIT ?", (most,))
            return [name for (name,) in found]

    def longest_waits(self, most: int) -> dict[str, float]:
        """By name, the longest first: how long one of its messages may be worked on, in seconds. One stands for all
        whose settings are the usual."""
        usual = "SELECT name, ? FROM entries WHERE wait_s IS NULL LIMIT 1"
        query = "SELECT name, wait_s FROM entries WHERE wait_s IS NOT NULL ORDER BY wait_s DESC, offset LIMIT ?"
        with index_errors():
            found = [*self._db.execute(query, (most,)), *self._db.execute(usual, (DEFAULT_WAIT_S,))]
        return dict(sorted(found, key=lambda each: -each[1])[:most])

    def __len__(self) -> int:
        return self._count("SELECT count(*) FROM entries")

    @property
    def refused(self) -> int:
        """How many are refused."""
        return self._count("SELECT count(*) FROM entries WHERE refused")

    def _count(self, query: str) -> int:
        with index_errors():
            return int(self._db.execute(query).fetchone()[0])

    def _add(self, into: str, one: str, told: Sequence[Any]) -> None:
        """`one`: how the statement that begins with `into` goes on for one row. `told`: what all rows bind."""
        width = one.count("?")
        for at in range(0, len(told), width * _TOGETHER):
            some = told[at : at + width * _TOGETHER]
            self._db.execute(into + ",".join([one] * (len(some) // width)), some)

    def _subscribe(self, entries: Iterable[tuple[int, RecordHeader]]) -> None:
        """`entries`: with their offsets."""
        told: list[int] = []
        for offset, seen in entries:
            for source in seen.entry.sources:
                if source[-1:] == "*":
                    self._source_lengths.add(len(source) - 1)
            for pattern in self._patterns(seen):
                told += (pattern, offset)
        self._add(_SUBSCRIBE, "(?, ?)", told)

    def _patterns(self, seen: RecordHeader) -> list[int]:
        """A number for each source, and list or type of events, that it subscribes to; others may have the same, if
        rarely."""
        entry = seen.entry
        if not entry.sources or not entry.enabled:
            return []
        types = self._lists.get(entry.event_types) or self._numbers(entry.event_types)
        sources = subscribed(entry.sources, entry.owner)
        return [crc32(source.encode()) << 31 ^ each for source in sources for each in types]

    def _numbers(self, event_types: tuple[str, ...]) -> list[int]:
        """Almost all want one of the same few lists of types: each of the first that come has one number, any other
        list those of its types. That never changes, so what was told can be taken back."""
        self._type_lengths.update(len(each) - 1 for each in event_types if each[-1:] == "*")
        if len(self._lists) < LISTS_KEPT:
            self._lists[event_types] = [crc32("\n".join(event_types).encode())]
            return self._lists[event_types]
        return [crc32(each.encode()) for each in event_types]


class Loading:
    """An index that is being made: what is still to be written of it."""

    def __init__(self) -> None:
        self.rows: list[Loaded] = []
        self.gone: list[tuple[int, str]] = []
        self._index = SharedIndex()
        self._written = 0

    @property
    def is_due(self) -> bool:
        """Whether enough has come to be written."""
        return len(self.rows) + len(self.gone) >= AT_ONCE

    async def write(self) -> None:
        """What has come by now; then other tasks get a turn."""
        self._write()
        await asyncio.sleep(0)

    async def sealed(self) -> SharedIndex:
        """All has come."""
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


def _told(row: IndexedRecord) -> list[RecordHeader]:
    """What the records of a row say."""
    return [seen for value in (row.value, row.former) if value is not None and (seen := glance(value)) is not None]


def _candidates(text: str, lengths: Iterable[int]) -> list[str]:
    """All patterns that match, of those lengths."""
    return [text, *(f"{text[:length]}*" for length in lengths if length <= len(text))]


@contextmanager
def index_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise IndexBroken(f"the index of receivers cannot be kept in the temporary directory: {error}") from error
