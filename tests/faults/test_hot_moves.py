"""Hot receivers leave the shared lane, and return: which heartbeats and entries make one process decide that, and what
happens if it fails in between. `test_moves.py` has the move itself."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relay.control.registry import Registry
from relay.domain.audit import decode_line
from relay.domain.control_key import encode_value
from relay.domain.errors import LogUnavailable
from relay.domain.hot_receivers import LEAST, MoveLimits
from relay.domain.route import Cut
from relay.domain.topics import SHARED
from relay.log.port import Coordinate, NewRecord
from relay.state.port import Counts
from relay.state.read_model import Heartbeat, LaneHeartbeat, LaneLoad, LineHead, RowDetails
from relay.state.rows import Row, RowKey, Stage
from relay.telemetry.metrics import Metrics
from relay.watch.hot_moves import HotReceiverMoves
from relay.watch.lag import LEASE_S
from relay.watch.lane_migration import LaneMigration
from tests.fakes.log import MemoryLog
from tests.fakes.moving import FEW, MovingWorld
from tests.fakes.state import MemoryState

LIMITS = MoveLimits(hot_s=20, stay_s=100, calm_s=40, most=1)
BUSY = LaneLoad(10 * LEAST, (("r", 0.9),))
QUIET = LaneLoad(10 * LEAST)
STUCK = LineHead(b"queue---", b"row", "a", "a-0", "r:r", 3)


class HotWorld(MovingWorld):
    """`load`: of the shared lane, in the heartbeats of the one process that serves it. `own`: POSTs to `r`, in those of
    its own lane; None: no process serves it. `retries`: those of `r` that are parked."""

    def __init__(self) -> None:
        super().__init__()
        self.state = MemoryState(clock=self.clock.time)
        self.state.row_details = self._row_details  # type: ignore[method-assign]
        self.state.parked = self._parked  # type: ignore[method-assign]
        self.load: LaneLoad | None = BUSY
        self.heads: tuple[LineHead, ...] = ()
        self.own: int | None = None
        self.retries = 0
        self.published: list[tuple[str, str]] = []

    async def _row_details(self, rows: Sequence[RowKey]) -> list[RowDetails]:
        return [RowDetails(Row(Stage.SENDING, attempts=3)) for _ in rows]

    async def _parked(self, owners: Sequence[str]) -> list[Any]:
        return [Counts(self.retries, 0) for _ in owners]

    async def beat(self) -> None:
        while True:
            shared = self.topics.to_receiver(SHARED)
            signs = [LaneHeartbeat(shared, at, Heartbeat(self.heads, "one", load=self.load)) for at in range(FEW)]
            if self.own is not None:
                signs.append(
                    LaneHeartbeat(self.topics.to_receiver("r"), 0, Heartbeat((), "two", load=LaneLoad(self.own)))
                )
            await self.state.keep_heartbeats(signs)
            await asyncio.sleep(3)

    async def is_recorded(self) -> bool:
        return "r" in (await self.registry()).lanes.hot

    async def lane(self) -> tuple[str | None, bool]:
        route = await self.route("r")
        return route.lane, route.moving

    def audited(self) -> list[tuple[str, str, str]]:
        lines = [decode_line(record.value) for record in self.broker.records(self.topics.audit)]
        return [(line.who, line.what, line.whom) for line in lines]

    @asynccontextmanager
    async def process(
        self, owner: str = "one", *, moves: bool = True, log: MemoryLog | None = None
    ) -> AsyncIterator[HotReceiverMoves]:
        """The jobs of one process: the decision, and the moves themselves."""
        registry, client = Registry(self.topics, {}), log or await self.client()
        decision = HotReceiverMoves(
            client,
            self.state,
            self.topics,
            registry,
            self.clock,
            Metrics("0"),
            lambda what, name, _at: self.published.append((what, name)),
            owner=owner,
            moves=moves,
            limits=LIMITS,
        )
        mover = LaneMigration(await self.client(), self.state, self.topics, registry, self.clock, owner=owner)
        jobs = (registry.follow(await self.client()), decision.run(), mover.run(), self.beat())
        tasks = [asyncio.create_task(job) for job in jobs]
        await registry.ready.wait()
        try:
            yield decision
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def read_all(self) -> None:
        """As the workers would: all that was routed by then is finished."""
        client, route = await self.client(), await self.route("r")
        groups = self.topics.groups(["r"])
        for topic in (self.topics.from_sender, self.topics.to_receiver(SHARED), self.topics.to_receiver("r")):
            for partition, end in (await client.ends(self.broker.partitions_of(topic))).items():
                self.broker.offsets[groups[topic], partition] = end
                if topic == self.topics.from_sender:  # it ends with a marker
                    cut = Cut("r", route.version, partition.partition, end - 1)
                    await self.append(self.topics.receiver_config, cut.key.encode(), encode_value(cut), ())


@asynccontextmanager
async def hot_world() -> AsyncIterator[HotWorld]:
    world = await HotWorld().create()
    await world.declare("r", lane="shared")
    await world.declare("n", lane="shared")
    yield world


async def left(world: HotWorld) -> None:
    """`r` has left the shared lane."""
    await asyncio.sleep(40)
    await world.read_all()
    world.own = 10 * LEAST
    world.load = QUIET
    await asyncio.sleep(10)
    assert await world.lane() == ("dedicated", False)


async def test_it_leaves_once_it_has_been_hot_for_long_enough_and_returns_once_it_has_been_calm() -> None:
    async with hot_world() as world, world.process():
        await asyncio.sleep(18)
        assert not await world.is_recorded()
        await left(world)
        assert world.topics.to_receiver("r") in world.broker.specs  # made on demand
        await asyncio.sleep(1_000)
        assert await world.is_recorded()  # as hot as before
        world.own = LEAST
        await asyncio.sleep(30)
        assert await world.is_recorded()
        await asyncio.sleep(20)
        assert await world.lane() == ("shared", True)
        await world.read_all()
        await asyncio.sleep(10)
        assert await world.lane() == ("shared", False)
    turns = ["receiver.moved", "receiver.returned"]
    assert world.published == [(turn, "r") for turn in turns]
    assert world.audited() == [("relay", turn, "r") for turn in turns]


async def test_what_is_not_known_to_be_calm_stays() -> None:
    async with hot_world() as world, world.process():
        await left(world)
        world.own, world.retries = 0, 1  # for which the shared lane would wait
        await asyncio.sleep(1_000)
        assert await world.is_recorded()
        world.retries, world.own = 0, None  # no process serves it
        await asyncio.sleep(1_000)
        assert await world.is_recorded()
        world.own, world.load = 0, None  # an older release does not measure
        await asyncio.sleep(1_000)
        assert await world.is_recorded()
        world.load = QUIET
        topic = world.topics.to_receiver("r")
        await (await world.client()).append([NewRecord(topic, b"a", b"") for _ in range(10 * LEAST)])
        await asyncio.sleep(1_000)
        assert await world.is_recorded()  # down, or slow: the backlog would be the neighbours' burden
        world.broker.offsets[world.topics.group("to-receiver"), world.broker.partitions_of(topic)[0]] = 10 * LEAST
        await asyncio.sleep(100)
        assert not await world.is_recorded()


async def test_one_with_a_message_that_fails_again_and_again_stays_in_the_shared_lane() -> None:
    async with hot_world() as world, world.process():
        world.heads = (STUCK,)
        await asyncio.sleep(1_000)
        assert not await world.is_recorded()
        world.heads = ()
        await asyncio.sleep(60)
        assert await world.is_recorded()


async def test_no_more_leave_than_the_cap_whichever_process_decides() -> None:
    async with hot_world() as world, world.process("one"), world.process("two"):
        await left(world)
        world.load = LaneLoad(10 * LEAST, (("n", 0.8),))
        await asyncio.sleep(1_000)
        assert (await world.registry()).lanes.hot.keys() == {"r"}
    assert world.audited() == [("relay", "receiver.moved", "r")]


async def test_an_entry_with_a_lane_of_its_own_is_stronger_and_ends_the_record() -> None:
    async with hot_world() as world, world.process():
        await left(world)
        await world.declare("r", lane="dedicated")
        world.own = 0
        await asyncio.sleep(10)
        assert not await world.is_recorded()
        await asyncio.sleep(1_000)
        assert await world.lane() == ("dedicated", False)
        assert (await world.route("r")).version == 1


async def test_a_removed_receiver_loses_its_record() -> None:
    async with hot_world() as world, world.process():
        await left(world)
        await world.remove("r")
        await asyncio.sleep(10)
        assert not await world.is_recorded()
    assert world.published == [("receiver.moved", "r")]


async def test_a_relay_that_moves_none_lets_those_that_left_return() -> None:
    async with hot_world() as world:
        async with world.process():
            await left(world)
        async with world.process("other", moves=False):
            await asyncio.sleep(LEASE_S + 10)  # the lease of the former process
            assert await world.lane() == ("shared", True)
            await world.read_all()
            await asyncio.sleep(10)
            assert await world.lane() == ("shared", False)
    assert world.published[-1] == ("receiver.returned", "r")


class _Deaf(MemoryLog):
    """Fails each append to `receiver_config` after, or instead of, doing it."""

    late = False
    fails = True

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        fails = self.fails and records[0].topic == "receiver_config"
        if fails and not self.late:
            raise LogUnavailable("away")
        done = await super().append(records)
        if fails:
            raise LogUnavailable("the reply is lost")
        return done


@pytest.mark.parametrize("late", [False, True], ids=["call", "reply"])
async def test_a_record_whose_append_failed_is_decided_again(late: bool) -> None:
    async with hot_world() as world:
        log = _Deaf(world.broker)
        log.late = late
        await log.start()
        async with world.process(log=log):
            await asyncio.sleep(60)
            assert await world.is_recorded() == late
            log.fails = False
            await left(world)
    assert len((await world.registry()).lanes.hot) == 1


async def test_another_process_goes_on_between_the_record_and_the_move() -> None:
    async with hot_world() as world:
        await world.declare("r", lane="shared", hot=True)
        assert await world.lane() == (None, False)
        async with world.process("successor"):
            await asyncio.sleep(5)
            assert await world.lane() == ("dedicated", True)
            await world.read_all()
            await asyncio.sleep(5)
            assert await world.lane() == ("dedicated", False)


async def test_topics_of_a_former_life_keep_their_partitions() -> None:
    async with hot_world() as world:
        client = await world.client()
        await client.create(list(world.topics.lane_specs("r", 3)), world.topics.lane_groups("r"))
        async with world.process():
            await left(world)
        assert (await world.route("r")).partitions == 3
