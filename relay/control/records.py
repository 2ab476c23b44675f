"""Records of `receiver_config`: encodes and decodes entries, reads and writes the topic, and notifies of changes.

`relay/domain/control_key.py` lists all kinds of records. The value of a receiver's or source's is JSON: the entry, with
unresolved references, and its origin.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from relay.config.encryption import KeyRing, key_ids_in, renew_all
from relay.config.problems import Place
from relay.config.receivers_file import Raw
from relay.control.routes import LaneRoutes
from relay.control.shared_index import Loading, SharedIndex, record_header
from relay.domain.control_key import ENTRIES, ROUTES, ControlKey, Kind, control_key, decode_key
from relay.domain.errors import LogUnavailable, RelayError, UserError
from relay.domain.receiver import NO_LIFE, LaneKind, Life
from relay.domain.topics import SHARED, Topics
from relay.log.port import Log, LogReader, NewRecord, Record

_log = logging.getLogger(__name__)

ORIGIN: Final = "receiver_config"
"""The file name in messages about an entry on the topic."""
REACH_S: Final = 2.0
"""Maximum wait until this process has read its own record, which is already in effect on the log."""


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """An entry's record. `by`: its origin, `file` for a receivers file."""

    by: str
    entry: Raw
    life: Life = NO_LIFE

    def encode(self) -> bytes:
        life = {"life": msgspec.to_builtins(self.life)} if self.life.id else {}
        return json.dumps({"declared_by": self.by, "entry": self.entry, **life}, sort_keys=True).encode()


_UNREADABLE: Final = EntryRecord("", {})


def decode(value: bytes) -> EntryRecord:
    """The reverse of `EntryRecord.encode`. Raises UserError."""
    try:
        known = json.loads(value)
        life = msgspec.convert(known.get("life", {}), Life)
        return EntryRecord(str(known["declared_by"]), dict(known["entry"]), life)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{ORIGIN}: a record that is not JSON with declared_by and entry") from error


def source_key(source_id: str) -> str:
    """The text of a source's key; that of a receiver's key is its name."""
    return ControlKey("source", source_id).text


def key_of(record: Record) -> ControlKey | None:
    """The key of a record; None for one that no entry can have."""
    key = decode_key(record.key)
    if key is None:
        _log.warning("receiver_config_record_without_key", extra={"coordinate": str(record.coordinate)})
    return key


def lane_of_entry(entry: Raw) -> LaneKind:
    return "shared" if entry.get("lane") == SHARED else "dedicated"


def partitions_of_entry(entry: Raw) -> int:
    found = entry.get("partitions", 1)
    return found if isinstance(found, int) else 1


class Declarations(Mapping[str, EntryRecord]):
    """Declared entries by key: those in `own`, and receivers of the shared lane in `shared`."""

    def __init__(self, own: Mapping[str, bytes], shared: SharedIndex) -> None:
        self._own = own
        self._shared = shared

    def __getitem__(self, key: str) -> EntryRecord:
        value = self._value(key)
        if value is None:
            raise KeyError(key)
        return _readable(value)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._value(key) is not None

    def __iter__(self) -> Iterator[str]:
        yield from self.own()
        yield from self._shared.all_names()

    def __len__(self) -> int:
        return len(self.own()) + len(self._shared)

    def own(self) -> list[str]:
        """Keys of all entries except receivers in the shared lane."""
        return [key for key in list(self._own) if control_key(key).kind in ENTRIES]

    def by(self, who: str) -> list[str]:
        """Keys of the entries with the origin `who`."""
        own = [key for key in self.own() if _readable(self._own[key]).by == who]
        return [*own, *self._shared.declared_by(who)]

    def _value(self, key: str) -> bytes | None:
        if (own := self._own.get(key)) is not None:
            return own
        row = self._shared.get(key)
        return None if row is None else row.value


@dataclass(frozen=True, slots=True)
class Topic:
    """The content of `receiver_config`: declared entries, by key, and routes."""

    declared: Declarations
    routes: LaneRoutes

    def uses_own_topics(self, name: str) -> bool:
        """Whether it has a lane of its own, or will after its move."""
        declared = self.declared.get(name)
        return declared is not None and "dedicated" in (
            self.routes.route(name).lane,
            self.wanted_lane(name, declared.entry)[0],
        )

    def wanted_lane(self, name: str, entry: Raw) -> tuple[LaneKind, int]:
        """The lane and partitions that the receiver is to have, if this is its entry."""
        return self.routes.wanted(name, lane_of_entry(entry), partitions_of_entry(entry))

    def last_entry(self, name: str) -> Raw:
        """The last entry of a removed receiver; empty if it is unreadable."""
        return _readable(self.routes.removed[name]).entry

    def former(self, name: str) -> EntryRecord | None:
        """Its entry, or its last one if it was removed and has records left: it may be declared again before they
        end."""
        last = self.routes.removed.get(name)
        return self.declared.get(name) or (_readable(last) if last is not None else None)


async def read_topic(log: LogReader, topics: Topics) -> Topic:
    """The current content, unresolved. Only the key is used of an entry that a newer version wrote."""
    own: dict[str, bytes] = {}
    routes, loading = LaneRoutes(), Loading()
    async for record in log.follow(topics.receiver_config):
        if record is None:
            break
        key, value = key_of(record), record.value
        if key is not None and key.kind in ENTRIES:
            _take(own, loading, record.offset, key, value)
        elif key is not None and key.kind in ROUTES:
            if value is None:
                routes.drop(key)
            else:
                with suppress(UserError):  # a newer version wrote it, and knows what to do with it
                    routes.take(key, value)
        if loading.is_due:
            await loading.write()
    return Topic(Declarations(own, await loading.sealed()), routes)


def _take(own: dict[str, bytes], loading: Loading, offset: int, key: ControlKey, value: bytes | None) -> None:
    seen = None if value is None or key.kind == "source" else record_header(value)
    if value is not None and seen is not None and seen.is_shared:
        own.pop(key.text, None)
        loading.rows.append((offset, key.text, value, False, seen))
        return
    loading.gone.append((offset, key.text))
    if value is None:
        own.pop(key.text, None)
    else:
        own[key.text] = value


class LimitReached(RelayError):
    """There is no room for another record of this kind. `wait_s`: seconds until there is, if that is known."""

    def __init__(self, kind: Kind, detail: str, wait_s: float | None = None) -> None:
        super().__init__(detail)
        self.kind: Final = kind
        self.wait_s: Final = wait_s


class ControlWriter:
    """Appends records to `topic`. `reach`: waits until this process has read the topic up to an offset."""

    def __init__(self, log: Log, topic: str, reach: Callable[[int], Awaitable[None]]) -> None:
        self._log = log
        self._topic = topic
        self._reach = reach

    async def write(self, *records: tuple[ControlKey, bytes | None]) -> None:
        """Append values, and tombstones (None), which are in effect then. Returns once this process has read them, or
        after `REACH_S`. Raises the log's errors."""
        appended = await self._log.append([NewRecord(self._topic, key.encode(), value) for key, value in records])
        with suppress(TimeoutError, LogUnavailable):
            async with asyncio.timeout(REACH_S):
                await self._reach(appended[-1].offset + 1)


def _readable(value: bytes) -> EntryRecord:
    try:
        return decode(value)
    except UserError:
        return _UNREADABLE


def is_outdated(value: bytes, ring: KeyRing) -> bool:
    """Whether a record of `receiver_config` has a secret that is encrypted with an older key."""
    return not key_ids_in(value) <= {ring.newest}


def renewed(key: str, value: bytes, ring: KeyRing) -> bytes:
    """The record of `key` with its secrets re-encrypted; everything else, including fields of a newer version, stays.
    Raises UserError if a secret cannot be decrypted here, or the record is unreadable."""
    try:
        known = json.loads(value)
        known["entry"] = renew_all(known["entry"], ring, _place(key))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{ORIGIN}: {key}: an unreadable record") from None
    return json.dumps(known, sort_keys=True).encode()


def _place(key: str) -> Place:
    known = control_key(key)
    return ("sources" if known.kind == "source" else "receivers"), known.id


class Changes:
    """Notifies followers of changes: each once for several changes while it is busy. Call `notify` after a change."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, after: asyncio.Event | None = None) -> AsyncIterator[int]:
        """Yields an increasing number: at once, or once `after` is set, then after every change."""
        if after is not None:
            await after.wait()
        seen = -1
        while True:
            while seen == self.version:
                await self._changed.wait()
            seen = self.version
            yield seen
