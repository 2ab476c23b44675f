"""What the records of `receiver_config` say, for all who read it.

A record's key is a receiver's name, or `source:<id>`; its value is JSON: the entry, with its references unresolved, and
who declared it. Others say which lane of a receiver is in force (`relay/domain/route.py`), and, which is nobody's
business here, who is held (`relay/domain/hold.py`), what is replayed (`relay/domain/replay_job.py`), which keys the API
has (`relay/domain/api_key.py`), and who has proved what (`relay/domain/verification.py`).
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
"""What messages about an entry of the topic name as its file."""
SOURCE_PREFIX: Final = "source:"
_OF_OTHERS: Final[tuple[Callable[[bytes], object], ...]] = (held_owner, is_of_job, is_of_key, verified_receiver)
"""Whether a key is of a hold, a job, a key of the API, or a verification."""


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """What a record of the topic says. `by`: `file` for what a receivers file declares."""

    by: str
    entry: Raw
    life: Life = NO_LIFE

    def encode(self) -> bytes:
        life = {"life": msgspec.to_builtins(self.life)} if self.life.id else {}
        return json.dumps({"declared_by": self.by, "entry": self.entry, **life}, sort_keys=True).encode()


_UNREADABLE: Final = EntryRecord("", {})


def decode(value: bytes) -> EntryRecord:
    """Raises UserError unless `value` is what `EntryRecord.encode` makes."""
    try:
        known = json.loads(value)
        life = msgspec.convert(known.get("life", {}), Life)
        return EntryRecord(str(known["declared_by"]), dict(known["entry"]), life)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{ORIGIN}: a record that is not JSON of declared_by and entry") from error


def source_key(source_id: str) -> str:
    """The key of a source's record; a receiver's is its name, which cannot contain a colon."""
    return SOURCE_PREFIX + source_id


def key_of(record: Record) -> str | None:
    """Who the record is about, or which route; None where it is of others (a hold, a job, ...), or nobody can
    say."""
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
    """What is declared, by key: what is in `own`, and of receivers in the shared lane what is in `shared`."""

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
        """Keys of all that is not of a receiver in the shared lane."""
        return [key for key in list(self._own) if not is_of_route(key)]

    def by(self, who: str) -> list[str]:
        """Keys of what `who` has declared."""
        own = [key for key in self.own() if _readable(self._own[key]).by == who]
        return [*own, *self._shared.declared_by(who)]

    def _value(self, key: str) -> bytes | None:
        if (own := self._own.get(key)) is not None:
            return own
        row = self._shared.get(key)
        return None if row is None else row.value


@dataclass(frozen=True, slots=True)
class Topic:
    """What `receiver_config` says: what is declared, by key, and the routes."""

    declared: Declarations
    routes: LaneRoutes

    def uses_own_topics(self, name: str) -> bool:
        """Whether it has a lane of its own, or will when it has moved."""
        declared = self.declared.get(name)
        return declared is not None and "dedicated" in (self.routes.route(name).lane, lane_of_entry(declared.entry))

    def last_entry(self, name: str) -> Raw:
        """Of a receiver that was removed; empty where it cannot be read."""
        return _readable(self.routes.removed[name]).entry

    def former(self, name: str) -> EntryRecord | None:
        """Its entry, or what is kept of it while something is left: it may come back before that is over."""
        last = self.routes.removed.get(name)
        return self.declared.get(name) or (_readable(last) if last is not None else None)


async def read_topic(log: LogReader, topics: Topics) -> Topic:
    """As it is now; nothing is resolved. Of an entry that a newer version wrote only the key counts."""
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
