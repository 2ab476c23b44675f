"""The phases of a case: a backlog drained, load at a fixed rate, and as many requests in flight as possible."""

import asyncio
import time
from pathlib import Path
from typing import Final

from bench.backlog import Depth, judge
from bench.counters import traffic
from bench.load import Load
from bench.results import Counts, Drain, InFlight, Level, Steady, latency_of
from bench.rig import Arrivals, Rig
from bench.usage import Meter

_LOOK_S: Final = 0.25
LATE_S: Final = 1.0
"""A copy that comes after the last message by no more than this counts in its phase; later ones in the next."""

_STANDSTILL_S: Final = 30.0
"""If nothing has arrived for so long, missing messages count as lost. Beyond retries within a case."""


async def drain(rig: Rig, count: int) -> Drain:
    """Make a backlog of `count` while the relay is down, then start it."""
    flood = rig.options.via != "kafka"
    if not flood:
        await rig.relay.stop()
    await rig.restart_counts()
    first, launched_ns = rig.serial, 0
    async with rig.load(count, rate=0) as load, Meter(rig.sample).running() as meter:
        if flood:
            counters = await rig.counters()
            await load.go()
        else:
            await load.go()
            await load.done.wait()
            load.check()
            counters, launched_ns = await rig.counters(), time.time_ns()
            await rig.relay.start()
        before = await until(rig, load, 1)
        meter.begin()
        arrived = await until(rig, load, count)
        usage = meter.end(arrived - before)
        taken = traffic(counters, await rig.counters(), count, 0)
        await asyncio.sleep(LATE_S)
        arrivals = await rig.arrivals(first, first + count)
        seconds = (arrivals.last_ns - arrivals.first_ns) / 1e9
        rate, first_s = arrivals.arrived / max(seconds, 1e-9), (arrivals.first_ns - launched_ns) / 1e9
        counts = counts_of(rig, count, load.failed, arrivals)
        return Drain(rate, seconds, flood, counts, usage, None if flood else first_s, taken)


async def steady(rig: Rig, rate: float, seconds: float) -> Steady:
    """Load at `rate` for `seconds`, then wait until all of it has arrived."""
    await rig.restart_counts()
    first, count = rig.serial, max(1, round(rate * seconds))
    async with rig.load(count, rate) as load, rig.beside(seconds), Meter(rig.sample).running() as meter:
        counters = await rig.counters()
        await load.go()
        meter.begin()
        depths = await _watched(rig, load, seconds)
        usage = meter.end(await rig.arrived())
        await until(rig, load, count)
        taken = traffic(counters, await rig.counters(), count, load.produced)
        await asyncio.sleep(LATE_S)
        arrivals = await rig.arrivals(first, first + count)
        counts, latency = counts_of(rig, count, load.failed, arrivals), latency_of(arrivals)
        return Steady(rate, seconds, judge(depths, rate), latency, counts, usage, depths, taken)


async def _watched(rig: Rig, load: Load, seconds: float) -> list[Depth]:
    """The number of unfinished messages, from now on for so long."""
    started, depths = time.monotonic(), list[Depth]()
    while (at_s := time.monotonic() - started) < seconds:
        arrived = await rig.arrived()
        depths.append(Depth(at_s, max(0, min(load.job.count, int(load.job.rate * at_s)) - arrived)))
        load.check()
        await asyncio.sleep(min(_LOOK_S, max(0.0, seconds - at_s)))
    return depths


async def until(rig: Rig, load: Load, wanted: int) -> int:
    """Wait until `wanted` messages of the phase have arrived, or nothing arrives any more; how many did."""
    most, since = 0, time.monotonic()
    while True:
        arrived = await rig.arrived()
        if arrived >= wanted:
            return arrived
        if arrived > most or not load.done.is_set():
            most, since = arrived, time.monotonic()
        if time.monotonic() - since > _STANDSTILL_S:
            return arrived
        load.check()
        rig.system.check()
        await asyncio.sleep(0.05)


def counts_of(rig: Rig, sent: int, rejected: int, arrivals: Arrivals) -> Counts:
    """Counts of `sent` messages, `rejected` of which were not accepted. Raises ChildFailed when a part of the system
    had ended."""
    rig.system.check_whole()
    return Counts(
        sent=sent,
        lost=sent - arrivals.arrived - rejected,
        duplicated=arrivals.repeats,
        misordered=arrivals.misordered,
        refused=arrivals.refused,
        rejected=rejected,
    )


_RESERVE: Final = 1_000
"""Descriptors for all else: Kafka, Redis, the API's own connections."""
_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORTS_RESERVE: Final = 4_000


def most_in_flight(descriptors: int) -> int:
    """Connections from one process to one address: bounded by its hard limit of descriptors, and by local ports."""
    lowest, highest = map(int, _PORTS.read_text().split())
    return min(descriptors - _RESERVE, highest - lowest + 1 - _PORTS_RESERVE)


async def hold(rig: Rig, count: int) -> InFlight:
    """Bring half of `count` requests into flight, then the rest, and have all of them answered."""
    await rig.restart_counts()
    await rig.tell("/hold")
    first, levels, halves = rig.serial, [await _level(rig)], (count // 2, count - count // 2)
    for part in halves:
        async with rig.load(part, rate=0) as load:
            await load.go()
            await until(rig, load, rig.serial - first)
        levels.append(await _level(rig))
    await rig.tell("/release")
    await asyncio.sleep(LATE_S)
    arrivals = await rig.arrivals(first, first + count)
    return InFlight(count, rig.case.payload, levels, counts_of(rig, count, 0, arrivals))


async def _level(rig: Rig) -> Level:
    await asyncio.sleep(LATE_S)  # pending memory is freed
    return Level(await rig.held(), rig.sample().largest[rig.system.name])
