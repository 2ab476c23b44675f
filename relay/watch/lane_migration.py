"""Moves receivers between lanes step by step (`relay/domain/route.py`), and cleans up after removed receivers.

One process at a time, under a lease; each step is a record on `receiver_config`, from which another process continues.
"""

import secrets
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import count
from math import inf
from typing import Final, NamedTuple

from relay.clock import Clock
from relay.control.registry import Registry
from relay.domain.control_key import ControlKey, encode_value
from relay.domain.errors import NotYet, Unavailable, UserError
from relay.domain.receiver import LaneKind
from relay.domain.route import LaneRoute, Marker, cut_key, former_lane, next_move
from relay.domain.topics import SHARED, Topics
from relay.log.partitioner import partition_of
from relay.log.port import Backlog, Log, NewRecord
from relay.recovery.unfinished import RemainingRecords, is_parked_in_order, unfinished
from relay.state.lease import LEASE_S, keeping_lease
from relay.state.port import Lane, State
from relay.state.replies import answered
from relay.state.rows import tag_of
from relay.telemetry.logging import get_logger

LEASE: Final = "moves"
LOOK_S: Final = 1.0
MARK_AGAIN_S: Final = 300.0
SEARCH_SHARE: Final = 9.0
"""After a search through all parked records, no search is made for this many times its duration."""
ROOM: Final = 25_000
"""Most unfinished messages with which a receiver may begin to get more partitions: while its lane finishes them, new
messages gather in the shared lane, up to `parked_per_receiver` (100,000)."""

FIRST_SWEEP_S: Final = 300.0
SWEEPS_AT_ONCE: Final = 100

_log = get_logger("relay.moves")


class _Move(NamedTuple):
    name: str
    version: int


@dataclass(eq=False)
class LaneMigration:
    """One per process. `owner`: unique per process. `room`: see ROOM."""

    log: Log
    state: State
    topics: Topics
    registry: Registry
    clock: Clock
    _: KW_ONLY
    owner: str
    room: int = ROOM
    _marked: dict[_Move, dict[int, float]] = field(default_factory=dict)  # when, by partition
    _remaining: dict[_Move, RemainingRecords] = field(default_factory=dict)
    _search_at: float = -inf
    _at_rest: int | None = None  # the registry's version in which no receiver has a pending step
    _refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sweeps = Sweeps(self.clock)

    async def run(self) -> None:
        """Runs until cancelled. While log or state are unavailable nothing moves; other parts report that."""
        while True:
            try:
                if self._is_due() and await self.state.lease(LEASE, self.owner, LEASE_S):
                    async with keeping_lease(self.state, self.clock, LEASE, self.owner):
                        await self.look()
            except (Unavailable, NotYet) as error:
                _log.debug("moves_wait", error=str(error))
            await self.clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Take all steps that are possible now of each receiver's move, independently of others. Raises Unavailable and
        NotYet when another process has taken the lease."""
        await self.registry.catch_up()
        self._sweeps.begin()
        for name, route in self._all():
            try:
                await self._look_at(name, route)
            except Unavailable as error:
                _log.debug("move_waits", receiver=name, error=str(error))
            except UserError as error:
                if self._refused.get(name) != str(error):
                    self._refused[name] = str(error)
                    _log.error("move_refused", receiver=name, problem=str(error))

    async def _look_at(self, name: str, route: LaneRoute) -> None:
        task = self._task(name, route)
        if task is not None:
            self._sweeps.forget(name)
            await task(name, route)
        elif self._lane(name, route) != "dedicated" and self._sweeps.takes(name, route):
            await self._sweep(name, route)

    def _all(self) -> list[tuple[str, LaneRoute]]:
        registry = self.registry
        names = (registry.lanes.all().keys() | registry.gone() | registry.lanes.hot.keys()) - registry.lanes.unreadable
        return [(name, registry.route(name)) for name in sorted(names)]

    def _is_due(self) -> bool:
        version = self.registry.version
        if self._at_rest != version:
            if any(self._task(name, route) for name, route in self._all()):
                return True
            self._at_rest = version
            return True  # once for those whose lanes may have to be swept from now on
        return self._sweeps.is_due()

    def _lane(self, name: str, route: LaneRoute) -> LaneKind | None:
        """The kind in effect, if any."""
        wanted = self.registry.wanted_lane(name)
        return None if wanted is None else route.lane or wanted[0]

    def _task(self, name: str, route: LaneRoute) -> Callable[[str, LaneRoute], Awaitable[None]] | None:
        if name in self.registry.lanes.outdated:
            return self._publish
        wanted = self.registry.wanted_lane(name)
        if wanted is None:
            if self.registry.is_declared(name):  # by a newer version, which handles it
                return None
            return self._end_removal if route.left or self.registry.is_gone(name) else None
        if route.moving:
            return self._continue
        if next_move(route, *wanted) is not None:
            return self._announce
        return self._leave if route.left and self._lane(name, route) != "dedicated" else None

    # moves

    async def _announce(self, name: str, route: LaneRoute) -> None:
        wanted = self.registry.wanted_lane(name)
        following = None if wanted is None else next_move(route, *wanted)
        if wanted is None or following is None:
            return
        lane, partitions = following
        if lane == "dedicated" and self.registry.is_hot(name):
            sizes = await self.log.describe(list(self.topics.lane_groups(name)))  # it may have had them before
            partitions = max([partitions, *(each.spec.partitions for each in sizes.values())])
        if lane == "dedicated" and not await self._has_grown(name, route, partitions):
            return
        if lane != wanted[0] and await self._backlog(name) > self.room:
            return
        left = route.left or route.lane == "dedicated"
        move = replace(
            route,
            version=route.version + 1,
            lane=lane,
            partitions=partitions,
            moving=True,
            token=secrets.token_hex(8),
            left=left,
        )
        await self._publish(name, move)
        _log.info("move_begun", receiver=name, to=lane, version=move.version)

    async def _has_grown(self, name: str, route: LaneRoute, partitions: int) -> bool:
        """Whether its own topics have that many partitions; if not, they get them once no process reads them."""
        groups = self.topics.lane_groups(name)
        there = await self.log.describe(list(groups))
        small = [topic for topic, state in there.items() if state.spec.partitions < partitions]
        if small and route.left:
            await self._leave(name, route)
            return False
        for topic in small:
            await self.log.grow(topic, partitions)
        await self.log.create(self.topics.lane_specs(name, partitions), groups)
        return True

    async def _backlog(self, name: str) -> int:
        """The unfinished messages of the receiver's own lane, without those that wait for an answer."""
        backlogs = await self._backlogs(name, self.topics.to_receiver(name))
        [counts] = await answered(self.state.parked([f"r:{name}"]))
        return sum(each.end - each.position for each in backlogs) + counts.retries

    async def _continue(self, name: str, route: LaneRoute) -> None:
        move = _Move(name, route.version)
        topic = self.topics.from_sender
        backlogs = await self.log.backlogs({topic: self.topics.fixed_groups()[topic]})
        cuts = {b.partition.partition: self.registry.cut(name, route.version, b.partition.partition) for b in backlogs}
        if missing := [partition for partition, cut in cuts.items() if cut is None]:
            await self._mark(move, route, missing, len(backlogs))
        elif all(_is_behind(each, cuts[each.partition.partition]) for each in backlogs) and await self._is_finished(
            move
        ):
            await self._settle(move, route, sorted(cuts))

    async def _mark(self, move: _Move, route: LaneRoute, partitions: Sequence[int], of: int) -> None:
        """A marker that a worker of an older version has read has no effect: another one does no harm."""
        marked, now = self._marked.setdefault(move, {}), self.clock.monotonic()
        marker = Marker(move.name, move.version, route.token)
        for partition in partitions:
            if now - marked.get(partition, -inf) >= MARK_AGAIN_S:
                key = _key_for(partition, of)
                await self.log.append([NewRecord(self.topics.from_sender, key, b"", marker.headers())])
                marked[partition] = now

    async def _is_finished(self, move: _Move) -> bool:
        """Whether its former lane holds nothing any more for which later messages wait: everything that could enter it
        has arrived."""
        route = self.registry.lanes.all()[move.name]
        if former_lane(move.name, route.lane) != SHARED:
            topic = self.topics.to_receiver(move.name)
            if not _are_read(await self._backlogs(move.name, topic)):
                return False
        else:
            topic = self.topics.to_receiver(SHARED)
            remaining = self._remaining.get(move)
            if remaining is None:
                remaining = self._remaining[move] = await RemainingRecords.begun(self.log, self.topics, move.name)
            if not await remaining.are_finished(self.log, self.state):
                return False
        [counts] = await answered(self.state.parked([f"r:{move.name}"]))
        return not counts.retries or not await self._holds_up(move.name, topic)

    async def _holds_up(self, name: str, topic: str) -> bool:
        """Whether a parked record of that topic has to be sent before later messages. Also true just after a search."""
        if self.clock.monotonic() < self._search_at:
            return True
        begun = self.clock.monotonic()
        found = await is_parked_in_order(self.log, self.topics, name, topic)
        self._search_at = (now := self.clock.monotonic()) + SEARCH_SHARE * (now - begun)
        return found

    async def _settle(self, move: _Move, route: LaneRoute, partitions: Sequence[int]) -> None:
        keys = [cut_key(move.name, partition).encode() for partition in partitions]
        settled = replace(route, moving=False, left=route.left and route.lane != "dedicated")
        await self._publish(move.name, settled, *(NewRecord(self.topics.receiver_config, key, None) for key in keys))
        self._marked.pop(move, None)
        self._remaining.pop(move, None)
        _log.info("move_ended", receiver=move.name, lane=route.lane, version=move.version)

    async def _leave(self, name: str, route: LaneRoute) -> None:
        """Handles a receiver that has left its lane: its own topics are read until they are empty, including later
        answers."""
        if await self._own_lanes_are_empty(name):
            await self._publish(name, replace(route, left=False))

    # removals

    async def _end_removal(self, name: str, route: LaneRoute) -> None:
        last = self.registry.removed(name)
        own = route.has_own_lane or last is None or last.lane != SHARED
        shared = route.version > 0 or last is None or last.lane == SHARED
        for lane in [*([name] if own else []), *([SHARED] if shared else [])]:
            if await unfinished(self.log, self.state, self.topics, name, lane):
                return
        await self.registry.catch_up()
        if self.registry.lanes.all().get(name, LaneRoute()) != route or self.registry.is_declared(name):
            return  # it has come back
        if not await self._is_held(name):
            await self.state.forget_endpoint(f"r:{name}")
        cuts = [cut.key for cut in self.registry.lanes.cuts(name)]
        keys = [ControlKey("removed", name), *cuts, ControlKey("verification", name)]
        over = [NewRecord(self.topics.receiver_config, key.encode(), None) for key in keys]
        await self._publish(name, LaneRoute(route.version, token=route.token, life=route.life), *over)
        _log.info("receiver_left", receiver=name)

    async def _sweep(self, name: str, route: LaneRoute) -> None:
        """A writer that did not know of the removal may have written to its own topics since, and the record may
        have been parked."""
        groups = self.topics.lane_groups(name)
        if not await self._own_lanes_are_empty(name):
            await self._publish(name, replace(route, left=True))
        elif self.registry.is_declared(name) or await self.log.backlogs(groups):
            self._sweeps.found_nothing(name, route)
        else:
            # without its topic no process can write there or own it any more
            if not await self._is_held(name):
                lanes = [Lane(topic, partition, 0) for topic in groups for partition in range(route.partitions)]
                await self.state.forget_endpoint(f"r:{name}", lanes)
            self._sweeps.never_again(name, route)

    async def _is_held(self, name: str) -> bool:
        """An operator's hold, or that of a 410, also applies when the receiver is registered again."""
        [health] = await self.state.endpoints([f"r:{name}"])
        return health.hold is not None

    # backlogs

    async def _own_lanes_are_empty(self, name: str) -> bool:
        return all([await self._is_empty(name, topic) for topic in self.topics.lane_groups(name)])

    async def _backlogs(self, name: str, topic: str) -> Sequence[Backlog]:
        """Of a topic of its own."""
        return await self.log.backlogs({topic: self.topics.lane_groups(name)[topic]})

    async def _is_empty(self, name: str, topic: str) -> bool:
        """Whether a topic of its own is empty: all is read, and nothing is parked (parked records have a head with a
        due time)."""
        backlogs = await self._backlogs(name, topic)
        if not _are_read(backlogs):
            return False
        tag = tag_of(f"r:{name}")
        asked = [(Lane(*each.partition, 0), tag) for each in backlogs]
        return all(first is None for first in await answered(self.state.next_due(asked)))

    async def _publish(self, name: str, route: LaneRoute, *more: NewRecord) -> None:
        """Asks for the lease right before: a process that was suspended for longer than the lease must not publish."""
        if not await self.state.lease(LEASE, self.owner, LEASE_S):
            raise NotYet("another process runs the moves")
        key = ControlKey("route", name).encode()
        await self.log.append([NewRecord(self.topics.receiver_config, key, encode_value(route)), *more])


def _is_behind(backlog: Backlog, cut: int | None) -> bool:
    return cut is not None and backlog.committed is not None and backlog.committed > cut


def _key_for(partition: int, partitions: int) -> bytes:
    """A key whose records go to that partition."""
    keys = (b"move-%d" % number for number in count())
    return next(key for key in keys if partition_of(key, partitions) == partition)


class Sweeps:
    """A late writer gets less likely with time: each interval is twice as long as the one before.

    `what`: the lane's state; when it changes, the schedule starts again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # the lane's state, the time of its last sweep, and the interval
        self._known: dict[str, tuple[Hashable, float, float]] = {}
        self._next = -inf
        self._left = SWEEPS_AT_ONCE
        self._open: set[str] = set()  # taken in this round, and not reported yet

    def begin(self) -> None:
        """Begin a round: each name is checked once."""
        self._next = inf
        self._left = SWEEPS_AT_ONCE
        self._open.clear()

    def is_due(self) -> bool:
        """Whether a round is due."""
        return bool(self._open) or self._clock.monotonic() >= self._next

    def takes(self, name: str, what: Hashable) -> bool:
        """Whether `name` is to be swept in this round. The first sweep is due at once."""
        known = self._known.get(name)
        at = known[1] if known is not None and known[0] == what else -inf
        if at <= self._clock.monotonic() and self._left > 0:
            self._left -= 1
            self._open.add(name)
            return True
        self._next = min(self._next, at)
        return False

    def found_nothing(self, name: str, what: Hashable) -> None:
        known = self._known.get(name)
        wait_s = 2 * known[2] if known is not None and known[0] == what else FIRST_SWEEP_S
        at = self._clock.monotonic() + wait_s
        self._open.discard(name)
        self._known[name] = what, at, wait_s
        self._next = min(self._next, at)

    def never_again(self, name: str, what: Hashable) -> None:
        self._open.discard(name)
        self._known[name] = what, inf, inf

    def forget(self, name: str) -> None:
        self._open.discard(name)
        self._known.pop(name, None)


def _are_read(backlogs: Sequence[Backlog]) -> bool:
    """Whether all records are finished, or parked."""
    return all(each.end <= each.position for each in backlogs)
