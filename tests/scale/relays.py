"""Processes of a relay at full size: the real engine, request_limiter and ToReceiver, on ports that answer at once, in
virtual time. Receivers take their time, and watch how they are treated.

Receivers are in the shared lane, and there may be a million: each is made when it is asked for, as in production.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, cast

from relay.delivery.port import Transport
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Endpoint, Receiver, Source
from relay.domain.topics import SHARED, Topics
from relay.engine.effects import Effects
from relay.engine.holding import Holding
from relay.engine.lane import Lane, LaneSetup
from relay.engine.observer import Observer
from relay.engine.open_lane import OpenLane
from relay.engine.policy import Bounds, shared
from relay.engine.pump import Pump
from relay.engine.request_limiter import RequestLimiter
from relay.engine.supervision import Retrier
from relay.log.partitioner import partition_of
from relay.log.port import Log, Record
from relay.state.port import Lane as LaneId
from relay.state.port import State
from tests.fakes.no_moves import NoMoves
from tests.fakes.virtual_time import UNIX_START, LoopClock
from tests.speed.hot_path import QuickLog, QuickState
from workers.dependencies import Dependencies
from workers.records import Letters
from workers.to_receiver import ToReceiver

TOPICS = Topics("")
TOPIC = TOPICS.to_receiver(SHARED)
NOW_MS = int(UNIX_START * 1000)
HOG = 1
"""A receiver whose messages come from many sources: only its cap holds them back."""
IN_FLIGHT = 4
"""`max_in_flight` of each receiver."""
ANSWER = Response(200, {"content-type": "application/json", "content-length": "2"}, b"{}")


def receiver_name(number: int) -> str:
    return f"r-{number:07d}"


@lru_cache(maxsize=20_000)
def _receiver(name: str) -> Receiver:
    return Receiver(name, Endpoint(f"http://{name}.example/", max_in_flight=IN_FLIGHT), lane="shared")


class Directory(NoMoves):
    """As many receivers as anybody asks for."""

    def receiver(self, name: str) -> Receiver | None:
        return _receiver(name)

    def refusal(self, name: str) -> str | None:
        return None

    def receivers(self) -> Mapping[str, Receiver]:
        return {}

    def removed(self, name: str) -> Receiver | None:
        return None

    def unusable_in_shared(self, most: int) -> list[str]:
        return []

    def left_lanes(self) -> frozenset[str]:
        return frozenset()

    def source(self, source_id: str) -> Source:
        return Source(source_id)

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        return ()

    def filtered(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        return ()


class Receivers:
    """All of them. `takes_s`: how long the receiver of this name takes to answer. What they see is checked on the way:
    in flight per receiver, one at a time and in order for each source of a receiver."""

    def __init__(self, takes_s: Callable[[str], float]) -> None:
        self._takes_s = takes_s
        self.in_flight = 0
        self.most_in_flight = 0
        self.most_at_one = 0
        self.faults: list[str] = []
        self.answered: dict[str, float] = {}
        """Message id -> when (virtual seconds)."""
        self._at: Counter[str] = Counter()
        self._newest: dict[tuple[str, str], int] = {}
        self._busy: set[tuple[str, str]] = set()

    def begun(self, headers: Mapping[str, str]) -> tuple[str, str, str]:
        source, message_id = headers["ce-source"], headers["ce-id"]
        name, _, number = message_id.rpartition("/")
        key = (name, source)
        if key in self._busy:
            self.faults.append(f"two at a time of {key}")
        if self._newest.get(key, -1) >= int(number):
            self.faults.append(f"{message_id} after {self._newest[key]}")
        self._busy.add(key)
        self._newest[key] = int(number)
        self.in_flight += 1
        self._at[name] += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.most_at_one = max(self.most_at_one, self._at[name])
        return name, source, message_id

    def ended(self, name: str, source: str, message_id: str, now: float) -> None:
        self._busy.discard((name, source))
        self.in_flight -= 1
        self._at[name] -= 1
        if not self._at[name]:
            del self._at[name]
        if message_id in self.answered:
            self.faults.append(f"{message_id} twice")
        self.answered[message_id] = now

    def takes_s(self, name: str) -> float:
        return self._takes_s(name)


class SlowTransport(Transport):
    """Of one process."""

    def __init__(self, receivers: Receivers) -> None:
        self._receivers = receivers
        self.in_flight = 0
        self.most_in_flight = 0

    async def start(self) -> None: ...

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        name, source, message_id = self._receivers.begun(dict(request.headers))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        loop = asyncio.get_running_loop()

        def answered() -> None:
            self.in_flight -= 1
            self._receivers.ended(name, source, message_id, loop.time())
            done(ANSWER)

        loop.call_later(self._receivers.takes_s(name), answered)

    async def close(self) -> None: ...


class ForgetfulLog(QuickLog):
    """Counts what was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def append(self, records: Sequence[Any]) -> list[Any]:
        found = await super().append(records)
        self.count += len(records)
        self.appended.clear()
        return found


class Process:
    """A worker process with some partitions of the shared lane. `seats`: requests in flight at most."""

    def __init__(self, partitions: Sequence[int], receivers: Receivers, *, seats: int) -> None:
        clock, observer = LoopClock(), Observer()
        self.transport = SlowTransport(receivers)
        self.log = ForgetfulLog()
        log, state = cast(Log, self.log), cast(State, QuickState())
        request_limiter = RequestLimiter(clock, observer, seats)
        outside = Dependencies(self.transport, clock, lambda: 0.5, "relay/0", request_limiter=request_limiter)
        worker = ToReceiver(TOPICS, Directory(), state, Letters(TOPICS, clock), outside, Directory())
        holding = Holding(log, state, TOPICS.receiver_config)
        effects = Effects(log, state, clock, Retrier(clock, observer), holding, TOPICS.parked())
        self.pump = Pump(effects, clock, request_limiter)
        self.lanes = {number: self._lane(number, worker, observer, clock) for number in partitions}

    def _lane(self, partition: int, worker: ToReceiver, observer: Observer, clock: LoopClock) -> OpenLane:
        setting = LaneSetup(
            lane=LaneId(TOPIC, partition, 1),
            tags=(0,),
            policy=shared(60.0, capped=True),
            bounds=Bounds(),
            observer=observer,
            random=secrets.token_bytes,
            wall=clock.time,
        )
        return OpenLane(self.pump, clock, partial(Lane, setting, worker))

    async def feed(self, partition: int, messages: Sequence["Short"]) -> None:
        """Offer all as fast as the lane takes them; returns when all have ended."""
        lane, at = self.lanes[partition], 0
        while at < len(messages) or lane.core.unfinished:
            lane.progress.clear()
            room = Bounds().window - lane.core.unfinished
            if at < len(messages) and room > 0 and not lane.has_enough(crowded=False):
                some = messages[at : at + min(100, room)]
                lane.offer([_record(partition, at + n, message) for n, message in enumerate(some)])
                at += len(some)
                await asyncio.sleep(0)
                continue
            await _until(lane.progress, 1.0)


Short = tuple[int, int]
"""Receiver, and number of the message: a million of them have to fit."""


def message_id(message: Short) -> str:
    receiver, number = message
    return f"{receiver_name(receiver)}/{number}"


def _record(partition: int, offset: int, message: Short) -> Record:
    name = receiver_name(message[0])
    source = f"s-{(message[1] if message[0] == HOG else message[0]) % 16}"
    hop = Hop(DeliveryId(name, source, message_id(message)), accepted_ms=NOW_MS)
    return Record(TOPIC, partition, offset, name.encode(), b"{}", encode_hop(hop), NOW_MS)


async def _until(event: asyncio.Event, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, event.set)
    await event.wait()
    timer.cancel()


async def run(processes: Sequence[Process], messages: Iterator[Short], partitions: int) -> None:
    """Bring all, each to its receiver's partition; returns when all have ended."""
    dealt: list[list[Short]] = [[] for _ in range(partitions)]
    for message in messages:
        dealt[partition_of(receiver_name(message[0]).encode(), partitions)].append(message)
    pumps = [asyncio.ensure_future(process.pump.run()) for process in processes]
    try:
        async with asyncio.TaskGroup() as feeds:
            for process in processes:
                for partition in process.lanes:
                    feeds.create_task(process.feed(partition, dealt[partition]))
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
