"""Records of `receiver_config`: encodes and decodes entries, and reads the topic.

A record's key is a receiver's name, or `source:<id>`; its value is JSON: the entry, with unresolved references, and its
origin. Other records are routes (`relay/domain/route.py`), and, not used in this module, holds
(`relay/domain/hold.py`), replay jobs (`relay/domain/replay_job.py`), API keys (`relay/domain/api_key.py`), and
verification results (`relay/domain/verification.py`).
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from relay.config.receivers_file import Raw
from relay.control.record_header import glance
from relay.control.routes import LaneRoutes, is_of_route
from relay.control.shared_index import Loading, SharedIndex
from relay.domain.api_key import is_of_key
from relay.domain.errors import UserError
from relay.domain.hold import held_owner
from relay.domain.life import NO_LIFE, Life
from relay.domain.receiver import LaneKind
from relay.domain.replay_job import is_of_job
from relay.domain.topics import SHARED, Topics
from relay.domain.verification import verified_receiver
from relay.log.port import LogReader, Record

_log = logging.getLogger(__name__)

ORIGIN: Final = "receiver_config"
"""The file name in messages about an entry on the topic."""
SOURCE_PREFIX: Final = "source:"
_OF_OTHERS: Final[tuple[Callable[[bytes], object], ...]] = (held_owner, is_of_job, is_of_key, verified_receiver)
"""Whether a key is of a hold, a job, a key of the API, or a verification."""


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
    """The key of a source's record; a receiver's is its name, which cannot contain a colon."""
    return SOURCE_PREFIX + source_id


def key_of(record: Record) -> str | None:
    """The key of an entry's or route's record; None for other records (a hold, a job, ...) and invalid keys."""
    raw = record.key or b""
    if b":" in raw and any(about(raw) for about in _OF_OTHERS):
        return None
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        key = ""
    if not key:
        _log.warning("receiver_config_record_without_key", extra={"coordinate": str(record.coordinate)})
    return key or None


def lane_of_entry(entry: Raw) -> LaneKind:
    return "shared" if entry.get("lane") == SHARED else "dedicated"


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
        return [key for key in list(self._own) if not is_of_route(key)]

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
        return declared is not None and "dedicated" in (self.routes.route(name).lane, lane_of_entry(declared.entry))

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
        if key is None:
            continue
        if not is_of_route(key):
            _take(own, loading, record.offset, key, value)
        elif value is not None:
            routes.take(key, value)
        else:
            routes.drop(key)
        if loading.is_due:
            await loading.write()
    return Topic(Declarations(own, await loading.sealed()), routes)


def _take(own: dict[str, bytes], loading: Loading, offset: int, key: str, value: bytes | None) -> None:
    seen = None if value is None or key.startswith(SOURCE_PREFIX) else glance(value)
    if value is not None and seen is not None and seen.is_shared:
        own.pop(key, None)
        loading.rows.append((offset, key, value, False, seen))
        return
    loading.gone.append((offset, key))
    if value is None:
        own.pop(key, None)
    else:
        own[key] = value


def _readable(value: bytes) -> EntryRecord:
    try:
        return decode(value)
    except UserError:
        return _UNREADABLE
