"""The virtual time of tests."""

import asyncio

from relay.clock import set_within
from tests.fakes.virtual_time import VirtualLoop, run_virtually


async def _turns_until(moment: float) -> int:
    loop, turns = asyncio.get_running_loop(), 0
    while loop.time() < moment and turns < 100:
        turns += 1
        await asyncio.sleep(0)
        await set_within(asyncio.Event(), moment - loop.time())
    return turns


def test_waits_that_are_repeated_until_a_moment_end_after_a_standstill() -> None:
    """The sum of the time and the standstill is below that moment by the last bit."""

    async def both() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        moment = loop.time() + 0.8
        await asyncio.sleep(0.1)
        loop.stand_still(0.7)
        first = asyncio.create_task(_turns_until(moment))
        await asyncio.sleep(0)
        return await asyncio.gather(first, _turns_until(moment))

    assert max(run_virtually(both())) <= 1
