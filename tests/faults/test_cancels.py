"""What was never sent can be cancelled, one by one or many at once: afterwards it is never sent, and its sender knows.
Whatever happens meanwhile, each message is either cancelled or sent."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec import structs

from relay.domain.hold import Hold
from relay.domain.identity import DeliveryId
from relay.domain.replay_job import Selection
from relay.domain.timing import Timing
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import CRASHES, CrashError, Fuse, Strikes, crash_at_each
from tests.fakes.virtual_time import until
from tests.fakes.world import message
from tests.faults.test_replays import ended

LANES = pytest.mark.parametrize("lane", ["dedicated", "shared"])
LONG_S = 900.0


async def world_of(lane: str = "dedicated", **entry: Any) -> ReplayWorld:
    return await ReplayWorld().create("r", lane=lane, **entry)


async def send(world: ReplayWorld, numbers: Sequence[int], delay: float = LONG_S) -> None:
    await world.send(*(structs.replace(message(n, "a", "r"), timing=Timing(delay)) for n in numbers))


async def cancel(world: ReplayWorld, process: ReplayProcess, message_id: str) -> bool:
    row = await world.row("r", "a", message_id)
    return await process.replay_service.cancel(DeliveryId("r", "a", message_id), row, None)


@LANES
@pytest.mark.parametrize("delay", [30.0, LONG_S], ids=["in memory", "parked"])
async def test_a_delayed_message_is_cancelled_and_its_sender_knows(lane: str, delay: float) -> None:
    world = await world_of(lane)
    await send(world, [1, 2], delay)
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(10)
    assert await cancel(world, process, "a-1")
    assert await cancel(world, process, "a-1"), "it can be repeated"
    if delay == LONG_S:  # it does not wait until it is due
        await until(_letters(world, 1), 40)
    await until(world.is_at_rest, 2000)
    assert world.outside.arrived("/answer") == ["a-2"]
    assert world.outside.reasons() == {"a-1": "cancelled"}
    assert await cancel(world, process, "a-1"), "also after its end"
    assert not await cancel(world, process, "a-2")
    assert await world.state.failed("r", limit=10) == [], "nobody has to look at it"
    await process.stop()


def _letters(world: ReplayWorld, count: int) -> Any:
    async def there() -> bool:
        return len(world.letters()) == count

    return there


async def test_what_waits_in_the_log_or_behind_a_pause_is_cancelled() -> None:
    world = await world_of()
    process = ReplayProcess(world)
    await until(world.is_at_rest)
    await world.state.hold("r:r", Hold("paused", 1.0))
    assert await cancel(world, process, "a-1"), "before it has even come"
    await world.send(*(message(n, "a", "r") for n in range(1, 5)))
    await asyncio.sleep(5)
    assert await cancel(world, process, "a-3")
    await world.state.resume("r:r")
    await until(world.is_at_rest)
    assert world.outside.arrived("/answer") == ["a-2", "a-4"]
    assert world.outside.reasons() == {"a-1": "cancelled", "a-3": "cancelled"}
    await process.stop()


async def test_what_was_tried_is_not_cancelled() -> None:
    world = await world_of(retry={"base": 50, "factor": 1, "cap": 50, "max_attempts": 1000})
    world.outside.down.add("answer")
    await world.send(message(1, "a", "r"))
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(10)
    assert not await cancel(world, process, "a-1")
    world.outside.down.clear()
    await until(world.is_at_rest)
    assert world.outside.arrived("/answer") == ["a-1"]
    await process.stop()


@LANES
async def test_many_are_cancelled_by_a_job_wherever_they_are(lane: str) -> None:
    world = await world_of(lane, rate_limit=1)
    await send(world, range(4))
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(10)
    await world.state.hold("r:r", Hold("paused", 1.0))
    await world.send(*(message(n, "a", "r") for n in range(4, 8)), message(8, "b", "r"))
    await asyncio.sleep(5)
    chosen = Selection(receivers=frozenset({"r"}), sources=frozenset({"a"}))
    order, _ = await process.replay_service.order("cancel", chosen, only_failed=False)
    preview = await process.replay_service.preview(order, seconds=10)
    assert (preview.counted, preview.to_send) == (8, 8)
    job = await process.replay_service.submit(order)
    await until(_is_over(process, job.order.id))
    await world.state.resume("r:r")
    over = await ended(world, process, job)
    assert (over.progress.state, over.progress.sent) == ("done", 8)
    assert world.outside.arrived("/answer") == ["b-8"]
    assert world.outside.reasons() == {f"a-{n}": "cancelled" for n in range(8)}
    undone = await ended(world, process, await process.order("replay", Selection(reasons=frozenset({"cancelled"}))))
    assert undone.progress.sent == 8
    assert sorted(world.outside.arrived("/answer", "a")) == [f"a-{n}" for n in range(8)], "a replay undoes it"
    await process.stop()


def _is_over(process: ReplayProcess, id: str) -> Any:
    async def over() -> bool:
        job = process.registry.jobs.get(id)
        return job is not None and job.is_over

    return over


async def test_a_job_takes_only_what_was_accepted_in_its_time() -> None:
    """And not the copies of other steps, nor what was sent."""
    world = await world_of()
    await send(world, [1])
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(100)
    between_ms = int(world.clock.time() * 1000)
    await send(world, [2])
    await world.send(message(3, "a", "r"))
    await asyncio.sleep(10)
    over = await ended(world, process, await process.order("cancel", Selection(since_ms=between_ms), only_failed=False))
    assert over.progress.sent == 1
    assert sorted(world.outside.arrived("/answer")) == ["a-1", "a-3"]
    assert world.outside.reasons() == {"a-2": "cancelled"}
    await process.stop()


@CRASHES
def test_a_crash_at_any_step_leaves_each_cancelled_or_sent(late: bool, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world = await world_of()
        await send(world, [1, 2], delay=100.0)
        await world.send(message(3, "a", "r"))
        first = ReplayProcess(world, fuse)
        accepted = False
        if not await first.ended(20):
            with suppress(CrashError):  # then the caller does not know
                accepted = await cancel(world, first, "a-1")
            await first.ended(20)
        await first.kill()
        await ReplayProcess(world).finish()
        arrived, reasons = world.outside.arrived("/answer"), world.outside.reasons()
        place = fuse.names[-1:]
        assert sorted(set(arrived) | set(reasons)) == ["a-1", "a-2", "a-3"], place
        assert not set(arrived) & set(reasons), place
        assert not (accepted and "a-1" in arrived), place

    crash_at_each(story, strikes, late=late)


@pytest.mark.parametrize("at", [0.0, 0.005, 0.011, 0.02, 0.05, 0.5])
async def test_a_cancel_in_the_moment_of_its_attempt_is_one_or_the_other(at: float) -> None:
    world = await world_of()
    process = ReplayProcess(world)
    await until(world.is_at_rest)
    await send(world, [1], delay=10.0)
    await asyncio.sleep(10 + at)
    cancelled = await cancel(world, process, "a-1")
    await until(world.is_at_rest)
    assert world.outside.arrived("/answer") == ([] if cancelled else ["a-1"])
    assert world.outside.reasons() == ({"a-1": "cancelled"} if cancelled else {})
    await process.stop()
