"""How far each lane is behind, how old its first unfinished record is, who is named, and which process shows it."""

import asyncio
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay.domain.topics import Topics
from relay.log.port import Backlog, NewRecord, TopicPartition
from relay.state.lanes import LaneNow
from relay.state.read_model import Sign
from relay.telemetry import series
from relay.telemetry.metrics import Metrics
from relay.telemetry.series import OTHER
from relay.watch import lag
from relay.watch.lag import COST, LEASE_S, LOOK_S, MANY, LagWatch, worst
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import LoopClock, virtually

CI = TopicPartition("to_receiver_ci", 0)
GROUP = "relay.to-receiver"


class Rig:
    """Two processes' watches over one log and one state."""

    def __init__(self, *names: str) -> None:
        self.names = names or ("ci",)
        self.clock = LoopClock()
        self.broker = MemoryBroker(now_ms=lambda: int(self.clock.time() * 1000))
        self.state = MemoryState(clock=self.clock.monotonic)
        self.log = MemoryLog(self.broker)
        self.topics = Topics()
        self.metrics = [Metrics("1"), Metrics("1")]
        self.watches = [
            LagWatch(
                self.log, self.state, self.topics, lambda: self.names, self.clock, metrics, owner=f"process-{index}"
            )
            for index, metrics in enumerate(self.metrics)
        ]

    async def start(self) -> None:
        await self.log.start()
        specs, groups = [*self.topics.fixed()], self.topics.fixed_groups()
        for name in self.names:
            specs += self.topics.lane_specs(name, 1)
            groups |= self.topics.lane_groups(name)
        await self.log.create(specs, groups)

    async def append(self, topic: str = CI.topic, count: int = 1) -> None:
        await self.log.append([NewRecord(topic, b"k", b"v")] * count)

    def value(self, name: str, *, process: int = 0, **labels: str) -> float | None:
        """Summed over labels that are not given; None: there is no such series."""
        families = text_string_to_metric_families(self.metrics[process].render().decode())
        found = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None


@virtually
async def test_a_lane_is_shown_with_its_lag_its_age_and_whether_it_is_served() -> None:
    rig = Rig()
    await rig.start()
    await rig.append(count=3)
    await rig.clock.sleep(100.0)
    await rig.state.sign([Sign(*CI)])
    watch = asyncio.create_task(rig.watches[0].run())
    await rig.clock.sleep(0.1)
    assert rig.value("relay_consumer_lag", role="to-receiver", receiver="ci", partition="0") == 3
    assert (
        round(
            rig.value(
                "relay_oldest_message_age_seconds", topic=CI.topic, partition="0", receiver="ci", role="to-receiver"
            )
            or 0
        )
        == 100
    )
    assert rig.value("relay_lanes_unserved", role="to-receiver", receiver="ci") == 0
    assert rig.value("relay_lanes_unserved", role="from-receiver-async", receiver="ci") == 1
    assert rig.value("relay_lanes_unserved", role="from-sender", receiver=MANY) == 10
    assert rig.value("relay_oldest_message_age_seconds", role="from-sender", receiver=MANY) == 0
    rig.broker.offsets[GROUP, CI] = 3
    await rig.clock.sleep(LOOK_S)
    assert rig.value("relay_consumer_lag", role="to-receiver", receiver="ci", partition="0") == 0
    assert rig.value("relay_oldest_message_age_seconds", role="to-receiver", receiver="ci", partition="0") == 0
    assert rig.value("relay_lanes_unserved", role="to-receiver", receiver="ci") == 1, "no sign of life for 15 s"
    watch.cancel()


@virtually
async def test_one_process_shows_it_and_another_one_when_that_is_gone() -> None:
    rig = Rig()
    await rig.start()
    first, second = (asyncio.create_task(watch.run()) for watch in rig.watches)
    await rig.clock.sleep(3 * LOOK_S)
    assert [rig.value("relay_consumer_lag", process=process) for process in (0, 1)] == [0, None]
    first.cancel()
    await rig.clock.sleep(3 * LOOK_S + LEASE_S)
    assert rig.value("relay_consumer_lag", process=1) == 0
    second.cancel()


@virtually
async def test_who_cannot_reach_the_log_lets_another_one_look() -> None:
    rig = Rig()
    await rig.start()
    other = MemoryLog(rig.broker)  # which was not started
    cut_off = LagWatch(other, rig.state, rig.topics, lambda: ["ci"], rig.clock, Metrics("1"), owner="cut-off")
    tasks = [asyncio.create_task(cut_off.run()), asyncio.create_task(rig.watches[0].run())]
    await rig.clock.sleep(2 * LOOK_S)
    assert rig.value("relay_consumer_lag") == 0
    for task in tasks:
        task.cancel()


@virtually
async def test_while_the_log_is_away_nothing_is_shown_and_it_goes_on_after() -> None:
    rig = Rig()
    await rig.start()
    watch = asyncio.create_task(rig.watches[0].run())
    await rig.clock.sleep(1)
    rig.broker.available = False
    await rig.clock.sleep(2 * LOOK_S)
    assert rig.value("relay_consumer_lag") is None
    rig.broker.available = True
    await rig.append(count=2)
    await rig.clock.sleep(2 * LOOK_S)
    assert rig.value("relay_consumer_lag") == 2
    watch.cancel()


@virtually
async def test_a_slow_look_is_made_less_often() -> None:
    rig = Rig()
    await rig.start()
    looks: list[float] = []
    look = rig.watches[0].look

    async def slow() -> list[LaneNow]:
        looks.append(rig.clock.monotonic())
        await rig.clock.sleep(6.0)
        return list(await look())

    rig.watches[0].look = slow  # type: ignore[method-assign]
    watch = asyncio.create_task(rig.watches[0].run())
    await rig.clock.sleep(200.0)
    watch.cancel()
    assert [round(then - first) for first, then in pairwise(looks)] == [6 + 6 * COST] * 3


@virtually
async def test_those_beyond_the_bound_share_a_series() -> None:
    rig = Rig("a", "b", "c", "d")
    await rig.start()
    for name, count in (("a", 1), ("b", 5), ("c", 2), ("d", 3)):
        await rig.append(f"to_receiver_{name}", count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lag, "MAX_RECEIVERS", 2)
        watch = asyncio.create_task(rig.watches[0].run())
        await rig.clock.sleep(0.1)
        watch.cancel()
    assert rig.value("relay_consumer_lag", receiver="b") == 5
    assert rig.value("relay_consumer_lag", receiver="d") == 3
    assert rig.value("relay_consumer_lag", receiver=OTHER, role="to-receiver", topic=OTHER, partition=OTHER) == 3
    assert rig.value("relay_lanes_unserved", receiver=OTHER, role="to-receiver") == 2
    assert rig.value("relay_consumer_lag") == 11


def test_who_has_records_and_no_worker_is_named_first() -> None:
    def lane(name: str, end: int, seen_s: float | None) -> LaneNow:
        return LaneNow(Backlog(GROUP, TopicPartition(f"to_receiver_{name}", 0), 0, end, 0), "to-receiver", name, seen_s)

    lanes = [lane(f"r-{number:03}", 100, 1.0) for number in range(series.MAX_RECEIVERS)]
    assert worst([*lanes, lane("small", 1, None), lane("idle", 0, None)]) == {
        MANY,
        "small",
        *(f"r-{number:03}" for number in range(series.MAX_RECEIVERS - 1)),
    }
