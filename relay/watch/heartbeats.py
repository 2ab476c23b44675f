"""Publishes which process serves which lane, for display only."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, Protocol

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.engine.order import Order
from relay.engine.work import Work
from relay.log.port import Headers, TopicPartition
from relay.state.lanes import LONG_S, waits_of
from relay.state.port import State
from relay.state.read_model import Heartbeat, LaneHeartbeat, LaneLoad, LineHead, ParkedLine, unusable_at

SIGN_EVERY_S: Final = 3.0
UNUSABLE: Final = 500
"""Endpoints with unusable settings that are published, at most."""
HEADS: Final = 50
"""Order keys published per lane, at most, and as many of those that are parked, and of endpoints."""


class SignedFor(Protocol):
    """The part of a lane that is published."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def order(self) -> Order[Any]: ...

    @property
    def left(self) -> asyncio.Event: ...

    @property
    def in_flight(self) -> int: ...

    def parked_keys(self, limit: int) -> Sequence[tuple[bytes, str]]:
        """Order keys with parked records, and the owner of their rows."""
        ...

    def oldest(self, before_ms: float, limit: int) -> Sequence[Work]:
        """Of each endpoint of a lane of many, the first work in memory whose record was appended before then."""
        ...

    def counts(self, limit: int) -> Mapping[str, int]:
        """Works in memory of each endpoint of a lane of many."""
        ...


@dataclass(eq=False)
class Heartbeats:
    """Publishes the lanes that this process serves, and the first record of order keys in them. For display only.

    All go out together, a few times a minute, whatever the traffic. `process`: its name, for operators. `unusable`:
    owners of the lanes that this process does not ask for, as it cannot use their settings. `load`: of a topic.
    `gathering`: partitions that are not read before a move has ended: they lack no process either.
    """

    process: str = ""
    unusable: Callable[[], Iterable[str]] = tuple
    load: Callable[[str], LaneLoad | None] = lambda _topic: None
    gathering: Callable[[], Iterable[TopicPartition]] = tuple
    _lanes: dict[TopicPartition, SignedFor] = field(default_factory=dict)
    _new: set[TopicPartition] = field(default_factory=set)
    _entered: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, lane: SignedFor) -> None:
        """The lane is served from now on, until it is left."""
        self._lanes[lane.partition] = lane
        self._new.add(lane.partition)
        self._entered.set()

    async def run(self, state: State, clock: Clock) -> None:
        next_round = clock.monotonic()
        while True:
            if clock.monotonic() >= next_round:
                next_round = clock.monotonic() + SIGN_EVERY_S
                signs = self._signs_of(list(self._lanes), clock.time())
                signs += [LaneHeartbeat(*partition, Heartbeat(process=self.process)) for partition in self.gathering()]
                await self._sign(state, signs + self._signs_of_unusable(clock.monotonic()))
            else:
                await self._sign(state, self._signs_of(self._new, clock.time()))
            await clock.wait(self._entered, max(0.0, next_round - clock.monotonic()))
            self._entered.clear()

    async def _sign(self, state: State, signs: Sequence[LaneHeartbeat]) -> None:
        self._new.clear()
        if signs:
            with suppress(Unavailable):  # readers see that the state is unavailable anyway
                await state.keep_heartbeats(signs)

    def _signs_of(self, partitions: Iterable[TopicPartition], now: float) -> list[LaneHeartbeat]:
        return [sign for partition in partitions if (sign := self._sign_of(partition, now)) is not None]

    def _signs_of_unusable(self, now: float) -> list[LaneHeartbeat]:
        lanes = (lane.order.closed_for("configuration", now, HEADS) for lane in self._lanes.values())
        owners = {*islice(self.unusable(), UNUSABLE), *chain.from_iterable(lanes)}
        return [
            LaneHeartbeat(*unusable_at(owner), Heartbeat(process=self.process)) for owner in sorted(owners)[:UNUSABLE]
        ]

    def _sign_of(self, partition: TopicPartition, now: float) -> LaneHeartbeat | None:
        lane = self._lanes[partition]
        if lane.left.is_set():
            del self._lanes[partition]
            return None
        heads, parked = lane.order.lines.heads(HEADS), lane.parked_keys(HEADS)
        line_heads = tuple(
            LineHead(head.queue, head.row.digest, *_ids(head.record.headers), head.row.owner, behind)
            for head, behind in heads
            if head.queue is not None and head.row is not None
        )
        lines = tuple(ParkedLine(owner, queue) for queue, owner in parked)
        oldest = lane.oldest((now - LONG_S) * 1000, HEADS)
        waits = ((work.endpoint_id, one) for work in oldest for one in waits_of(work.record).values())
        waiting = tuple(one for owner, one in waits if one.owner == owner)
        load = self.load(partition.topic)
        queued = dict(lane.counts(HEADS))
        return LaneHeartbeat(
            *partition, Heartbeat(line_heads, self.process, lane.in_flight, lines, load, waiting, queued)
        )


def _ids(headers: Headers) -> tuple[str, str]:
    named = dict(headers)
    return named.get("ce_source", b"").decode(errors="replace"), named.get("ce_id", b"").decode(errors="replace")
