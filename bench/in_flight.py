"""As many requests in flight as one process can have, which the receiver holds unanswered, and the memory they take."""

import asyncio
from pathlib import Path
from typing import Final

from bench.phases import LATE_S, counts_of, until
from bench.results import InFlight, Level
from bench.rig import Rig

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
    await asyncio.sleep(LATE_S)  # what is about to be freed is freed
    return Level(await rig.held(), rig.sample().largest[rig.system.name])
