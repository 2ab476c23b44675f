"""How far each lane is behind, how old its first unfinished record is, who is named, and which process shows it."""

import asyncio
from itertools import pairwise

import pytest

from relay.log.port import Backlog, TopicPartition
from relay.state.lanes import LaneNow
from relay.state.read_model import LaneHeartbeat, Served
from relay.telemetry import series
from relay.telemetry.metrics import Metrics
from relay.telemetry.series import OTHER
from relay.watch import lag
from relay.watch.lag import COST, LEASE_S, LOOK_S, MANY, LagWatch, worst
from tests.fakes.log import MemoryLog
from tests.fakes.two_processes import TwoProcesses
from tests.fakes.virtual_time import virtually

CI = TopicPartition("to_receiver_ci", 0)
GROUP = "relay.to-receiver"


class Rig(TwoProcesses):
    """Their watches."""

    def __init__(self, *names: str) -> None:
        super().__init__(*(names or ("ci",)))
        self.watches = [
            LagWatch(
                self.log, self.state, self.topics, lambda: self.names, self.clock, metrics, owner=f"process-{index}"
            )
            for index, metrics in enumerate(self.metrics)
        ]


@virtually
async def test_a_lane_is_shown_with_its_lag_its_age_and_whether_it_is_served() -> None:
    rig = await Rig().started()
    await rig.append(count=3)
    await rig.clock.sleep(100.0)
    await rig.state.keep_heartbeats([LaneHeartbeat(*CI)])
    watch = asyncio.create_task(rig.watches[0].run())
    await rig.clock.sleep(0.1)
    assert rig.value("relay_consumer_lag", role="to-receiver", receiver="ci", partition="0") == 3
    age_s = rig.value(
        "relay_oldest_message_age_seconds", topic=CI.topic, partition="0", receiver="ci", role="to-receiver"
    )
    assert age_s == pytest.approx(100, abs=0.5)
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
    rig = await Rig().started()
    first, second = (asyncio.create_task(watch.run()) for watch in rig.watches)
    await rig.clock.sleep(3 * LOOK_S)
    assert [rig.value("relay_consumer_lag", process=process) for process in (0, 1)] == [0, None]
    first.cancel()
    await rig.clock.sleep(3 * LOOK_S + LEASE_S)
    assert rig.value("relay_consumer_lag", process=1) == 0
    second.cancel()


@virtually
async def test_who_cannot_reach_the_log_lets_another_one_look() -> None:
    rig = await Rig().started()
    other = MemoryLog(rig.broker)  # which was not started
    cut_off = LagWatch(other, rig.state, rig.topics, lambda: ["ci"], rig.clock, Metrics("1"), owner="cut-off")
    tasks = [asyncio.create_task(cut_off.run()), asyncio.create_task(rig.watches[0].run())]
    await rig.clock.sleep(2 * LOOK_S)
    assert rig.value("relay_consumer_lag") == 0
    for task in tasks:
        task.cancel()


@virtually
async def test_while_the_log_is_away_nothing_is_shown_and_it_goes_on_after() -> None:
    rig = await Rig().started()
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
    rig = await Rig().started()
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
async def test_a_slow_look_keeps_the_lease_until_the_next_one() -> None:
    """Two processes that both show the lags would have them added up."""
    rig = await Rig().started()
    look = rig.watches[0].look

    async def slow() -> list[LaneNow]:
        await rig.clock.sleep(LEASE_S)
        return list(await look())

    rig.watches[0].look = slow  # type: ignore[method-assign]
    tasks = [asyncio.create_task(watch.run()) for watch in rig.watches]
    for _ in range(100):
        await rig.clock.sleep(LOOK_S)
        assert rig.value("relay_consumer_lag", process=1) is None
    for task in tasks:
        task.cancel()


@virtually
async def test_those_beyond_the_bound_share_a_series() -> None:
    rig = await Rig("a", "b", "c", "d").started()
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
        backlog = Backlog(GROUP, TopicPartition(f"to_receiver_{name}", 0), 0, end, 0)
        return LaneNow(backlog, "to-receiver", name, None if seen_s is None else Served(ago_s=seen_s))

    lanes = [lane(f"r-{number:03}", 100, 1.0) for number in range(series.MAX_RECEIVERS)]
    assert worst([*lanes, lane("small", 1, None), lane("idle", 0, None)]) == {
        MANY,
        "small",
        *(f"r-{number:03}" for number in range(series.MAX_RECEIVERS - 1)),
    }
