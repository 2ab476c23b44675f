"""A record that no process handles is detected; waiting, for any reason, is not mistaken for it."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config.settings import Settings
from relay.engine.order import Order
from relay.engine.supervision import STALLED_S, StallDetector
from relay.log.port import TopicPartition
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import virtually
from tests.fakes.world import World, message, receiver

pytestmark = pytest.mark.thorough

looks = st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.booleans()), min_size=1, max_size=200)


@given(looks)
def test_a_minute_at_the_same_head_in_nobodys_hands(seen: list[tuple[int | None, bool]]) -> None:
    standstill, alone_since = StallDetector(), 0
    before: int | None = None
    for second, (head, busy) in enumerate(seen):
        same = not busy and head is not None and head == before
        alone_since = alone_since if same else second
        before = None if busy else head
        stood = standstill.look(None if busy else head, float(second))
        assert (stood is not None) == (same and second - alone_since >= STALLED_S)
        if stood is not None:
            assert stood == second - alone_since
            alone_since = second


def test_it_is_said_once_a_minute() -> None:
    standstill = StallDetector()
    said = [second for second in range(200) if standstill.look(7, second) is not None]
    assert said == [60, 120, 180]


@virtually
async def test_a_record_that_the_lane_forgot_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: Order[Any], now: float, limit: int) -> list[Any]:
        return []

    world = await World([receiver("ci", "/answer")]).create()
    await world.send(message(1, "a", "ci"))
    monkeypatch.setattr(Order, "take", forgets)
    await world.run(Fuse(), 55)
    assert world.told.stalled_at == []
    await world.run(Fuse(), 85)
    [(partition, offset)] = set(world.told.stalled_at)
    assert partition.topic == world.topics.from_sender
    assert offset == 0


@virtually
async def test_a_lane_with_nothing_in_it_is_told_of_once() -> None:
    """There may be thousands of them, and a second has only so much time."""
    world = await World([receiver("ci", "/answer")]).create()
    await world.send(message(1, "a", "ci"))
    told = world.told.levels = _Told()
    await world.run(Fuse(), 30)
    levels = told.seen[TopicPartition(world.topics.to_receiver("ci"), 0)]
    assert levels[-1] == 0
    # when it was opened, when it was empty again, and when it was given back
    assert levels.count(0) <= 3


class _Told(dict[TopicPartition, int]):
    """All levels that were reported for a lane."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[TopicPartition, list[int]] = {}

    def __setitem__(self, partition: TopicPartition, level: int) -> None:
        self.seen.setdefault(partition, []).append(level)
        super().__setitem__(partition, level)


async def outage(world: World, trouble: str) -> None:
    await world.clock.sleep(3)
    world.state_available = trouble != "state"
    world.broker.available = trouble != "log"
    await world.clock.sleep(90)
    world.state_available = world.broker.available = True


@pytest.mark.parametrize("trouble", ["down", "fails", "slow", "later", "state", "log", "paced"])
def test_whatever_is_waited_for_is_not_a_standstill(trouble: str) -> None:
    @virtually
    async def run() -> None:
        paths = {"fails": "/fail", "slow": "/slow", "later": "/later", "down": "/gone"}
        rate = 1 if trouble == "paced" else None
        ci = receiver("ci", paths.get(trouble, "/answer"), rate_limit=rate, status=True, cap=600.0, base=90.0)
        shy = receiver("shy", paths.get(trouble, "/answer"), lane="shared", timeout=300.0)
        world = World([ci, shy])
        world.outside.down = {"gone"}
        world.outside.slow_s = 200.0
        await world.create()
        await world.send(*(message(number, f"s{number % 3}", "ci", "shy") for number in range(40)))
        away = asyncio.create_task(outage(world, trouble))
        await world.run(Fuse(), 200)
        await away
        assert world.told.stalled_at == list[tuple[TopicPartition, int]]()

    run()


@virtually
async def test_nor_is_the_wait_for_room_among_what_is_parked() -> None:
    settings = Settings(receivers_file="none", parked_per_receiver=1)
    world = await World([receiver("ci", "/fail", base=200.0, cap=200.0, failures=1_000)], settings=settings).create()
    await world.send(*(message(number, "a", "ci") for number in range(3)))
    await world.run(Fuse(), 150)
    assert world.told.parked_records == 1
    assert world.told.stalled_at == []
