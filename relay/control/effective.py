"""Entries in effect: the records of `receiver_config` read so far, resolved for this process.

Sources, routes, and receivers with a lane of their own or a route are in memory, resolved. All other receivers are in
the shared lane and may be millions: `shared_receivers.py` keeps them in a file and resolves them on demand.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from relay.config.encryption import KeyRing
from relay.control.changes import Changes
from relay.control.keys import ApiKeys
from relay.control.record_header import glance
from relay.control.records import SOURCE_PREFIX, key_of
from relay.control.replay_jobs import Jobs
from relay.control.resolve import (
    last_settings,
    receiver_of,
    source_of,
    unusable_receiver,
    unusable_source,
    wanted_lane,
)
from relay.control.routes import LaneRoutes, is_of_route
from relay.control.shared_index import Loading
from relay.control.shared_receivers import SharedReceivers, log_refused
from relay.control.sources import EffectiveSources
from relay.control.subscribers import Subscribers
from relay.control.subscriptions import Subscriptions
from relay.control.verification_results import VerificationResults
from relay.domain.api_key import is_of_key
from relay.domain.errors import UserError
from relay.domain.hold import held_owner
from relay.domain.receiver import LaneKind, Receiver, Source
from relay.domain.replay_job import is_of_job
from relay.domain.verification import verified_receiver
from relay.log.port import Record


class InForce:
    """Updated record by record by `topic_follower.py` (as its `Taker`). If this process cannot use an entry, the former
    one stays in effect, and the error is in `problems`, by key; without a former one, the receiver or source is
    `unusable`. `resumed`: called with the owner of each ended hold, and of each entry that is usable again; `moved`:
    with the owner of each endpoint whose URL has changed, or may have. `ring`: decrypts the secrets on the topic."""

    def __init__(
        self,
        environ: Mapping[str, str],
        resumed: Callable[[str], None],
        ring: KeyRing,
        ping_every: float,
        moved: Callable[[str], None],
    ) -> None:
        self._resumed = resumed
        self._moved = moved
        self._ping_every = ping_every
        self._environ = dict(environ)
        self._ring = ring
        self.values: dict[str, bytes] = {}
        """The newest record of each entry in memory, by key."""
        self.receivers: dict[str, Receiver] = {}
        self._declared: dict[str, Receiver] = {}  # with the lane of the entry
        self.wanted: dict[str, tuple[LaneKind, int]] = {}
        """Lane and partitions in a receiver's entry, whether or not they are in effect."""
        self.routes = LaneRoutes()
        self._removed: dict[str, Receiver] = {}
        self.gone: set[str] = set()
        """Removed receivers that may have records left."""
        self.proofs = VerificationResults()
        self.shared = SharedReceivers(self._shared_receiver, self._environ, ring, resumed, moved)
        self.jobs = Jobs()
        self.keys = ApiKeys()
        self.sources = EffectiveSources()
        self._subscriptions: Subscriptions | None = None
        self.subscribers = Subscribers(lambda: self.subscriptions, self.shared, self.receiver)
        self.changes = Changes()
        self.lane_changes = Changes()
        """Those of `changes` that may start or end a lane, or move it to another process."""
        self.problems: dict[str, str] = {}

    # queries, for `Registry`

    def receiver(self, name: str) -> Receiver | None:
        return self.receivers.get(name) or self.shared.receiver(name)

    def record(self, name: str) -> bytes | None:
        return self.values.get(name) or self.shared.value(name)

    def removed(self, name: str) -> Receiver | None:
        if name not in self.gone:
            return None
        known = self._removed.get(name)
        if known is None and (last := self.routes.removed.get(name)) is not None:
            try:
                known = self.routes.route(name).applied_to(last_settings(name, last, self._environ, self._ring))
                known = self.proofs.applied_to(known)
            except UserError:
                return None  # a newer version wrote it
            self._removed[name] = known
        return known

    @property
    def subscriptions(self) -> Subscriptions:
        if self._subscriptions is None:
            self._subscriptions = Subscriptions(self.receivers.values())
        return self._subscriptions

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Add secrets to which entries may refer."""
        self._environ.update(secrets)
        for key in list(self.problems):
            self._take(key, self.values[key])
        self.shared.learned()
        self._announce()

    # updates

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
        """Entries in memory change record by record. Receivers in the shared lane change once all has been read; until
        then the former ones are in effect."""
        self.keys.begin()
        self.proofs.begin()
        unseen = set(self.values)  # a tombstone written between two calls may have been compacted
        moved = set[str]()
        loading = Loading()
        async for record in records:
            if record is None:
                break
            if record.offset >= end:
                end = record.offset + 1
            if (key := key_of(record)) is not None:
                unseen.discard(key)
                if self._take_first(loading, record, key) and key in self.values:
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
        for name in moved - self.routes.all().keys():
            if self.shared.value(name) is not None:
                self._drop(name)
        for name in self.routes.all():
            self._take_out(name)
        self.gone = {name for name in self.routes.removed if self.record(name) is None}
        return end

    def _take_first(self, loading: Loading, record: Record, key: str) -> bool:
        """Take a record while loading; returns whether it is of a receiver in the shared lane."""
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
        """Take a record of an ended hold, a job, an API key, or a verification."""
        if (name := verified_receiver(record.key or b"")) is not None:
            self._verified(name, proved=self.proofs.take(record))
        elif is_of_job(record.key or b""):
            self.jobs.take(record)
        elif is_of_key(record.key or b""):
            self.keys.take(record)
        elif record.value is None and (owner := held_owner(record.key or b"")) is not None:
            self._resumed(owner)

    def _verified(self, name: str, *, proved: bool) -> None:
        """Apply a changed verification result of a receiver."""
        self._removed.pop(name, None)
        self.shared.forget(name)
        self._put_in_force(name)
        if proved:
            self._resumed(f"r:{name}")
        self.changes.tell()

    def _announce(self, *, lanes: bool = True) -> None:
        self.subscribers.forget()
        self.changes.tell()
        if lanes:
            self.lane_changes.tell()

    def _apply(self, record: Record, key: str) -> bool:
        """Apply a record; returns whether it may start or end a lane, or move it to another process."""
        value = record.value
        if key.startswith(SOURCE_PREFIX) or is_of_route(key):
            self._hold(key, value)
            return True
        seen = None if value is None else glance(value)
        self.proofs.declared(key, seen)
        was_own = key in self.values
        refused = self.shared.refused
        is_shared = seen.is_shared if seen else not was_own and self.shared.value(key) is not None
        if value is not None and is_shared and key not in self.routes.all():
            self._drop(key)
            self.shared.put(record.offset, key, value, seen)
        else:
            self.shared.drop(key)
            self._hold(key, value)
        self._see_gone(key)
        return was_own or key in self.values or self.shared.refused != refused

    def _take_out(self, name: str) -> None:
        """Move a receiver from the index to memory, because it has a route."""
        row = self.shared.drop(name)
        for value in () if row is None else filter(None, (row.former, row.value)):
            self._hold(name, value)

    def _see_gone(self, name: str) -> None:
        if name in self.routes.removed and self.record(name) is None:
            self.gone.add(name)
        else:
            self.gone.discard(name)

    def _hold(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._drop(key)
        elif self.values.get(key) != value or key in self.problems:
            self.values[key] = value
            self._take(key, value)

    def _drop_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._drop(key)

    def _drop(self, key: str) -> None:
        self.values.pop(key, None)
        self.problems.pop(key, None)
        if key.startswith(SOURCE_PREFIX):
            self.sources.drop(key.removeprefix(SOURCE_PREFIX))
        elif is_of_route(key):
            name = self.routes.drop(key)
            self._removed.pop(name, None)
            self._see_gone(name)
        else:
            for known in (self.receivers, self._declared, self.wanted):
                known.pop(key, None)
        self._subscriptions = None

    def _take(self, key: str, value: bytes) -> None:
        try:
            self._resolve(key, value)
        except UserError as error:
            self.problems[key] = str(error)
            log_refused(key, error)
            self._put_unusable(key, value, str(error))
        else:
            self.problems.pop(key, None)
        self._subscriptions = None

    def _put_unusable(self, key: str, value: bytes, why: str) -> None:
        """Put an unusable receiver or source in effect, unless a former entry is."""
        if is_of_route(key):
            return
        if key.startswith(SOURCE_PREFIX):
            source_id = key.removeprefix(SOURCE_PREFIX)
            if self.sources.may_be_replaced_by_unusable(source_id):
                self.sources.put(unusable_source(source_id, value, why))
            return
        former, unusable = self._declared.get(key), unusable_receiver(key, value, why)
        if unusable is not None and (former is None or former.unusable is not None):
            self._declared[key] = unusable
            self._put_in_force(key)

    def _resolve(self, key: str, value: bytes) -> None:
        if is_of_route(key):
            name = self.routes.take(key, value)
            self._removed.pop(name, None)
            if name in self.routes.all():
                self._take_out(name)
            self._put_in_force(name)
            self._see_gone(name)
            return
        if key.startswith(SOURCE_PREFIX):
            source_id = key.removeprefix(SOURCE_PREFIX)
            source = source_of(source_id, value, self._environ, self._ring)
            if source.callback is not None:
                source = replace(source, callback=source.callback.pinged(self._ping_every))
            former_url = _url_of(self.sources.all().get(source_id))
            for owner in self.sources.put(source):
                self._resumed(owner)
            if former_url not in (None, _url_of(source)):
                self._moved(f"s:{source_id}")
        else:
            self.wanted[key] = wanted_lane(key, value)
            former = self._declared.get(key)
            self._declared[key] = self._made(key, value, self._environ)
            self._put_in_force(key)
            if former is not None and former.unusable is not None:
                self._resumed(f"r:{key}")
            elif former is not None and former.post.url != self._declared[key].post.url:
                self._moved(f"r:{key}")

    def _put_in_force(self, name: str) -> None:
        declared = self._declared.get(name)
        if declared is not None:
            route, declared = self.routes.all().get(name), self.proofs.applied_to(declared)
            self.receivers[name] = declared if route is None else route.applied_to(declared)

    def _shared_receiver(self, name: str, value: bytes, environ: Mapping[str, str]) -> Receiver:
        return self.proofs.applied_to(self._made(name, value, environ))

    def _made(self, name: str, value: bytes, environ: Mapping[str, str]) -> Receiver:
        found = receiver_of(name, value, environ, self._ring)
        return replace(found, post=found.post.pinged(self._ping_every))


def _url_of(source: Source | None) -> str | None:
    return None if source is None or source.callback is None else source.callback.url
