"""A lane from its opening to its end, as whoever owns its partition sees it: what is read goes in, what may be
committed comes out. What happens between is the core's. The roster of a process is told to those who look only."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.engine.core import Lane
from relay.engine.intake import blamed
from relay.engine.order import Order
from relay.engine.pump import Pump
from relay.engine.supervision import never_in_silence
from relay.engine.turnstile import LaneSeats
from relay.log.port import Headers, Record, TopicPartition
from relay.state.onlooker import LineHead, ParkedLine, Sign
from relay.state.port import Lane as LaneId
from relay.state.port import State

LINGER_S: Final = 30.0
"""How long requests may go on after the lane was given up, so that their outcomes are known."""


class OpenLane:
    """The pump runs it from the start. It ends by `stop`, a fence, or a bug that breaks it: then `on_stop` is called,
    and `finish` has to be run. `close` ends it at once."""

    def __init__(self, pump: Pump, clock: Clock, make: Callable[[LaneSeats], Lane[Any]]) -> None:
        self._pump = pump
        self._clock = clock
        self._post = pump.open(make, self._told, self._broke)
        self.core = self._post.lane
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._grace_until = self._linger_until = inf
        self._is_broken = False
        self._next_offset: int | None = None
        self.progress = asyncio.Event()
        """Set when records were offered or have ended; the lanes of a runner share one."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called when it begins to stop, once: what is in flight has to be seen to its end."""
        self.on_break: Callable[[], None] = lambda: None
        """Called when a bug has broken it: nothing more comes of it, and it has to be made anew."""
        self.left = asyncio.Event()
        """Set when nothing of this lane counts for the watermark any more; requests may still be under way."""

    @property
    def order(self) -> Order[Any]:
        return self.core.order

    @property
    def in_flight(self) -> int:
        return self.core.in_flight

    def parked_keys(self, limit: int) -> Sequence[tuple[bytes, str]]:
        return self.core.parked_keys(limit)

    # what the runner sees

    @property
    def lane(self) -> LaneId:
        return self.core.setting.lane

    @property
    def partition(self) -> TopicPartition:
        return self.core.partition

    @property
    def tags(self) -> tuple[int, ...]:
        """Where its fence may stand."""
        return self.core.setting.tags

    @property
    def state(self) -> State:
        return self._pump.effects.state

    @property
    def stuck_at(self) -> int | None:
        """The lowest unfinished offset, where nothing is known that will come for it: it would stay for ever."""
        return None if self._post.events else self.core.stuck_at

    def sated(self, *, crowded: bool) -> bool:
        """There is enough at hand: intake may wait, with its records still in the log."""
        return self.core.sated(self._clock.monotonic(), crowded=crowded)

    def offer(self, records: Sequence[Record]) -> None:
        """Take the next records of the partition, in order."""
        self.core.offer(records, self._clock.monotonic())
        self._pump.wake(self._post)
        self.progress.set()

    def relieve(self) -> None:
        """At the bound: park what waits, so that the rest can go on."""
        if self.left.is_set():
            return
        try:
            self.core.relieve(self._clock.monotonic(), shut=self._pump.shut)
        except Exception as error:  # noqa: BLE001
            self._broke(error, None)
        self._pump.wake(self._post)

    # its life

    async def finish(self) -> None:
        """Wait until what is in flight has ended, or for as long as `stop` said."""
        lane = self.core
        try:
            await self._until(lambda: self._is_broken or lane.idle, lambda: self._grace_until)
            if lane.fenced_at is None:
                await self._hand_over()
            self._leave()
            await self._until(lambda: not lane.attempting, lambda: self._linger_until)
        finally:
            self.close()

    def close(self) -> None:
        """Whatever is in flight is nobody's business here any more."""
        self.core.stop()
        self._leave()
        self._pump.close(self._post)
        self.core.abandon()

    def stop(self, grace_s: float, *, linger_s: float = 0.0) -> None:
        """Start nothing new; `left` is set when what is in flight has ended, or after `grace_s`. What is not finished
        then is read again by the next owner; requests may take `linger_s` more, so that it finds their outcomes."""
        now = self._clock.monotonic()
        self._grace_until = min(self._grace_until, now + grace_s)
        self._linger_until = min(self._linger_until, now + grace_s + linger_s)
        self._changed.set()
        if not self._is_stopping:
            self._is_stopping = True
            self.core.stop()
            self._pump.wake(self._post)
            self.on_stop()

    async def _hand_over(self) -> None:
        lane, effects = self.core, self._pump.effects
        try:
            await never_in_silence(effects.hand_back(lane))
            await never_in_silence(effects.leave(lane))
        except Exception as error:  # noqa: BLE001
            self._broke(error, None)

    def _leave(self) -> None:
        self.core.leave()
        self._pump.leave(self._post)
        self.left.set()

    def _broke(self, error: Exception, about: object) -> None:
        """A bug. Nobody knows what the lane would do next: all that it does any more is to store what comes of its
        requests, which it knows best."""
        setting, record = self.core.setting, blamed(error, about)
        first, self._is_broken = not self._is_broken, True
        times = setting.breaks.note(record) if first and record is not None else 0
        setting.observer.lane_broken(self.partition, error, record, times)
        if first:
            self.core.stop()
            self._leave()
            self.stop(0.0, linger_s=LINGER_S)
            self._pump.wake(self._post)
            self.on_break()

    def _told(self) -> None:
        """The lane had a turn."""
        if self.core.fenced_at is not None:
            self.stop(0.0, linger_s=LINGER_S)
        if self._next_offset != self.core.next_offset:
            self._next_offset = self.core.next_offset
            self.progress.set()
        self._changed.set()

    async def _until(self, done: Callable[[], bool], end: Callable[[], float]) -> None:
        """Until `done`, or the moment that `end` tells, which may come nearer meanwhile."""
        while not done() and (rest := end() - self._clock.monotonic()) > 0:
            self._changed.clear()
            await self._clock.wait(self._changed, rest)


SIGN_EVERY_S: Final = 3.0
UNSERVED_S: Final = 10.0
"""A lane without a sign for so long is served by nobody: signs that follow each other are never so far apart."""
HEADS: Final = 50
"""So many lines of a lane are told of, and as many of those that are parked."""


class SignedFor(Protocol):
    """A lane, as far as others are told of it."""

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


class Roster:
    """Signs of life: which lanes this process serves, and which records head lines in them. For those who look only.

    All of them go out together, a few times a minute, whatever the traffic. `process`: its name, for people.
    """

    def __init__(self, process: str = "") -> None:
        self._process = process
        self._lanes: dict[TopicPartition, SignedFor] = {}
        self._new: set[TopicPartition] = set()
        self._entered = asyncio.Event()

    def enter(self, lane: SignedFor) -> None:
        """It is served from now on, until it was left."""
        self._lanes[lane.partition] = lane
        self._new.add(lane.partition)
        self._entered.set()

    async def run(self, state: State, clock: Clock) -> None:
        next_round = clock.monotonic()
        while True:
            if clock.monotonic() >= next_round:
                next_round = clock.monotonic() + SIGN_EVERY_S
                await self._sign(state, list(self._lanes))
            else:
                await self._sign(state, self._new)
            await clock.wait(self._entered, max(0.0, next_round - clock.monotonic()))
            self._entered.clear()

    async def _sign(self, state: State, partitions: Iterable[TopicPartition]) -> None:
        signs = [sign for partition in partitions if (sign := self._sign_of(partition)) is not None]
        self._new.clear()
        if signs:
            with suppress(Unavailable):  # who looks meanwhile is told so anyway
                await state.sign(signs)

    def _sign_of(self, partition: TopicPartition) -> Sign | None:
        lane = self._lanes[partition]
        if lane.left.is_set():
            del self._lanes[partition]
            return None
        heads, parked = lane.order.heads(HEADS), lane.parked_keys(HEADS)
        told = tuple(
            LineHead(head.queue, head.row.digest, *_ids(head.record.headers), head.row.owner, behind)
            for head, behind in heads
            if head.queue is not None and head.row is not None
        )
        lines = tuple(ParkedLine(owner, queue) for queue, owner in parked)
        return Sign(*partition, told, self._process, lane.in_flight, lines)


def _ids(headers: Headers) -> tuple[str, str]:
    named = dict(headers)
    return named.get("ce_source", b"").decode(errors="replace"), named.get("ce_id", b"").decode(errors="replace")
