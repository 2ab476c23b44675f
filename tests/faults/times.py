"""Experiments with times and keys of messages, by which planted bugs are found."""

from msgspec import structs

from relay.domain.dead_letter import parse_dead_letter
from relay.domain.timing import Timing
from tests.fakes.world import Process, World, message, receiver


async def _world(path: str, *given: Timing) -> World:
    world = await World([receiver("r", path, timeout=20.0, base=5.0, factor=1.0, cap=5.0, max_attempts=1_000)]).create()
    start = world.clock.time()
    for number, timing in enumerate(given):
        due, until = (start + at if at else 0.0 for at in (timing.deliver_at, timing.deadline))
        timing = structs.replace(timing, deliver_at=due, deadline=until)
        await world.send(structs.replace(message(number, "a", "r"), timing=timing))
    return world


def _reasons(world: World) -> list[str]:
    return [parse_dead_letter(letter.headers).reason for letter in world.broker.records(world.topics.failed_messages)]


async def a_message_that_is_not_due() -> None:
    world = await _world("/answer", Timing(40.0))
    process, due = Process(world), world.clock.monotonic() + 40.0
    await process.stop(after=60)
    assert [at >= due for at in world.outside.starts["/answer"]] == [True]


async def a_receiver_that_is_down_until_after_a_deadline() -> None:
    world = await _world("/answer", Timing(deadline=30.0))
    world.outside.down.add("answer")
    process = await Process(world).run(60)
    world.outside.down.clear()
    await process.stop(after=60)
    assert (world.outside.arrived("/answer"), _reasons(world)) == ([], ["expired"])


async def a_newer_message_while_an_older_one_is_sent() -> None:
    world = await _world("/slow", Timing(key="k"))
    process = await Process(world).run(5)
    await world.send(structs.replace(message(1, "a", "r"), timing=Timing(key="k")))
    await process.stop(after=60)
    assert (world.outside.arrived("/slow"), _reasons(world)) == (["a-0", "a-1"], [])


async def messages_of_a_key_that_wait_together() -> None:
    world = await _world("/answer", *[Timing(20.0, key="k")] * 3)
    await Process(world).stop(after=60)
    assert (world.outside.arrived("/answer"), _reasons(world)) == (["a-2"], ["replaced", "replaced"])
