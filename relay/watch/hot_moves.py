"""Hot receivers: which take more than their share of the shared lane, and how they leave it and return to it.

Each process measures what it sends itself, for the log, a metric and the heartbeats. All messages to a receiver are in
one partition of the shared lane, so one process sees all of its POSTs, and the neighbours that it delays. One process
at a time, under a lease, reads the heartbeats, and writes records on `receiver_config`. A record only says which lane a
receiver is to have: `relay/watch/lane_migration.py` moves it there, as after a change of its entry.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Literal

from relay.clock import Clock
from relay.control.records import ControlWriter
from relay.control.registry import Registry
from relay.domain.audit import AuditLine, Fact, encode_line
from relay.domain.control_key import ControlKey, encode_value
from relay.domain.errors import RelayError
from relay.domain.hot_receivers import HotLane, HotMoves, HotReceivers, MoveLimits, PostWindow, SharesSeen, is_calm
from relay.domain.own_events import Turn
from relay.domain.times import rfc3339
from relay.domain.topics import SHARED, Topics
from relay.incidents.stuck import parked_lines, stuck_lines
from relay.log.partitioner import partition_of
from relay.log.port import Log, NewRecord
from relay.state.lanes import LaneNow, read_lanes
from relay.state.port import State
from relay.state.read_model import LaneLoad
from relay.state.replies import answered
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from relay.watch.lag import LeasedTask

LEASE: Final = "hot-receivers"
LOOK_S: Final = 5.0
WHO: Final = "relay"
"""The caller in the audit."""

Why = Literal["calm", "setting"]
"""It has been calm for long; or the setting does not let hot receivers have a lane of their own any more."""

_log = get_logger("relay.moves")


@dataclass(eq=False)
class HotReceiverWatch:
    """`is_shared`: whether a receiver is in the shared lane. `moved`: those that have left it because they are hot;
    live."""

    _log = get_logger("relay.engine")

    metrics: Metrics
    topics: Topics
    is_shared: Callable[[str], bool]
    moved: Mapping[str, HotLane]
    _known: HotReceivers = field(default_factory=HotReceivers)
    _own: PostWindow = field(default_factory=PostWindow)

    def add(self, sent: Mapping[str, int]) -> None:
        """Takes the number of POSTs to each receiver since the last call."""
        self._own.add({name: posts for name, posts in sent.items() if name in self.moved})
        turns = self._known.add({name: posts for name, posts in sent.items() if posts and self.is_shared(name)})
        for turn in turns:
            facts = {"receiver": turn.receiver, "share": round(turn.share, 3), "posts": turn.posts}
            if turn.state == "hot":
                self._log.warning("receiver_hot", **facts)
            elif self.is_shared(turn.receiver):
                self._log.info("receiver_calm", **facts)
        self.metrics.hot_receiver_share.clear()
        for name, share in self._known.hot.items():
            self.metrics.hot_receiver_share.labels(name).set(share)

    def load(self, topic: str) -> LaneLoad | None:
        """The load of a lane that this process serves; None if it is not measured."""
        lane = self.topics.lane_of(topic)
        if topic != self.topics.to_receiver(lane):
            return None
        if lane == SHARED:
            return LaneLoad(self._known.posts, tuple(self._known.hot.items()))
        return LaneLoad(self._own.sums[lane]) if lane in self.moved else None


@dataclass(eq=False)
class HotReceiverMoves:
    """Moves hot receivers out of the shared lane, and back. `moves`: whether hot receivers leave the shared lane;
    otherwise those that have left it return. `publish`: called for each move; never blocks, never raises. `owner`:
    unique per process."""

    log: Log
    state: State
    topics: Topics
    registry: Registry
    clock: Clock
    metrics: Metrics
    publish: Callable[[Turn, str, float | None], None]
    _: KW_ONLY
    owner: str
    moves: bool
    limits: MoveLimits = field(default_factory=MoveLimits)
    _stuck: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._records = ControlWriter(self.log, self.topics.receiver_config, self.registry.reach)
        self._decisions = HotMoves(self.limits)

    async def run(self) -> None:
        """Runs until cancelled. Costs nothing where no receiver moves."""
        if not self.moves:
            async for _ in self.registry.changes():
                if self.registry.lanes.hot:
                    break
        leased = LeasedTask(self.state, self.clock, LEASE, self.owner)
        await leased.run(self.look, self._clear, LOOK_S)

    async def _clear(self) -> None:
        """Another process looks, and what this one has seen is outdated."""
        self._decisions = HotMoves(self.limits)
        self.metrics.hot_receivers_moved.clear()

    async def look(self) -> None:
        """One look. Raises Unavailable."""
        registry = self.registry
        await registry.catch_up()
        for name in list(registry.lanes.hot):
            if not self.moves:
                await self._return(name, "setting")
            elif not registry.is_hot(name) and not self._is_unreadable(name):
                await self._write(name, None)
        if self.moves:
            await self._decide()
        self.metrics.hot_receivers_moved.labels().set(len(registry.lanes.hot))

    def _is_unreadable(self, name: str) -> bool:
        """Whether a newer version wrote its entry, which then also decides on its lane."""
        return self.registry.wanted_lane(name) is None and self.registry.is_declared(name)

    async def _decide(self) -> None:
        seen = await self._seen()
        for name, to in self._decisions.decide(self.clock.time(), seen):
            if to == "shared":
                await self._return(name, "calm")
            else:
                await self._leave(name, seen.hot[name])

    # measurements

    async def _seen(self) -> SharesSeen:
        moved = dict(self.registry.lanes.hot)
        topics = [self.topics.to_receiver(lane) for lane in (SHARED, *moved)]
        groups = dict.fromkeys(topics, self.topics.group("to-receiver"))
        lanes = await read_lanes(self.log, self.state, self.topics, groups)
        shared = [lane for lane in lanes if lane.receiver is None]
        calm = [name for name in moved if await self._is_calm(name, lanes, shared)]
        return SharesSeen(await self._hot(shared), moved, frozenset(calm))

    async def _hot(self, shared: Sequence[LaneNow]) -> dict[str, float]:
        """The hot receivers that could leave. One with a message that fails again and again could not: all others
        would have to wait for that message before the lane of its own begins."""
        loads = filter(None, map(_load, shared))
        hot = {name: share for load in loads for name, share in load.hot if self._may_leave(name)}
        if not hot:
            self._stuck = frozenset()
            return {}
        places = {partition_of(name.encode(), len(shared)) for name in hot}
        theirs = [lane for lane in shared if lane.key.partition in places]
        parked = await parked_lines(self.log, self.state, theirs)
        stuck = frozenset({line.receiver for line in await stuck_lines(self.state, theirs, parked.heads)} & hot.keys())
        for name in sorted(stuck - self._stuck):
            _log.warning("hot_receiver_waits", receiver=name, share=round(hot[name], 3))
        self._stuck = stuck
        return {name: share for name, share in hot.items() if name not in stuck}

    def _may_leave(self, name: str) -> bool:
        found, wanted = self.registry.receiver(name), self.registry.wanted_lane(name)
        is_there = found is not None and found.lane == SHARED and not found.moving
        return is_there and wanted is not None and wanted[0] == SHARED

    async def _is_calm(self, name: str, lanes: Sequence[LaneNow], shared: Sequence[LaneNow]) -> bool:
        """Whether it would be calm where it came from, by all that it has to send, beside those that are there now.
        False if that is not known, or if a retry is parked, for which the shared lane would have to wait."""
        own = [lane for lane in lanes if lane.receiver == name]
        place = partition_of(name.encode(), len(shared))
        neighbours = next(
            (load.posts for lane in shared if lane.key.partition == place and (load := _load(lane))), None
        )
        posts = {lane.process: load.posts for lane in own if (load := _load(lane))}
        if not posts or neighbours is None or not all(lane.served for lane in own):
            return False
        [parked] = await answered(self.state.parked([f"r:{name}"]))
        due = sum(posts.values()) + sum(lane.lag for lane in own)
        return not parked.retries and is_calm(due, due + neighbours)

    # records

    async def _leave(self, name: str, share: float) -> None:
        record = HotLane(self.clock.time(), share)
        await self._write(name, encode_value(record))
        facts: dict[str, Fact] = {"share": round(share, 3), "others": len(self.registry.lanes.hot) - 1}
        _log.warning("receiver_moved", receiver=name, **facts)
        await self._report("receiver.moved", name, facts)

    async def _return(self, name: str, why: Why) -> None:
        await self._write(name, None)
        _log.info("receiver_returned", receiver=name, why=why)
        await self._report("receiver.returned", name, {"why": why})

    async def _write(self, name: str, value: bytes | None) -> None:
        await self._records.write((ControlKey("hot", name), value))

    async def _report(self, what: Turn, name: str, facts: dict[str, Fact]) -> None:
        now = self.clock.time()
        self.publish(what, name, now)
        line = AuditLine(secrets.token_hex(8), rfc3339(now) or "", WHO, None, what, name, None, "done", None, facts)
        try:
            await self.log.append([NewRecord(self.topics.audit, WHO.encode(), encode_line(line))])
        except RelayError as error:  # its own log has it, and the move goes on
            _log.error("audit_line_not_on_the_log", line=line.id, why=str(error))


def _load(lane: LaneNow) -> LaneLoad | None:
    return lane.recent.load if lane.recent is not None else None
