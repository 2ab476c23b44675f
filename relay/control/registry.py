"""Registry of the receivers and sources in effect: the compacted topic `receiver_config`, resolved for this process.

`records.py` has the format of its records, `Following` reads them, `effective.py` resolves them, and `apply.py` writes
the entries of a receivers file.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from math import inf
from typing import Final

from relay.config.encryption import NO_KEYS, KeyRing
from relay.config.receivers_file import ReceiversFile
from relay.control.effective import InForce
from relay.control.records import Changes, Declarations, Topic
from relay.control.shared_index import AT_ONCE, IndexBroken, record_header
from relay.domain.control_key import control_key
from relay.domain.errors import LogUnavailable, OffsetMissing
from relay.domain.receiver import NO_LIFE, LaneKind, Life, Receiver, SeenTopic, Source
from relay.domain.recipients import receiver_of
from relay.domain.route import LaneRoute, is_in_shared
from relay.domain.topics import SHARED, Topics
from relay.log.port import LogReader, Record, TopicPartition

RESUMED_S: Final = 6 * 3600.0
"""After an interruption of at most this long, reading continues at its position: tombstones stay on a log for a day."""


class Following:
    """Reads `topic` and passes its records to `in_force`. `ready` is set once the topic has been read to its end,
    `read_anew` each time that it has been read once more from its beginning."""

    def __init__(self, topic: str, in_force: InForce) -> None:
        self._topic = topic
        self._in_force = in_force
        self._log: LogReader | None = None
        self._routes_to = 0  # all routes before this offset are known here
        self._position: int | None = None  # all records before this offset are taken; None before the first load
        self._left_at = 0.0  # when reading was interrupted, on the event loop's clock
        self._reads = 0
        self._reading = asyncio.Lock()
        self._taken = Changes()
        self.ready = asyncio.Event()
        self.read_anew = asyncio.Event()

    async def follow(self, log: LogReader) -> None:
        """Read the topic; never returns. Raises LogUnavailable; then call it again: the entries stay in effect."""
        lately = asyncio.get_running_loop().time() - self._left_at < RESUMED_S
        start = self._position if lately and log is self._log else None
        self._log = log
        try:
            if start is None:
                await self._follow_anew(log)
            else:
                await self._continue(log.follow(self._topic, start=start), in_touch=False)
        except (OffsetMissing, IndexBroken) as error:
            self._position = None
            raise LogUnavailable(f"{self._topic} has to be read again from its beginning: {error}") from error

    async def reach(self, offset: int) -> None:
        """Return once this process has read the topic up to `offset`. Raises LogUnavailable."""
        await self.ready.wait()
        newest, log = 0, self._log
        if log is not None and self._position is not None and self._position < offset:
            async for records in log.scan(self._topic, 0, start=self._position, end=offset):
                newest = records[-1].offset + 1 if records else newest  # the rest may have been compacted
        async for _ in self._taken.follow():
            if self._position is not None and self._position >= newest:
                return

    async def catch_up(self) -> None:
        """Return once every move announced before this call is known here. Raises LogUnavailable."""
        reads_before = self._reads
        async with self._reading:
            if self._reads == reads_before:  # else another call has started a read since
                self._reads += 1
                await self._read_routes()

    async def present_topic(self, topic: str) -> SeenTopic:
        """As `Moves` says; as of the last `catch_up`."""
        if self._log is None:
            raise LogUnavailable(f"{self._topic} is not read yet")
        end = self._routes_to
        return SeenTopic(await self._log.topic_id(topic), end)

    async def _read_routes(self) -> None:
        if self._log is None:
            raise LogUnavailable(f"{self._topic} is not read yet")
        [end] = (await self._log.ends([TopicPartition(self._topic, 0)])).values()
        if self._routes_to > end:  # the topic was recreated
            self._routes_to = 0
        if self._routes_to == end:
            return
        async for records in self._log.scan(self._topic, 0, start=self._routes_to, end=end):
            # `follow` may have taken some meanwhile, and tombstones behind them
            self._in_force.take_routes([each for each in records if each.offset >= self._routes_to])
        self._routes_to = max(self._routes_to, end)

    async def _follow_anew(self, log: LogReader) -> None:
        self._position = None
        # A read from the beginning may not return tombstones at the end, so the end is read first.
        [there] = (await log.ends([TopicPartition(self._topic, 0)])).values()
        records = log.follow(self._topic)
        self._reached(await self._in_force.load(records, there))
        if self.ready.is_set():
            self.read_anew.set()
        self.ready.set()
        self._in_force.announce()
        await self._continue(records, in_touch=True)

    async def _continue(self, records: AsyncIterator[Record | None], *, in_touch: bool) -> None:
        """Take records. `in_touch`: all records that the topic had when `records` started have been taken."""
        taken = 0
        try:
            async for record in records:
                if record is None:
                    in_touch = True
                    continue
                self._in_force.take(record)
                self._reached(record.offset + 1)
                taken += 1
                if taken % AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            if in_touch:
                self._left_at = asyncio.get_running_loop().time()

    def _reached(self, position: int) -> None:
        self._position = position
        self._routes_to = max(self._routes_to, position)
        self._taken.notify()


class Registry:
    """The receivers and sources of one process, kept up to date by `follow`.

    If this process cannot use an entry (a variable is missing, or a newer version wrote it), the former one stays in
    effect; without one, its receiver or source is `unusable`. The reason is in `problems`, by key; for receivers of the
    shared lane, `refusal` gives it on demand. `ready` is set once the topic has been read to its end. `resumed`: called
    with the owner of each ended hold, once per record, and of each entry that is usable again. `ring`: decrypts the
    secrets on the topic. `ping_every`: upper limit of the seconds between two pings. `moved`: called with the owner of
    an endpoint whose URL has changed, or may have. `origins`: those for which receivers stand, without entries.
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
        origins: Sequence[str] = (),
    ) -> None:
        self.of_origins = {each.name: each for each in map(receiver_of, origins)}
        """Receivers that stand for origins. An entry of such a name has no effect."""
        self._in_force = InForce(dict(environ), resumed, ring, ping_every, moved, self.of_origins)
        following = Following(topics.receiver_config, self._in_force)
        self.ready, self.follow = following.ready, following.follow
        self.read_anew = following.read_anew
        """The topic was read again from its beginning, as it may have lost records."""
        self.reach, self.catch_up, self.present_topic = following.reach, following.catch_up, following.present_topic
        self.record, self.removed = self._in_force.record, self._in_force.removed
        self.verifications = self._in_force.verifications
        """Verification results of receivers."""
        self.shared = self._in_force.shared
        """Receivers in the shared lane without a route."""
        self.jobs = self._in_force.jobs
        self.keys = self._in_force.keys
        """API keys."""
        self.event_types = self._in_force.event_types
        self.lanes = self._in_force.routes
        """The lanes of receivers: their routes and moves, removed and hot receivers."""
        self.announced, self.is_in_progress = self.lanes.announced, self.lanes.is_in_progress
        self.cut, self.note = self.lanes.cut, self.lanes.note
        self.erasures = self._in_force.erasures
        self.source = self._in_force.sources.source  # not a method: called several times per message
        self.problems = self._in_force.problems

    def receiver(self, name: str) -> Receiver | None:
        return self._in_force.receivers.get(name) or self.of_origins.get(name) or self.shared.receiver(name)

    def refusal(self, name: str) -> str | None:
        """Why the receiver's newest entry cannot be used here; a former one may still be in effect."""
        return self.problems.get(name) or self.shared.refusal(name)

    @property
    def refused(self) -> int:
        """Number of entries known to be unusable here."""
        return len(self.problems) + self.shared.refused

    def receivers(self) -> Mapping[str, Receiver]:
        """All receivers except those in `shared`, by name. The mapping is live: copy it to keep it across an await."""
        return self._in_force.receivers

    def unusable_in_shared(self, most: int) -> list[str]:
        """Unusable receivers with messages in the shared lane, at most `most`."""
        own = [one.name for one in self.receivers().values() if one.unusable is not None and is_in_shared(one)]
        return [*own[:most], *self.shared.index.unusable(most - len(own[:most]))]

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._in_force.changes.version

    def gone(self) -> frozenset[str]:
        """Removed receivers that may have records left."""
        return frozenset(self._in_force.gone)

    def is_declared(self, name: str) -> bool:
        return self.record(name) is not None

    def names(self, after: str, most: int, owner: str | None = None) -> list[str]:
        """Names of declared receivers in order: the first `most` after `after`, only those of `owner` if it is
        given."""
        own: Iterable[str] = [key for key in self._in_force.values if key > after and ":" not in key]
        if owner is not None:
            own = (key for key in own if self.owner_of(key) == owner)
        return sorted((*nsmallest(most, own), *self.shared.index.names(after, most, owner)))[:most]

    def owner_of(self, name: str) -> str | None:
        """The owner in the receiver's record, whether or not it can be used here; None if it has none, or is not
        declared."""
        value = self.record(name)
        seen = None if value is None else record_header(value)
        return None if seen is None else seen.entry.owner

    def life_of(self, name: str) -> Life:
        """The current life of the receiver's name, likewise."""
        value = self.record(name)
        seen = None if value is None else record_header(value)
        return NO_LIFE if seen is None else seen.life

    def source_ids(self, after: str, most: int) -> list[str]:
        """Ids of declared sources in order: the first `most` after `after`."""
        keys = map(control_key, self._in_force.values)
        return nsmallest(most, (key.id for key in keys if key.kind == "source" and key.id > after))

    def is_gone(self, name: str) -> bool:
        return name in self._in_force.gone

    def left_lanes(self) -> frozenset[str]:
        """Receivers whose own topics are no longer in use but may still hold records."""
        left = {name for name, route in self.lanes.all().items() if route.left}
        last = filter(None, map(self.removed, self.gone()))
        return frozenset(left | {receiver.name for receiver in last if receiver.lane != SHARED or receiver.moving})

    def wanted_lane(self, name: str) -> tuple[LaneKind, int] | None:
        """Lane and partitions that it is to have, whether or not they are in effect; None without a readable entry."""
        wanted = self._entry_lane(name)
        return None if wanted is None else self.lanes.wanted(name, *wanted)

    def _entry_lane(self, name: str) -> tuple[LaneKind, int] | None:
        wanted = self._in_force.wanted.get(name)
        return (SHARED, 1) if wanted is None and self.shared.value(name) is not None else wanted

    def route(self, name: str) -> LaneRoute:
        """The route from which it moves."""
        wanted = self._entry_lane(name)
        return self.lanes.current(name, None if wanted is None else wanted[0])

    def is_hot(self, name: str) -> bool:
        """Whether the receiver is to have a lane of its own only because it is hot."""
        wanted = self._entry_lane(name) if name in self.lanes.hot else None
        return wanted is not None and wanted[0] == SHARED

    def sources(self) -> Mapping[str, Source]:
        """All sources by source_id, including `*`. The mapping is live."""
        return self._in_force.sources.all()

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        """Names of the receivers that subscribe to such messages. Raises InvalidRecord if there are too many."""
        return self._in_force.subscribers(source_id, event_type).names

    def filtered(self, source_id: str, event_type: str | None) -> frozenset[str]:
        """Those of `subscribers` that also have a filter. Raises InvalidRecord like `subscribers`."""
        return self._in_force.subscribers(source_id, event_type).filtered

    def learn(self, file: ReceiversFile) -> None:
        """Use the literal secrets in `file`, which the topic only refers to."""
        self._in_force.learn(file.sealed.literals)

    def changes(self) -> AsyncIterator[int]:
        """Yields an increasing number: once the topic has been read, then after every change.

        Several changes while the caller is busy are yielded as one.
        """
        return self._in_force.changes.follow(self.ready)

    def lane_changes(self) -> AsyncIterator[int]:
        """As `changes`, only for changes that may start or end a lane: not for receivers in `shared`."""
        return self._in_force.lane_changes.follow(self.ready)

    def topic(self) -> Topic:
        """The content of the topic read so far; live."""
        return Topic(Declarations(self._in_force.values, self.shared.index), self._in_force.routes)
