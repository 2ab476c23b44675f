"""A sender's callback that is down: its results wait, beyond its own cap, and its neighbours' do not."""

from typing import Any

from relay.config.settings import Settings
from relay.domain.receiver import BreakerPolicy, Endpoint, OfflinePolicy, RetryPolicy, Source
from relay.log.partitioner import partition_of
from tests.fakes.virtual_time import virtually
from tests.fakes.world import Process, World, message, receiver

CAP = 30
NEIGHBOURS = "a", next(f"b{n}" for n in range(100) if partition_of(f"b{n}".encode(), 10) == partition_of(b"a", 10))


async def _world(**bounds: Any) -> World:
    """The callback of the first is down."""
    given = {
        "receivers_file": "none",
        "parked_per_receiver": CAP,
        "window_records": 50,
        "window_offsets": 500,
        **bounds,
    }
    retry = RetryPolicy(base=90, factor=1.0, cap=90, max_attempts=1_000, jitter=False)
    breaker = BreakerPolicy(offline=OfflinePolicy(after=86_400))
    sources = [
        Source(source, Endpoint(f"http://sender/{path}", retry=retry, breaker=breaker))
        for source, path in zip(NEIGHBOURS, ("down", "callback"), strict=True)
    ]
    world = World([receiver("r", "/answer")], settings=Settings.model_validate(given), sources=sources)
    await world.create()
    world.outside.down.add("down")
    return world


def _called(world: World, path: str) -> list[str]:
    return [headers["relay-message-id"] for at, headers, _ in world.outside.posts if at == path]


@virtually
async def test_a_source_over_its_cap_loses_nothing_and_stops_nobody() -> None:
    world = await _world()
    waiting, other = NEIGHBOURS
    await world.send(*(message(number, waiting, "r") for number in range(10 * CAP)))
    process = Process(world)
    await process.ended(600)
    await world.send(*(message(number, other, "r") for number in range(CAP)))
    await process.ended(120)
    assert sorted(_called(world, "/callback")) == sorted(f"{other}-{number}" for number in range(CAP))
    assert await world.parked_references() > CAP
    world.outside.down.clear()
    await process.ended(600)
    await process.stop()
    assert world.told.dead_letters == {}
    assert sorted(_called(world, "/down")) == sorted(f"{waiting}-{number}" for number in range(10 * CAP))
    assert await world.is_at_rest()


@virtually
async def test_at_the_cap_of_all_the_intake_stops_and_nothing_is_lost() -> None:
    world = await _world(parked_total=2 * CAP)
    waiting, _ = NEIGHBOURS
    await world.send(*(message(number, waiting, "r") for number in range(10 * CAP)))
    process = Process(world)
    await process.ended(900)
    assert await world.parked_references() <= 2 * CAP + 5
    assert world.uncommitted()
    assert world.told.dead_letters == {}
    world.outside.down.clear()
    await process.ended(900)
    await process.stop()
    assert sorted(_called(world, "/down")) == sorted(f"{waiting}-{number}" for number in range(10 * CAP))
    assert await world.is_at_rest()
