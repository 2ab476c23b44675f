"""Entries in effect: the records of `receiver_config` read so far, resolved for this process.

Sources, routes, and receivers with a lane of their own or a route are in memory, resolved. All other receivers are in
the shared lane and may be millions: `shared_receivers.py` keeps them in a file and resolves them on demand.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from relay.config.encryption import KeyRing
from relay.control.keys import ApiKeys
from relay.control.projections import ErasureIndex, EventTypeIndex, Jobs
from relay.control.records import ORIGIN, Changes, key_of
from relay.control.resolve import (
    EffectiveSources,
    last_settings,
    receiver_of,
    source_of,
    unusable_receiver,
    unusable_source,
    wanted_lane,
)
from relay.control.routes import LaneRoutes
from relay.control.shared_index import Loading, record_header
from relay.control.shared_receivers import SharedReceivers, log_refused
from relay.control.subscriptions import KEPT, MAX_MATCHES, Subscribed, Subscriptions, too_many
from relay.control.verification_results import VerificationResults
from relay.domain.control_key import JOBS, KEYS, ROUTES, ControlKey, Kind, control_key
from relay.domain.errors import UserError
from relay.domain.receiver import LaneKind, Receiver, Source
from relay.log.port import Record

_REMEMBERED: Final[frozenset[Kind]] = JOBS | KEYS | {"event-type", "erasure"}
"""Kinds of records whose keys are in memory, to notice which ones a new read no longer finds."""


@dataclass(eq=False, repr=False)
class InForce:
    """Updated record by record by `Following` in `registry.py`. If this process cannot use an entry, the former
    one stays in effect, and the error is in `problems`, by key; without a former one, the receiver or source is
    `unusable`. `resumed`: called with the owner of each ended hold, and of each entry that is usable again; `moved`:
    with the owner of each endpoint whose URL has changed, or may have. `ring`: decrypts the secrets on the topic.
    `origins`: names that stand for origins: an entry of such a name has no effect."""

    environ: dict[str, str]
    resumed: Callable[[str], None]
    ring: KeyRing
    ping_every: float
    moved: Callable[[str], None]
    origins: Collection[str] = ()

    def __post_init__(self) -> None:
        self.values: dict[str, bytes] = {}
        """The newest record of each entry in memory, by key."""
        self.receivers: dict[str, Receiver] = {}
        self._declared: dict[str, Receiver] = {}  # in the lane that its entry names, not the one in effect
        self.wanted: dict[str, tuple[LaneKind, int]] = {}
        """Lane and partitions in a receiver's entry, whether or not they are in effect."""
        self.routes = LaneRoutes()
        self._removed: dict[str, Receiver] = {}
        self.gone: set[str] = set()
        """Removed receivers that may have records left."""
        self.verifications = VerificationResults()
        self.shared = SharedReceivers(self._shared_receiver, self.environ, self.ring, self.resumed, self.moved)
        self.jobs = Jobs()
        self.keys = ApiKeys()
        self.event_types = EventTypeIndex()
        self.erasures = ErasureIndex()
        self.sources = EffectiveSources()
        self._subscriptions: Subscriptions | None = None
        self.subscribers = lru_cache(KEPT)(self._find_subscribers)
        """The subscribers of a message, by source and event type. Raises InvalidRecord if there are too many."""
        self._projections: Mapping[Kind, Callable[[ControlKey, Record], None]] = {
            **dict.fromkeys(JOBS, self.jobs.take),
            **dict.fromkeys(KEYS, self.keys.take),
            "event-type": self.event_types.take,
            "erasure": self.erasures.take,
            "hold": self._take_hold,
            "verification": self._take_verification,
        }
        """Kinds of records that are no entries or routes, and what takes them."""
        self._projected: set[ControlKey] = set()
        """The keys of such records of a kind in _REMEMBERED that have a value."""
        self.changes = Changes()
        self.lane_changes = Changes()
        """Those of `changes` that may start or end a lane, or move it to another process."""
        self.problems: dict[str, str] = {}

    # queries, for `Registry`

    def receiver(self, name: str) -> Receiver | None:
        return self.receivers.get(name) or self.shared.receiver(name)

    def record(self, name: str) -> bytes | None:
        """The newest record of a receiver, or of another key, whether or not it can be used here."""
        return self.values.get(name) or self.shared.value(name)

    def removed(self, name: str) -> Receiver | None:
        """The last settings of a removed receiver, without secrets that are no longer known."""
        if name not in self.gone:
            return None
        known = self._removed.get(name)
        if known is None and (last := self.routes.removed.get(name)) is not None:
            try:
                known = self.routes.route(name).applied_to(last_settings(name, last, self.environ, self.ring))
                known = self.verifications.applied_to(known)
            except UserError:
                return None  # a newer version wrote it
            self._removed[name] = known
        return known

    @property
    def subscriptions(self) -> Subscriptions:
        if self._subscriptions is None:
            self._subscriptions = Subscriptions(self.receivers.values())
        return self._subscriptions

    def _find_subscribers(self, source_id: str, event_type: str | None) -> Subscribed:
        own = self.subscriptions.match(source_id, event_type)
        shared = self.shared.matching(source_id, event_type or "", MAX_MATCHES + 1)
        if len(own) + len(shared) > MAX_MATCHES:
            raise too_many(f"at least {len(own) + len(shared)}")
        names = tuple(sorted((*own, *shared)))
        found = [self.receiver(name) for name in names]
        return Subscribed(names, frozenset(one.name for one in found if one is not None and one.filter is not None))

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Add secrets to which entries may refer."""
        self.environ.update(secrets)
        self._removed.clear()
        for text in list(self.problems):
            self._take(control_key(text), self.values[text])
        self.shared.learned()
        self.announce()

    # updates

    def take(self, record: Record) -> None:
        """Take a new record."""
        if (key := key_of(record)) is None:
            return
        if not self._project(key, record):
            self.announce(lanes=self._apply(record, key))

    def _project(self, key: ControlKey, record: Record) -> bool:
        """Take a record that is no entry or route; False if it is one."""
        project = self._projections.get(key.kind)
        if project is None:
            return False
        if key.kind in _REMEMBERED:
            (self._projected.discard if record.value is None else self._projected.add)(key)
        project(key, record)
        return True

    def take_routes(self, records: Sequence[Record]) -> None:
        """Take only the routes among records that `take` gets later. Tombstones are left to it: what they end, and what
        begins instead, are records of several kinds."""
        for record in records:
            key = key_of(record)
            # that of a hot receiver has no rank, by which an outdated one would be ignored
            if key is not None and key.kind in ROUTES - {"hot"} and record.value is not None:
                self.announce(lanes=self._apply(record, key))

    async def load(self, records: AsyncIterator[Record | None], end: int) -> int:
        """Replace all known entries with the current records, at least all before `end`. Returns the offset before
        which all records are taken. Entries in memory change record by record; receivers in the shared lane once all
        has been read, until when the former ones are in effect."""
        self.verifications.begin()
        # a tombstone written between two calls may have been compacted; behind others, `take_routes` may have come
        unseen, unseen_projected = set(self.values), set(self._projected)
        moved = set[str]()
        loading = Loading()
        async for record in records:
            if record is None:
                break
            if record.offset >= end:
                end = record.offset + 1
            if (key := key_of(record)) is None:
                continue
            if self._project(key, record):
                unseen_projected.discard(key)
                continue
            (unseen.add if record.value is None else unseen.discard)(key.text)
            if self._take_first(loading, record, key) and key.text in self.values:
                moved.add(key.text)
            if loading.is_due:
                await loading.write()
        self.verifications.finish()
        for key in unseen_projected:
            self._project(key, Record(ORIGIN, 0, -1, key.encode(), None, (), 0))
        self.keys.known = True
        index = await loading.sealed()
        for text in unseen:
            self._drop(control_key(text))
        self.shared.replace(index)
        for name in moved - self.routes.all().keys():
            if self.shared.value(name) is not None:
                self._drop(control_key(name))
        for name in self.routes.all():
            self._take_out(name)
        self.gone = {name for name in self.routes.removed if self.record(name) is None}
        return end

    def _take_first(self, loading: Loading, record: Record, key: ControlKey) -> bool:
        """Take a record while loading; returns whether it is of a receiver in the shared lane."""
        value = record.value
        if ":" in key.text:
            self._apply(record, key)
            return False
        seen = None if value is None else record_header(value)
        self.verifications.declared(key.id, seen)
        if value is not None and seen is not None and seen.is_shared:
            loading.rows.append(self.shared.loaded(record.offset, key.id, value, seen))
            return True
        loading.gone.append((record.offset, key.id))
        self._hold(key, value)
        return False

    def _take_hold(self, key: ControlKey, record: Record) -> None:
        """The lanes read the beginning of a hold from the state."""
        if record.value is None:
            self.resumed(key.id)

    def _take_verification(self, key: ControlKey, record: Record) -> None:
        name = key.id
        proved = self.verifications.take(name, record)
        self._removed.pop(name, None)
        self.shared.forget(name)
        self._put_in_force(name)
        if proved:
            self.resumed(f"r:{name}")
        self.changes.notify()

    def announce(self, *, lanes: bool = True) -> None:
        """Notify waiting tasks of changes, as after a load."""
        self.subscribers.cache_clear()
        self.changes.notify()
        if lanes:
            self.lane_changes.notify()

    def _apply(self, record: Record, key: ControlKey) -> bool:
        """Apply the record of an entry or route; returns whether it may start or end a lane, or move it to another
        process."""
        value = record.value
        if key.kind != "receiver":
            self._hold(key, value)
            return True
        name = key.id
        seen = None if value is None else record_header(value)
        self.verifications.declared(name, seen)
        was_own = name in self.values
        refused = self.shared.refused
        is_shared = seen.is_shared if seen else not was_own and self.shared.value(name) is not None
        if value is not None and is_shared and name not in self.routes.all():
            self._drop(key)
            self.shared.put(record.offset, name, value, seen)
        else:
            self.shared.drop(name)
            self._hold(key, value)
        self._see_gone(name)
        return was_own or name in self.values or self.shared.refused != refused

    def _take_out(self, name: str) -> None:
        """Move a receiver from the index to memory, because it has a route."""
        row = self.shared.drop(name)
        for value in () if row is None else filter(None, (row.former, row.value)):
            self._hold(control_key(name), value)

    def _see_gone(self, name: str) -> None:
        if name in self.routes.removed and self.record(name) is None:
            self.gone.add(name)
        else:
            self.gone.discard(name)

    def _hold(self, key: ControlKey, value: bytes | None) -> None:
        if value is None:
            self._drop(key)
        elif self.values.get(key.text) != value or key.text in self.problems:
            self.values[key.text] = value
            self._take(key, value)

    def _drop(self, key: ControlKey) -> None:
        self.values.pop(key.text, None)
        self.problems.pop(key.text, None)
        if key.kind == "source":
            self.sources.drop(key.id)
        elif key.kind in ROUTES:
            name = self.routes.drop(key)
            self._removed.pop(name, None)
            self._see_gone(name)
        else:
            for known in (self.receivers, self._declared, self.wanted):
                known.pop(key.id, None)
        self._subscriptions = None

    def _take(self, key: ControlKey, value: bytes) -> None:
        try:
            self._resolve(key, value)
        except UserError as error:
            self.problems[key.text] = str(error)
            log_refused(key.text, error)
            self._put_unusable(key, value, str(error))
        else:
            self.problems.pop(key.text, None)
        self._subscriptions = None

    def _put_unusable(self, key: ControlKey, value: bytes, why: str) -> None:
        """Put an unusable receiver or source in effect, unless a former entry is."""
        if key.kind in ROUTES:
            return
        if key.kind == "source":
            if self.sources.may_be_replaced_by_unusable(key.id):
                self.sources.put(unusable_source(key.id, value, why))
            return
        former, unusable = self._declared.get(key.id), unusable_receiver(key.id, value, why)
        if unusable is not None and (former is None or former.unusable is not None):
            self._declared[key.id] = unusable
            self._put_in_force(key.id)

    def _resolve(self, key: ControlKey, value: bytes) -> None:
        if key.kind in ROUTES:
            name = self.routes.take(key, value)
            self._removed.pop(name, None)
            if name in self.routes.all():
                self._take_out(name)
            self._put_in_force(name)
            self._see_gone(name)
            return
        if key.kind == "source":
            source_id = key.id
            source = source_of(source_id, value, self.environ, self.ring)
            if source.callback is not None:
                source = replace(source, callback=source.callback.pinged(self.ping_every))
            former_url = _url_of(self.sources.all().get(source_id))
            for owner in self.sources.put(source):
                self.resumed(owner)
            if former_url not in (None, _url_of(source)):
                self.moved(f"s:{source_id}")
        else:
            name = key.id
            self.wanted[name] = wanted_lane(name, value)
            former = self._declared.get(name)
            self._declared[name] = self._made(name, value, self.environ)
            self._put_in_force(name)
            if former is not None and former.unusable is not None:
                self.resumed(f"r:{name}")
            elif former is not None and former.post.url != self._declared[name].post.url:
                self.moved(f"r:{name}")

    def _put_in_force(self, name: str) -> None:
        declared = self._declared.get(name)
        if declared is not None and name not in self.origins:
            route, declared = self.routes.all().get(name), self.verifications.applied_to(declared)
            self.receivers[name] = declared if route is None else route.applied_to(declared)

    def _shared_receiver(self, name: str, value: bytes, environ: Mapping[str, str]) -> Receiver:
        return self.verifications.applied_to(self._made(name, value, environ))

    def _made(self, name: str, value: bytes, environ: Mapping[str, str]) -> Receiver:
        found = receiver_of(name, value, environ, self.ring)
        return replace(found, post=found.post.pinged(self.ping_every))


def _url_of(source: Source | None) -> str | None:
    return None if source is None or source.callback is None else source.callback.url
