"""The receivers and sources in force: what the compacted topic `receiver_config` says, resolved for this process.

A record's key is a receiver's name, or `source:<id>`; its value is JSON: the entry, with its references unresolved, and
who declared it. One with a key of `relay/domain/hold.py` says who is held, in which no file has a say. This module
reads the topic; `apply.py` writes what a receivers file declares.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from relay.config.entries import ReceiverEntry, SourceEntry
from relay.config.receivers_file import ANY_SOURCE, Raw, ReceiversFile, check_entry, resolve, resolve_source
from relay.config.subscriptions import Subscriptions
from relay.domain.errors import UserError
from relay.domain.hold import held_owner
from relay.domain.receiver import Receiver, Source
from relay.domain.topics import Topics
from relay.log.port import LogReader, Record

_log = logging.getLogger(__name__)

OTHERS_KEPT: Final = 16_384
ORIGIN: Final = "receiver_config"
"""What messages about an entry of the topic name as its file."""
SOURCE_PREFIX: Final = "source:"


@dataclass(frozen=True, slots=True)
class Declared:
    """What a record of the topic says. `by`: `file` for what a receivers file declares."""

    by: str
    entry: Raw

    def encode(self) -> bytes:
        return json.dumps({"declared_by": self.by, "entry": self.entry}, sort_keys=True).encode()


def decode(value: bytes) -> Declared:
    """Raises UserError unless `value` is what `Declared.encode` makes."""
    try:
        known = json.loads(value)
        return Declared(str(known["declared_by"]), dict(known["entry"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{ORIGIN}: a record that is not JSON of declared_by and entry") from error


def source_key(source_id: str) -> str:
    """The key of a source's record; a receiver's is its name, which cannot contain a colon."""
    return SOURCE_PREFIX + source_id


class Registry:
    """The receivers and sources of one process, kept up to date by `follow`.

    An entry that this process cannot use (a variable is missing, or a newer version wrote it) leaves the former one
    in force, or none, and is listed in `problems`, by key. `ready` is set once the topic has been read to its end.
    """

    def __init__(self, topics: Topics, environ: Mapping[str, str]) -> None:
        self._topic = topics.receiver_config
        self._environ = dict(environ)
        self._values: dict[str, bytes] = {}
        self._receivers: dict[str, Receiver] = {}
        self._sources: dict[str, Source] = {}
        self._others: dict[str, Source] = {}  # made from that of `*`
        self._subscriptions: Subscriptions | None = None
        self._version = 0
        self._changed = asyncio.Event()
        self.problems: dict[str, str] = {}
        self.ready = asyncio.Event()

    def receiver(self, name: str) -> Receiver | None:
        return self._receivers.get(name)

    def refusal(self, name: str) -> str | None:
        """Why the receiver's entry cannot be used here; a former one may be in force all the same."""
        return self.problems.get(name)

    def receivers(self) -> Mapping[str, Receiver]:
        """By name. The mapping is live: copy it to keep it across an await."""
        return self._receivers

    def source(self, source_id: str) -> Source:
        """Its own entry, else that of `*` under this id, else a source without callback."""
        if (own := self._sources.get(source_id)) is not None:
            return own
        other = self._others.get(source_id)
        if other is None:
            any_ = self._sources.get(ANY_SOURCE, Source(ANY_SOURCE))
            if len(self._others) >= OTHERS_KEPT:
                self._others.clear()
            other = self._others[source_id] = replace(any_, source_id=source_id)
        return other

    def sources(self) -> Mapping[str, Source]:
        """By source_id, `*` among them. The mapping is live."""
        return self._sources

    @property
    def subscriptions(self) -> Subscriptions:
        if self._subscriptions is None:
            self._subscriptions = Subscriptions(self._receivers.values())
        return self._subscriptions

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names of the receivers that subscribe to such messages."""
        return self.subscriptions.match(source_id, event_type)

    def learn(self, file: ReceiversFile) -> None:
        """Use the secrets that are written out in `file`: the topic refers to them, and does not hold them."""
        self._environ.update(file.sealed().literals)
        for key in list(self.problems):
            self._take(key, self._values[key])
        self._announce()

    async def changes(self) -> AsyncIterator[int]:
        """Yields a growing number: at once when the topic has been read, then after every change.

        Changes that come while the caller is busy are yielded as one.
        """
        await self.ready.wait()
        seen = -1
        while True:
            while seen == self._version:
                await self._changed.wait()
            seen = self._version
            yield seen

    async def follow(self, log: LogReader) -> None:
        """Read the topic, for ever. Raises LogUnavailable; then call it again: what was there stays in force."""
        unseen = set(self._values)  # a tombstone that came between two calls may be compacted away
        caught_up = False
        async for record in log.follow(self._topic):
            if record is None:
                caught_up = True
                self._drop_all(unseen)
                self.ready.set()
            elif held_owner(record.key or b"") is None and (key := _key(record)) is not None:
                unseen.discard(key)
                self._apply(key, record.value)
            if caught_up:
                self._announce()

    def _announce(self) -> None:
        self._version += 1
        self._others.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def _apply(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._drop(key)
        elif self._values.get(key) != value or key in self.problems:
            self._values[key] = value
            self._take(key, value)

    def _drop_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._values.pop(key, None)
        self.problems.pop(key, None)
        if key.startswith(SOURCE_PREFIX):
            self._sources.pop(key.removeprefix(SOURCE_PREFIX), None)
        else:
            self._receivers.pop(key, None)
        self._subscriptions = None

    def _take(self, key: str, value: bytes) -> None:
        try:
            self._resolve(key, value)
        except UserError as error:
            self.problems[key] = str(error)
            for problem in str(error).splitlines():
                _log.warning("receiver_config_entry_refused", extra={"key": key, "problem": problem})
        else:
            self.problems.pop(key, None)
            self._subscriptions = None

    def _resolve(self, key: str, value: bytes) -> None:
        raw = decode(value).entry
        if key.startswith(SOURCE_PREFIX):
            source_id = key.removeprefix(SOURCE_PREFIX)
            source = check_entry(SourceEntry, raw, ORIGIN, ("sources", source_id))
            self._sources[source_id] = resolve_source(source_id, source, self._environ, ORIGIN)
        else:
            entry = check_entry(ReceiverEntry, raw, ORIGIN, ("receivers", key))
            self._receivers[key] = resolve(key, entry, self._environ, ORIGIN)


def _key(record: Record) -> str | None:
    try:
        key = (record.key or b"").decode()
    except UnicodeDecodeError:
        key = ""
    if not key:
        _log.warning("receiver_config_record_without_key", extra={"coordinate": str(record.coordinate)})
    return key or None
