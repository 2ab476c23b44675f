"""Signs of life: who serves a lane says so at once, then regularly, and no more when it left."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import astuple

from relay.domain.errors import StateUnavailable
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.engine.order import Order
from relay.engine.work import Work
from relay.log.port import Record, TopicPartition
from relay.state.read_model import UNSERVED_S, LaneHeartbeat, LaneLoad, LineHead, ParkedLine, Served, Waiting
from relay.state.rows import delivery_row
from relay.watch.heartbeats import SIGN_EVERY_S, Heartbeats
from tests.expecting import expect
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import LoopClock, virtually

LANE = TopicPartition("to_receiver_ci", 0)
KEY = b"github------"


def work(message_id: str) -> Work:
    delivery = DeliveryId("ci", "github", message_id)
    row = delivery_row(delivery)
    return Work(Record(LANE.topic, 0, 1, None, b"", encode_hop(Hop(delivery)), 0), row, 0, KEY, row.owner)


class AwayState(MemoryState):
    """Takes no signs while it `is_away`."""

    is_away = True

    def __init__(self, other: MemoryState) -> None:
        super().__init__()
        self._other = other

    async def keep_heartbeats(self, beats: Sequence[LaneHeartbeat]) -> None:
        if self.is_away:
            raise StateUnavailable("away")
        await self._other.keep_heartbeats(beats)


class World:
    """A heartbeats that runs, and the state that it signs in; and a lane, as the heartbeats sees it."""

    partition = LANE

    def __init__(self) -> None:
        self.heartbeats = Heartbeats("host-1-a", load=lambda topic: LaneLoad(7) if topic == LANE.topic else None)
        self.order: Order[Work] = Order()
        self.left = asyncio.Event()
        self.in_flight = 0
        self.parked: list[tuple[bytes, str]] = []
        self.waiting: list[Work] = []
        self.state = MemoryState(clock=asyncio.get_running_loop().time)
        self.running = asyncio.create_task(self.heartbeats.run(self.state, LoopClock()))

    def parked_keys(self, limit: int) -> list[tuple[bytes, str]]:
        return self.parked[:limit]

    def oldest(self, before_ms: float, limit: int) -> list[Work]:
        return [each for each in self.waiting if each.record.timestamp_ms <= before_ms][:limit]

    def counts(self, limit: int) -> dict[str, int]:
        return dict(Counter(each.endpoint_id for each in self.waiting).most_common(limit))

    async def sign(self) -> Served | None:
        return (await self.state.heartbeats([LANE]))[0]

    async def signed(self) -> Served:
        return expect(Served, await self.sign())


@virtually
async def test_a_lane_is_signed_for_at_once_and_until_it_is_left() -> None:
    world = World()
    await asyncio.sleep(1)  # virtual
    assert await world.sign() is None
    world.heartbeats.enter(world)
    await asyncio.sleep(0.1)
    assert (await world.signed()).ago_s < 0.2
    for _ in range(20):
        await asyncio.sleep(SIGN_EVERY_S)
        assert (await world.signed()).ago_s <= SIGN_EVERY_S < UNSERVED_S
    world.left.set()
    await asyncio.sleep(UNSERVED_S + SIGN_EVERY_S)
    assert (await world.signed()).ago_s > UNSERVED_S
    world.running.cancel()


@virtually
async def test_a_sign_names_the_heads_that_others_wait_behind() -> None:
    world = World()
    head, second = work("m-1"), work("m-2")
    world.order.add(head, 0.0)
    world.heartbeats.enter(world)
    await asyncio.sleep(0.1)
    assert (await world.signed()).heads == ()  # nothing waits behind it
    world.order.add(second, 0.0)
    await asyncio.sleep(SIGN_EVERY_S)
    sign = await world.signed()
    assert head.row is not None
    assert sign.heads == (LineHead(KEY, head.row.digest, "github", "m-1", "r:ci", 1),)
    world.running.cancel()


@virtually
async def test_a_sign_tells_who_serves_what_is_in_flight_and_which_lines_are_parked() -> None:
    world = World()
    world.in_flight, world.parked = 3, [(KEY, "r:ci")]
    world.heartbeats.enter(world)
    await asyncio.sleep(0.1)
    sign = await world.signed()
    assert astuple(sign)[:-1] == ((), "host-1-a", 3, (ParkedLine("r:ci", KEY),), LaneLoad(7), (), {})
    world.running.cancel()


@virtually
async def test_a_sign_has_what_each_endpoint_waits_for_since_a_while() -> None:
    world = World()
    await asyncio.sleep(90)  # virtual
    world.waiting = [work("m-1")]
    world.heartbeats.enter(world)
    await asyncio.sleep(0.1)
    sign = await world.signed()
    assert sign.waiting == (Waiting("r:ci", 0.0),)
    assert sign.queued == {"r:ci": 1}
    world.running.cancel()


@virtually
async def test_a_state_that_is_away_is_signed_in_later() -> None:
    world = World()
    away = AwayState(world.state)
    heartbeats = Heartbeats()
    running = asyncio.create_task(heartbeats.run(away, LoopClock()))
    heartbeats.enter(world)
    await asyncio.sleep(1)
    assert await world.sign() is None
    away.is_away = False
    await asyncio.sleep(SIGN_EVERY_S)
    assert await world.sign() is not None
    running.cancel()
    world.running.cancel()
