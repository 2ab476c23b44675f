"""The clock that all processes share: its measurement, its changes, and the warnings about a wrong clock."""

import asyncio
import io
import json
from collections.abc import Iterator

import pytest

from relay.clock import SAMPLES, SharedClock
from relay.domain.errors import StateUnavailable
from relay.telemetry.logging import configure
from relay.telemetry.metrics import Metrics
from relay.watch.readiness import CLOCK_LOOK_S, ClockWatch
from tests.fakes.virtual_time import LoopClock, OffClock, virtually

HOUR_S = 3600.0


class Server:
    """Shows the world's time, when asked; each way takes as long as `ways` says."""

    def __init__(self) -> None:
        self.world = LoopClock()
        self.off_s = 0.0
        self.ways: Iterator[tuple[float, float]] = iter(())
        self.away = False
        self.asked = 0

    async def time(self) -> float:
        self.asked += 1
        there_s, back_s = next(self.ways, (0.0, 0.0))
        await asyncio.sleep(there_s)
        if self.away:
            raise StateUnavailable("away")
        found = self.world.wall() + self.off_s
        await asyncio.sleep(back_s)
        return found


class Rig:
    def __init__(self, off_s: float) -> None:
        self.own, self.server, self.world = OffClock(off_s), Server(), LoopClock()
        self.clock = SharedClock(self.own, self.server)
        self.metrics = Metrics("1")
        self._out = io.StringIO()
        configure("json", stream=self._out)

    async def watched(self, seconds: float) -> None:
        """Let a watch run for so long."""
        watching = asyncio.create_task(ClockWatch(self.clock, self.metrics).run())
        await self.world.sleep(seconds)
        watching.cancel()
        await asyncio.wait([watching])

    @property
    def error_s(self) -> float:
        return self.clock.time() - self.world.wall()

    def said(self) -> list[tuple[str, float]]:
        lines = [json.loads(line) for line in self._out.getvalue().splitlines()]
        return [(line["event"], line["ahead_s"]) for line in lines]

    def metric(self) -> float:
        _, _, after = self.metrics.render().decode().partition("\nrelay_clock_offset_seconds ")
        return float(after.split()[0])


def approximately(expected: object) -> object:
    return pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S, 0.0])
@virtually
async def test_before_it_is_measured_it_is_the_machines_own(off_s: float) -> None:
    rig = Rig(off_s)
    assert rig.error_s == approximately(off_s)
    assert rig.clock.ahead_s == approximately(0)


@pytest.mark.parametrize("off_s", [HOUR_S, -24 * HOUR_S, 0.0])
@virtually
async def test_once_measured_it_is_the_servers_and_the_wall_stays_what_it_is(off_s: float) -> None:
    rig = Rig(off_s)
    await rig.clock.measure()
    await rig.world.sleep(5)
    assert rig.error_s == approximately(0)
    assert rig.clock.wall() == rig.own.wall()
    assert rig.clock.ahead_s == approximately(off_s)
    assert rig.clock.monotonic() == rig.own.monotonic()


@virtually
async def test_the_shortest_way_there_and_back_counts() -> None:
    rig = Rig(HOUR_S)
    rig.server.ways = iter([(0.8, 0.0), (0.0, 0.9), (0.01, 0.01), (2.0, 0.0), (0.0, 0.5)])
    await rig.clock.measure()
    assert rig.server.asked == SAMPLES
    assert rig.error_s == approximately(0)


@virtually
async def test_setting_the_date_of_the_machine_does_not_move_it() -> None:
    rig = Rig(0.0)
    await rig.clock.measure()
    rig.own.off_s = HOUR_S
    assert rig.error_s == approximately(0)
    assert rig.clock.ahead_s == approximately(HOUR_S)


@virtually
async def test_while_the_server_is_away_the_last_measurement_counts() -> None:
    rig = Rig(HOUR_S)
    await rig.clock.measure()
    rig.server.away = True
    with pytest.raises(StateUnavailable):
        await rig.clock.measure()
    await rig.watched(10 * CLOCK_LOOK_S)
    assert rig.error_s == approximately(0)
    assert rig.metric() == approximately(HOUR_S)


@virtually
async def test_it_follows_the_server() -> None:
    rig = Rig(0.0)
    await rig.clock.measure()
    rig.server.off_s = 5.0
    await rig.watched(CLOCK_LOOK_S + 1)
    assert rig.error_s == approximately(5)


@pytest.mark.parametrize(
    ("off_s", "then_s", "said"),
    [
        (HOUR_S, HOUR_S, [("clock_off", HOUR_S)]),
        (-HOUR_S, -HOUR_S, [("clock_off", -HOUR_S)]),
        (HOUR_S, HOUR_S + 2, [("clock_off", HOUR_S)]),
        (HOUR_S, 2 * HOUR_S, [("clock_off", HOUR_S), ("clock_off", 2 * HOUR_S)]),
        (HOUR_S, 1.0, [("clock_off", HOUR_S), ("clock_right", 1.0)]),
        (29.0, 29.0, []),
        (29.0, 31.0, [("clock_off", 31.0)]),
    ],
)
@virtually
async def test_a_clock_that_is_off_is_said_once_for_each_change(
    off_s: float, then_s: float, said: list[tuple[str, float]]
) -> None:
    rig = Rig(off_s)
    await rig.clock.measure()
    watching = asyncio.create_task(rig.watched(20 * CLOCK_LOOK_S))
    await rig.world.sleep(5.5 * CLOCK_LOOK_S)
    rig.own.off_s = then_s
    await watching
    assert rig.said() == [(event, approximately(ahead_s)) for event, ahead_s in said]
    assert rig.metric() == approximately(then_s)
