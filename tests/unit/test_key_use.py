"""The time at which a key was used last: stored in bulk, seldom, and again after a failure."""

import asyncio
from collections.abc import Mapping

from relay.api.keys import EVERY_S, KeyUse
from relay.domain.errors import StateUnavailable
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import LoopClock, virtually


class Told(MemoryState):
    """`calls`: all stored times. `away`: calls fail."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock=clock.time)
        self.calls: list[set[str]] = []
        self.away = False

    async def use_keys(self, used: Mapping[str, float]) -> None:
        self.calls.append(set(used))
        if self.away:
            raise StateUnavailable("away")
        await super().use_keys(used)


@virtually
async def test_what_many_requests_say_is_told_in_one_call_and_once_a_minute() -> None:
    clock = LoopClock()
    state = Told(clock)
    uses = KeyUse(state, clock)
    await uses.start()
    for second in range(90):
        uses.note("a")
        uses.note("b" if second < 2 else "c")
        await asyncio.sleep(1)
    assert state.calls == [{"a", "b"}, {"c"}, {"a"}, {"c"}]
    began = clock.time() - 90
    assert await uses.last(["a", "b", "d"]) == [began + EVERY_S, began, None]
    await uses.close()


@virtually
async def test_what_could_not_be_told_is_told_later_with_the_moment_that_it_was() -> None:
    clock = LoopClock()
    state = Told(clock)
    uses = KeyUse(state, clock)
    await uses.start()
    state.away = True
    uses.note("a")
    began = clock.time()
    await asyncio.sleep(EVERY_S)
    state.away = False
    await asyncio.sleep(EVERY_S)
    assert state.calls == [{"a"}, {"a"}]
    assert await uses.last(["a"]) == [began]
    uses.note("b")
    await uses.close()
    assert state.calls[-1] == {"b"}
