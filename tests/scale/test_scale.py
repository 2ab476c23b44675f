"""Receivers out of a million, 120,000 requests in flight, the real core in virtual time: caps, order, no starving.

What an item costs in memory is printed (`pytest -s`). The large form is in `make test-full`.
"""

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.fakes.virtual_time import START, run_virtually
from tests.scale.relays import HOG, IN_FLIGHT, Process, Receivers, Short, message_id, receiver_name, run

TAKES_S = 5.0
SLOW_S = 60.0
"""One receiver in a hundred."""
SLOW_EVERY = 100


def takes_s(name: str) -> float:
    return SLOW_S if int(name[2:]) % SLOW_EVERY == 0 else TAKES_S


def work(receivers: range, hog: int) -> Iterator[Short]:
    """One message for most, three for every tenth; all of the hog's come before the others'."""
    yield from ((HOG, number) for number in range(hog))
    for round_number in range(3):
        for receiver in receivers:
            if receiver != HOG and (round_number == 0 or receiver % 10 == 0):
                yield receiver, round_number


@pytest.mark.parametrize(
    ("receivers", "processes", "partitions", "seats"),
    [
        pytest.param(range(20_000), 4, 8, 1_500, id="small"),
        pytest.param(range(0, 1_000_000, 6), 8, 64, 15_000, id="full", marks=pytest.mark.slow),
    ],
)
def test_at_full_size_caps_and_order_hold_and_nobody_starves(
    receivers: range, processes: int, partitions: int, seats: int
) -> None:
    seen = Receivers(takes_s)
    hog = 200
    expected = sum(1 for _ in work(receivers, hog))

    async def story() -> None:
        each = partitions // processes
        running = [Process(range(n * each, (n + 1) * each), seen, seats=seats) for n in range(processes)]
        await run(running, work(receivers, hog), partitions)
        assert max(one.transport.most_in_flight for one in running) <= seats
        assert sum(one.log.count for one in running) == expected

    run_virtually(story())
    assert seen.faults == []
    assert len(seen.answered) == expected
    assert seen.most_at_one == IN_FLIGHT
    assert seen.most_in_flight >= 0.95 * processes * seats
    assert seen.most_in_flight <= processes * seats
    # Seats are the bound: so many turns of the quick ones, and what the slow ones keep of them.
    work_s = sum(takes_s(receiver_name(receiver)) for receiver, _ in work(receivers, hog))
    ideal_s = work_s / (processes * seats)
    first = max(seen.answered[message_id((receiver, 0))] - START for receiver in quick(receivers))
    assert first < 4 * ideal_s + 2 * SLOW_S
    print(f"{expected:,} messages, {seen.most_in_flight:,} in flight, the last quick one after {first:.0f} s")  # noqa: T201


def quick(receivers: range) -> Iterator[int]:
    return (n for n in receivers if n != HOG and n % SLOW_EVERY)


@pytest.mark.parametrize(
    ("count", "partitions"),
    [pytest.param(6_000, 4, id="small"), pytest.param(120_000, 80, id="full", marks=pytest.mark.slow)],
)
def test_memory_of_a_request_in_flight(count: int, partitions: int) -> None:
    """Of our own objects, in one process: bounded widely, as it depends on the interpreter."""
    seen = Receivers(lambda _name: 1e6)
    taken = [0, 0]

    async def story() -> None:
        process = Process(range(partitions), seen, seats=count)
        gc.collect()
        tracemalloc.start()
        bringing = asyncio.ensure_future(run([process], ((n, 0) for n in range(count)), partitions))
        while seen.in_flight < count:  # noqa: ASYNC110 - virtual seconds
            await asyncio.sleep(1.0)
        gc.collect()
        taken[0] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)

    run_virtually(story())
    each = taken[0] / count
    print(f"{each:,.0f} bytes of Python objects for a request in flight")  # noqa: T201
    assert 1_000 < each < 20_000
