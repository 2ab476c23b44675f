"""The receivers and sources in force: what the compacted topic `receiver_config` says, resolved for this process.

What its records are like is in `topic.py`. This module follows them; `apply.py` writes what a receivers file declares.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from relay.config.entries import ReceiverEntry, SourceEntry
from relay.config.problems import SECRET_FIELDS
from relay.config.receivers_file import ANY_SOURCE, ReceiversFile, check_entry, resolve, resolve_source
from relay.config.routes import Routes, is_of_route
from relay.config.subscriptions import Subscriptions
from relay.config.topic import ORIGIN, SOURCE_PREFIX, decode, key_of
from relay.domain.errors import LogUnavailable, UserError
from relay.domain.hold import held_owner
from relay.domain.receiver import LaneKind, Receiver, Source
from relay.domain.route import Cut, Marker, Route
from relay.domain.topics import SHARED, Topics
from relay.log.port import LogReader, TopicPartition

_log = logging.getLogger(__name__)

OTHERS_KEPT: Final = 16_384


class Registry:
    """The receivers and sources of one process, kept up to date by `follow`.

    An entry that this process cannot use (a variable is missing, or a newer version wrote it) leaves the former one
    in force, or none, and is listed in `problems`, by key. `ready` is set once the topic has been read to its end.
    `resumed`: called with the owner of each hold that was ended, as often as the topic says so.
    """

    def __init__(
        self, topics: Topics, environ: Mapping[str, str], resumed: Callable[[str], None] = lambda _owner: None
    ) -> None:
        self._resumed = resumed
        self._topic = topics.receiver_config
        self._environ = dict(environ)
        self._values: dict[str, bytes] = {}
        self._receivers: dict[str, Receiver] = {}
        self._declared: dict[str, Receiver] = {}  # with the lane that its entry says
        self._wanted: dict[str, tuple[LaneKind, int]] = {}
        self._routes = Routes()
        self._removed: dict[str, Receiver] = {}
        self._log: LogReader | None = None
        self._routes_to = 0  # the offset before which every route is known here
        self._reads = 0
        self._reading = asyncio.Lock()
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

    def removed(self, name: str) -> Receiver | None:
        """The last settings of a receiver that was removed. Where a secret is not known any more it goes without."""
        if name in self._values:
            return None
        known = self._removed.get(name)
        if known is None and (last := self._routes.removed.get(name)) is not None:
            try:
                known = self._routes.route(name).applied_to(_last_settings(name, last, self._environ))
            except UserError:
                return None  # a newer version wrote it
            self._removed[name] = known
        return known

    def routes(self) -> Mapping[str, Route]:
        """Of the receivers that have moved, or are about to, by name; live."""
        return self._routes.all()

    @property
    def version(self) -> int:
        """Grows with all that is learnt."""
        return self._version

    def gone(self) -> frozenset[str]:
        """Receivers that were removed, and of which something may be left."""
        return frozenset(name for name in self._routes.removed if name not in self._values)

    def is_declared(self, name: str) -> bool:
        """Also by an entry that this process cannot read."""
        return name in self._values

    def is_gone(self, name: str) -> bool:
        return name in self._routes.removed and name not in self._values

    def left_lanes(self) -> frozenset[str]:
        """Receivers whose own topics are not in use any more, and may hold something."""
        left = {name for name, route in self._routes.all().items() if route.left}
        last = filter(None, map(self.removed, self.gone()))
        return frozenset(left | {receiver.name for receiver in last if receiver.lane != SHARED or receiver.moving})

    def is_outdated(self, name: str) -> bool:
        """Whether its newest route on the topic is a late one, and has to be said again as `routes` has it."""
        return name in self._routes.outdated

    def wanted_lane(self, name: str) -> tuple[LaneKind, int] | None:
        """Lane and partitions that its entry says, whether or not they are in force; None: it has no readable entry."""
        return self._wanted.get(name)

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

    # moves

    async def catch_up(self) -> None:
        """Return when every move that was announced before this call is known here. Raises LogUnavailable."""
        asked_at = self._reads
        async with self._reading:
            if self._reads == asked_at:  # else one has begun since, on somebody else's behalf
                self._reads += 1
                await self._read_routes()

    async def _read_routes(self) -> None:
        if self._log is None:
            raise LogUnavailable("receiver_config is not read yet")
        [end] = (await self._log.ends([TopicPartition(self._topic, 0)])).values()
        if self._routes_to > end:  # it was made anew
            self._routes_to = 0
        if self._routes_to == end:
            return
        async for records in self._log.scan(self._topic, 0, start=self._routes_to, end=end):
            for record in records:
                key = key_of(record)
                if key is not None and is_of_route(key) and record.value is not None:
                    self._apply(key, record.value)
        self._routes_to = max(self._routes_to, end)
        self._announce()

    def announced(self, marker: Marker) -> bool:
        return self._routes.announced(marker)

    def is_under_way(self, marker: Marker) -> bool:
        return self._routes.is_under_way(marker)

    def cut(self, name: str, version: int, partition: int) -> int | None:
        return self._routes.cut(name, version, partition)

    def cuts(self, name: str) -> list[Cut]:
        return self._routes.cuts(name)

    def note(self, cut: Cut) -> None:
        self._routes.note(cut)

    # the topic

    async def follow(self, log: LogReader) -> None:
        """Read the topic, for ever. Raises LogUnavailable; then call it again: what was there stays in force."""
        self._log = log
        unseen = set(self._values)  # a tombstone that came between two calls may be compacted away
        caught_up = False
        async for record in log.follow(self._topic):
            if record is None:
                caught_up = True
                self._drop_all(unseen)
                self.ready.set()
            elif (key := key_of(record)) is not None:
                unseen.discard(key)
                self._apply(key, record.value)
            elif record.value is None and (owner := held_owner(record.key or b"")) is not None:
                self._resumed(owner)
            if record is not None:
                self._routes_to = max(self._routes_to, record.offset + 1)
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
        elif is_of_route(key):
            self._removed.pop(self._routes.drop(key), None)
        else:
            for known in (self._receivers, self._declared, self._wanted):
                known.pop(key, None)
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
        if is_of_route(key):
            name = self._routes.take(key, value)
            self._removed.pop(name, None)
            self._put_in_force(name)
            return
        raw = decode(value).entry
        if key.startswith(SOURCE_PREFIX):
            source_id = key.removeprefix(SOURCE_PREFIX)
            source = check_entry(SourceEntry, raw, ORIGIN, ("sources", source_id))
            self._sources[source_id] = resolve_source(source_id, source, self._environ, ORIGIN)
        else:
            entry = check_entry(ReceiverEntry, raw, ORIGIN, ("receivers", key))
            self._wanted[key] = entry.lane, entry.partitions
            self._declared[key] = resolve(key, entry, self._environ, ORIGIN)
            self._put_in_force(key)

    def _put_in_force(self, name: str) -> None:
        declared = self._declared.get(name)
        if declared is not None:
            route = self._routes.all().get(name)
            self._receivers[name] = declared if route is None else route.applied_to(declared)


def _last_settings(name: str, value: bytes, environ: Mapping[str, str]) -> Receiver:
    raw = decode(value).entry
    entry = check_entry(ReceiverEntry, raw, ORIGIN, ("receivers", name))
    try:
        return resolve(name, entry, environ, ORIGIN)
    except UserError:
        bare = {field: value for field, value in raw.items() if field not in SECRET_FIELDS}
        return resolve(name, check_entry(ReceiverEntry, bare, ORIGIN, ("receivers", name)), environ, ORIGIN)
