"""The receivers and sources in force: what the compacted topic `receiver_config` says, resolved for this process.

`records.py` has the format of its records, `topic_follower.py` reads them, `effective.py` resolves them, and `apply.py`
writes what a receivers file declares.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from heapq import nsmallest
from math import inf

from relay.config.encryption import NO_KEYS, KeyRing
from relay.config.receivers_file import ReceiversFile
from relay.control.effective import InForce
from relay.control.record_header import glance
from relay.control.records import SOURCE_PREFIX, Declarations, Topic
from relay.control.subscriptions import Subscriptions
from relay.control.topic_follower import Following
from relay.domain.life import NO_LIFE, Life
from relay.domain.receiver import LaneKind, Receiver, Source
from relay.domain.route import Cut, Marker, Route, is_in_shared
from relay.domain.topics import SHARED, Topics
from relay.log.port import LogReader


class Registry:
    """The receivers and sources of one process, kept up to date by `follow`.

    An entry that this process cannot use (a variable is missing, or a newer version wrote it) leaves the former one
    in force; without one, its receiver or source is `unusable`. It is listed in `problems`, by key; one of the shared
    lane says so when it is asked for (`refusal`). `ready` is set once the topic has been read to its end. `resumed`:
    called with the owner of each hold that was ended, as often as the topic says so, and of what can be used again.
    `ring`: what opens the secrets that are encrypted on the topic. `ping_every`: seconds between two pings at most.
    `moved`: called with the owner of an endpoint that has another URL, or may have.
    """

    def __init__(
        self,
        topics: Topics,
        environ: Mapping[str, str],
        resumed: Callable[[str], None] = lambda _owner: None,
        *,
        ring: KeyRing = NO_KEYS,
        ping_every: float = inf,
        moved: Callable[[str], None] = lambda _owner: None,
    ) -> None:
        self._in_force = InForce(environ, resumed, ring, ping_every, moved)
        self._following = Following(topics.receiver_config, self._in_force)
        self.ready = self._following.ready
        self.proofs = self._in_force.proofs
        """Of receivers that have to be verified."""
        self.shared = self._in_force.shared
        """Receivers in the shared lane without a route."""
        self.jobs = self._in_force.jobs
        self.keys = self._in_force.keys
        """Of the API."""
        self.problems = self._in_force.problems

    def receiver(self, name: str) -> Receiver | None:
        return self._in_force.receivers.get(name) or self.shared.receiver(name)

    def refusal(self, name: str) -> str | None:
        """Why the receiver's entry cannot be used here; a former one may be in force all the same."""
        return self.problems.get(name) or self.shared.refusal(name)

    @property
    def refused(self) -> int:
        """How many entries cannot be used here, as far as is known."""
        return len(self.problems) + self.shared.refused

    def receivers(self) -> Mapping[str, Receiver]:
        """By name, all that are not in `shared`. The mapping is live: copy it to keep it across an await."""
        return self._in_force.receivers

    def unusable_in_shared(self, most: int) -> list[str]:
        """Receivers with messages in the shared lane that cannot be used here: at most `most`."""
        own = [one.name for one in self.receivers().values() if one.unusable is not None and is_in_shared(one)]
        return [*own[:most], *self.shared.unusable(most - len(own[:most]))]

    def removed(self, name: str) -> Receiver | None:
        """The last settings of a receiver that was removed. Where a secret is not known any more it goes without."""
        return self._in_force.removed(name)

    @property
    def version(self) -> int:
        """Grows with all that is learnt."""
        return self._in_force.changes.version

    def routes(self) -> Mapping[str, Route]:
        """Of the receivers that have moved, or are about to, by name; live."""
        return self._in_force.routes.all()

    def gone(self) -> frozenset[str]:
        """Receivers that were removed, and of which something may be left."""
        return frozenset(self._in_force.gone)

    def is_declared(self, name: str) -> bool:
        return self.record(name) is not None

    def record(self, name: str) -> bytes | None:
        """What the topic says of a receiver, or of what has another key, whether or not it can be used here."""
        return self._in_force.record(name)

    def names(self, after: str, most: int, owner: str | None = None) -> list[str]:
        """Receivers that are declared, in the order of their names: the first `most` behind `after`; only those of
        `owner`, if that is given."""
        own = (key for key in self._in_force.values if ":" not in key and key > after)
        own = (key for key in own if owner is None or self.owner_of(key) == owner)
        return sorted((*sorted(own)[:most], *self.shared.names(after, most, owner)))[:most]

    def owner_of(self, name: str) -> str | None:
        """As its record says, whether or not that can be used here; None: it has none, or there is no such receiver."""
        value = self.record(name)
        seen = None if value is None else glance(value)
        return None if seen is None else seen.entry.owner

    def life_of(self, name: str) -> Life:
        """That of the receiver's name, likewise."""
        value = self.record(name)
        seen = None if value is None else glance(value)
        return NO_LIFE if seen is None else seen.life

    def source_ids(self, after: str, most: int) -> list[str]:
        """Sources that are declared, in the order of their ids: the first `most` behind `after`."""
        ids = (key.removeprefix(SOURCE_PREFIX) for key in self._in_force.values if key.startswith(SOURCE_PREFIX))
        return nsmallest(most, (each for each in ids if each > after))

    def is_gone(self, name: str) -> bool:
        return name in self._in_force.gone

    def left_lanes(self) -> frozenset[str]:
        """Receivers whose own topics are not in use any more, and may hold something."""
        left = {name for name, route in self._in_force.routes.all().items() if route.left}
        last = filter(None, map(self.removed, self.gone()))
        return frozenset(left | {receiver.name for receiver in last if receiver.lane != SHARED or receiver.moving})

    def is_outdated(self, name: str) -> bool:
        """Whether its newest route on the topic is a late one, and has to be said again as `routes` has it."""
        return name in self._in_force.routes.outdated

    def wanted_lane(self, name: str) -> tuple[LaneKind, int] | None:
        """Lane and partitions that its entry says, whether or not they are in force; None: it has no readable entry."""
        wanted = self._in_force.wanted.get(name)
        return (SHARED, 1) if wanted is None and self.shared.value(name) is not None else wanted

    def source(self, source_id: str) -> Source:
        """Its own entry, else that of `*` under this id, else a source without callback."""
        return self._in_force.sources.source(source_id)

    def sources(self) -> Mapping[str, Source]:
        """By source_id, `*` among them. The mapping is live."""
        return self._in_force.sources.all()

    @property
    def subscriptions(self) -> Subscriptions:
        return self._in_force.subscriptions

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names of the receivers that subscribe to such messages. Raises InvalidRecord where there are too many."""
        return self._in_force.subscribers.of(source_id, event_type).names

    def filtered(self, source_id: str, event_type: str | None) -> frozenset[str]:
        """Those of `subscribers` that have a filter besides. Raises InvalidRecord as that does."""
        return self._in_force.subscribers.of(source_id, event_type).filtered

    def learn(self, file: ReceiversFile) -> None:
        """Use the secrets that are written out in `file`: the topic refers to them, and does not hold them."""
        self._in_force.learn(file.sealed().literals)

    def changes(self) -> AsyncIterator[int]:
        """Yields a growing number: at once when the topic has been read, then after every change.

        Changes that come while the caller is busy are yielded as one.
        """
        return self._in_force.changes.follow(self.ready)

    def lane_changes(self) -> AsyncIterator[int]:
        """As `changes`, of those only that may make or end a lane: not of receivers in `shared`."""
        return self._in_force.lane_changes.follow(self.ready)

    def topic(self) -> Topic:
        """What the topic says, as far as it is known here; live."""
        return Topic(Declarations(self._in_force.values, self.shared.index), self._in_force.routes)

    async def reach(self, offset: int) -> None:
        """Return when all that the topic has before `offset` is known here. Raises LogUnavailable."""
        await self._following.reach(offset)

    # moves

    async def catch_up(self) -> None:
        """Return when every move that was announced before this call is known here. Raises LogUnavailable."""
        await self._following.catch_up()

    def announced(self, marker: Marker) -> bool:
        return self._in_force.routes.announced(marker)

    def is_under_way(self, marker: Marker) -> bool:
        return self._in_force.routes.is_under_way(marker)

    def cut(self, name: str, version: int, partition: int) -> int | None:
        return self._in_force.routes.cut(name, version, partition)

    def cuts(self, name: str) -> list[Cut]:
        return self._in_force.routes.cuts(name)

    def note(self, cut: Cut) -> None:
        self._in_force.routes.note(cut)

    async def follow(self, log: LogReader) -> None:
        """Read the topic, for ever. Raises LogUnavailable; then call it again: what was there stays in force."""
        await self._following.follow(log)
