"""The receivers and sources in force: what the compacted topic `receiver_config` says, resolved for this process.

What its records are like is in `topic.py`. `following.py` reads them and tells this module; `apply.py` writes what a
receivers file declares.

Sources, routes, and receivers with a lane of their own or a route are in memory, ready for use. All others are in the
shared lane and may be millions: `shared.py` has them in a file, and makes ready who is asked for.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from heapq import nsmallest

from relay.config.changes import Changes
from relay.config.encryption import NO_KEYS, KeyRing
from relay.config.following import Following
from relay.config.glance import glance
from relay.config.jobs import Jobs
from relay.config.keys import Keys
from relay.config.made_ready import last_settings, receiver_of, source_of, wanted_lane
from relay.config.proofs import Proofs
from relay.config.receivers_file import ReceiversFile
from relay.config.routes import Routes, is_of_route
from relay.config.shared import SharedReceivers, tell_refused
from relay.config.shared_index import Loading
from relay.config.sources import Sources
from relay.config.subscribers import Subscribers
from relay.config.subscriptions import Subscriptions
from relay.config.topic import SOURCE_PREFIX, Declarations, Topic, key_of
from relay.domain.api_key import is_of_key
from relay.domain.errors import UserError
from relay.domain.hold import held_owner
from relay.domain.receiver import LaneKind, Receiver, Source
from relay.domain.replay_job import is_of_job
from relay.domain.route import Cut, Marker, Route
from relay.domain.topics import SHARED, Topics
from relay.domain.verification import verified_receiver
from relay.log.port import LogReader, Record


class Registry:
    """The receivers and sources of one process, kept up to date by `follow`.

    An entry that this process cannot use (a variable is missing, or a newer version wrote it) leaves the former one
    in force, or none, and is listed in `problems`, by key; one of the shared lane says so when it is asked for
    (`refusal`). `ready` is set once the topic has been read to its end. `resumed`: called with the owner of each hold
    that was ended, as often as the topic says so. `ring`: what opens the secrets that are encrypted on the topic.
    """

    def __init__(
        self,
        topics: Topics,
        environ: Mapping[str, str],
        resumed: Callable[[str], None] = lambda _owner: None,
        *,
        ring: KeyRing = NO_KEYS,
    ) -> None:
        self._resumed = resumed
        self._environ = dict(environ)
        self._ring = ring
        self._values: dict[str, bytes] = {}
        self._receivers: dict[str, Receiver] = {}
        self._declared: dict[str, Receiver] = {}  # with the lane that its entry says
        self._wanted: dict[str, tuple[LaneKind, int]] = {}
        self._routes = Routes()
        self._removed: dict[str, Receiver] = {}
        self._gone: set[str] = set()
        self.proofs = Proofs()
        """Of receivers that have to be verified."""
        self.shared = SharedReceivers(self._shared_receiver, self._environ, ring)
        """Receivers in the shared lane without a route."""
        self.jobs = Jobs()
        self.keys = Keys()
        """Of the API."""
        self._sources = Sources()
        self._subscriptions: Subscriptions | None = None
        self._subscribers = Subscribers(lambda: self.subscriptions, self.shared, self.receiver)
        self._changes = Changes()
        self._lane_changes = Changes()
        self.problems: dict[str, str] = {}
        self._following = Following(topics.receiver_config, self)
        self.ready = self._following.ready

    def receiver(self, name: str) -> Receiver | None:
        return self._receivers.get(name) or self.shared.receiver(name)

    def refusal(self, name: str) -> str | None:
        """Why the receiver's entry cannot be used here; a former one may be in force all the same."""
        return self.problems.get(name) or self.shared.refusal(name)

    @property
    def refused(self) -> int:
        """How many entries cannot be used here, as far as is known."""
        return len(self.problems) + self.shared.refused

    def receivers(self) -> Mapping[str, Receiver]:
        """By name, all that are not in `shared`. The mapping is live: copy it to keep it across an await."""
        return self._receivers

    def removed(self, name: str) -> Receiver | None:
        """The last settings of a receiver that was removed. Where a secret is not known any more it goes without."""
        if name not in self._gone:
            return None
        known = self._removed.get(name)
        if known is None and (last := self._routes.removed.get(name)) is not None:
            try:
                known = self._routes.route(name).applied_to(last_settings(name, last, self._environ, self._ring))
                known = self.proofs.applied_to(known)
            except UserError:
                return None  # a newer version wrote it
            self._removed[name] = known
        return known

    @property
    def version(self) -> int:
        """Grows with all that is learnt."""
        return self._changes.version

    def routes(self) -> Mapping[str, Route]:
        """Of the receivers that have moved, or are about to, by name; live."""
        return self._routes.all()

    def gone(self) -> frozenset[str]:
        """Receivers that were removed, and of which something may be left."""
        return frozenset(self._gone)

    def is_declared(self, name: str) -> bool:
        return self.record(name) is not None

    def record(self, name: str) -> bytes | None:
        """What the topic says of a receiver, or of what has another key, whether or not it can be used here."""
        return self._values.get(name) or self.shared.value(name)

    def names(self, after: str, most: int, owner: str | None = None) -> list[str]:
        """Receivers that are declared, in the order of their names: the first `most` behind `after`; only those of
        `owner`, if that is given."""
        own = (key for key in self._values if ":" not in key and key > after)
        own = (key for key in own if owner is None or self.owner_of(key) == owner)
        return sorted((*sorted(own)[:most], *self.shared.names(after, most, owner)))[:most]

    def owner_of(self, name: str) -> str | None:
        """As its record says, whether or not that can be used here; None: it has none, or there is no such receiver."""
        value = self.record(name)
        seen = None if value is None else glance(value)
        return None if seen is None else seen.entry.owner

    def source_ids(self, after: str, most: int) -> list[str]:
        """Sources that are declared, in the order of their ids: the first `most` behind `after`."""
        ids = (key.removeprefix(SOURCE_PREFIX) for key in self._values if key.startswith(SOURCE_PREFIX))
        return nsmallest(most, (each for each in ids if each > after))

    def is_gone(self, name: str) -> bool:
        return name in self._gone

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
        wanted = self._wanted.get(name)
        return (SHARED, 1) if wanted is None and self.shared.value(name) is not None else wanted

    def source(self, source_id: str) -> Source:
        """Its own entry, else that of `*` under this id, else a source without callback."""
        return self._sources.source(source_id)

    def sources(self) -> Mapping[str, Source]:
        """By source_id, `*` among them. The mapping is live."""
        return self._sources.all()

    @property
    def subscriptions(self) -> Subscriptions:
        if self._subscriptions is None:
            self._subscriptions = Subscriptions(self._receivers.values())
        return self._subscriptions

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names of the receivers that subscribe to such messages. Raises InvalidRecord where there are too many."""
        return self._subscribers.of(source_id, event_type).names

    def filtered(self, source_id: str, event_type: str | None) -> frozenset[str]:
        """Those of `subscribers` that have a filter besides. Raises InvalidRecord as that does."""
        return self._subscribers.of(source_id, event_type).filtered

    def learn(self, file: ReceiversFile) -> None:
        """Use the secrets that are written out in `file`: the topic refers to them, and does not hold them."""
        self._environ.update(file.sealed().literals)
        for key in list(self.problems):
            self._take(key, self._values[key])
        self.shared.learned()
        self._announce()

    def changes(self) -> AsyncIterator[int]:
        """Yields a growing number: at once when the topic has been read, then after every change.

        Changes that come while the caller is busy are yielded as one.
        """
        return self._changes.follow(self.ready)

    def lane_changes(self) -> AsyncIterator[int]:
        """As `changes`, of those only that may make or end a lane: not of receivers in `shared`."""
        return self._lane_changes.follow(self.ready)

    def topic(self) -> Topic:
        """What the topic says, as far as it is known here; live."""
        return Topic(Declarations(self._values, self.shared.index), self._routes)

    async def reach(self, offset: int) -> None:
        """Return when all that the topic has before `offset` is known here. Raises LogUnavailable."""
        await self._following.reach(offset)

    # moves

    async def catch_up(self) -> None:
        """Return when every move that was announced before this call is known here. Raises LogUnavailable."""
        await self._following.catch_up()

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

    async def follow(self, log: LogReader) -> None:
        """Read the topic, for ever. Raises LogUnavailable; then call it again: what was there stays in force."""
        await self._following.follow(log)

    # the topic, as `following.py` tells of it

    def take(self, record: Record) -> None:
        if (key := key_of(record)) is not None:
            self._announce(lanes=self._apply(record, key))
        else:
            self._hear(record)

    def take_routes(self, records: Sequence[Record]) -> None:
        for record in records:
            key = key_of(record)
            if key is not None and is_of_route(key) and record.value is not None:
                self._announce(lanes=self._apply(record, key))

    def loaded(self) -> None:
        self._announce()

    async def load(self, records: AsyncIterator[Record | None], end: int) -> int:
        """Who is in memory changes record by record, those in the shared lane when all has been read: until then the
        former ones are in force."""
        self.keys.begin()
        self.proofs.begin()
        unseen = set(self._values)  # a tombstone that came between two calls may be compacted away
        moved = set[str]()
        loading = Loading()
        async for record in records:
            if record is None:
                break
            if record.offset >= end:
                end = record.offset + 1
            if (key := key_of(record)) is not None:
                unseen.discard(key)
                if self._take_first(loading, record, key) and key in self._values:
                    moved.add(key)
            else:
                self._hear(record)
            if loading.is_due:
                await loading.write()
        self.keys.finish()
        self.proofs.finish()
        index = await loading.sealed()
        self._drop_all(unseen)
        self.shared.replace(index)
        for name in moved - self._routes.all().keys():
            if self.shared.value(name) is not None:
                self._drop(name)
        for name in self._routes.all():
            self._take_out(name)
        self._gone = {name for name in self._routes.removed if not self.is_declared(name)}
        return end

    def _take_first(self, loading: Loading, record: Record, key: str) -> bool:
        """Whether it is of a receiver in the shared lane."""
        value = record.value
        if ":" in key:
            self._apply(record, key)
            return False
        seen = None if value is None else glance(value)
        self.proofs.declared(key, seen)
        if value is not None and seen is not None and seen.is_shared:
            loading.rows.append(self.shared.loaded(record.offset, key, value, seen))
            return True
        loading.gone.append((record.offset, key))
        self._hold(key, value)
        return False

    def _hear(self, record: Record) -> None:
        """Of a hold that was ended, of a job, of a key, or of a verification."""
        if (name := verified_receiver(record.key or b"")) is not None:
            self._verified(name, proved=self.proofs.take(record))
        elif is_of_job(record.key or b""):
            self.jobs.take(record)
        elif is_of_key(record.key or b""):
            self.keys.take(record)
        elif record.value is None and (owner := held_owner(record.key or b"")) is not None:
            self._resumed(owner)

    def _verified(self, name: str, *, proved: bool) -> None:
        """What is known of a receiver's verification has changed."""
        self._removed.pop(name, None)
        self.shared.forget(name)
        self._put_in_force(name)
        if proved:
            self._resumed(f"r:{name}")
        self._changes.tell()

    def _announce(self, *, lanes: bool = True) -> None:
        self._subscribers.forget()
        self._changes.tell()
        if lanes:
            self._lane_changes.tell()

    def _apply(self, record: Record, key: str) -> bool:
        """Whether it may make or end a lane."""
        value = record.value
        if key.startswith(SOURCE_PREFIX) or is_of_route(key):
            self._hold(key, value)
            return True
        seen = None if value is None else glance(value)
        self.proofs.declared(key, seen)
        was_own = key in self._values
        is_shared = seen.is_shared if seen else not was_own and self.shared.value(key) is not None
        if value is not None and is_shared and key not in self._routes.all():
            self._drop(key)
            self.shared.put(record.offset, key, value, seen)
        else:
            self.shared.drop(key)
            self._hold(key, value)
        self._see_gone(key)
        return was_own or key in self._values

    def _take_out(self, name: str) -> None:
        """Who has a route is in memory."""
        row = self.shared.drop(name)
        for value in () if row is None else filter(None, (row.former, row.value)):
            self._hold(name, value)

    def _see_gone(self, name: str) -> None:
        if name in self._routes.removed and not self.is_declared(name):
            self._gone.add(name)
        else:
            self._gone.discard(name)

    def _hold(self, key: str, value: bytes | None) -> None:
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
            self._sources.drop(key.removeprefix(SOURCE_PREFIX))
        elif is_of_route(key):
            name = self._routes.drop(key)
            self._removed.pop(name, None)
            self._see_gone(name)
        else:
            for known in (self._receivers, self._declared, self._wanted):
                known.pop(key, None)
        self._subscriptions = None

    def _take(self, key: str, value: bytes) -> None:
        try:
            self._resolve(key, value)
        except UserError as error:
            self.problems[key] = str(error)
            tell_refused(key, error)
        else:
            self.problems.pop(key, None)
            self._subscriptions = None

    def _resolve(self, key: str, value: bytes) -> None:
        if is_of_route(key):
            name = self._routes.take(key, value)
            self._removed.pop(name, None)
            if name in self._routes.all():
                self._take_out(name)
            self._put_in_force(name)
            self._see_gone(name)
            return
        if key.startswith(SOURCE_PREFIX):
            source_id = key.removeprefix(SOURCE_PREFIX)
            self._sources.put(source_of(source_id, value, self._environ, self._ring))
        else:
            self._wanted[key] = wanted_lane(key, value)
            self._declared[key] = receiver_of(key, value, self._environ, self._ring)
            self._put_in_force(key)

    def _put_in_force(self, name: str) -> None:
        declared = self._declared.get(name)
        if declared is not None:
            route, declared = self._routes.all().get(name), self.proofs.applied_to(declared)
            self._receivers[name] = declared if route is None else route.applied_to(declared)

    def _shared_receiver(self, name: str, value: bytes, environ: Mapping[str, str]) -> Receiver:
        return self.proofs.applied_to(receiver_of(name, value, environ, self._ring))
