"""Shares of callers: never more places than there are, none of the reserve for others, and no caller waits in vain."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from relay.api import shares
from relay.api.problems import Problem
from relay.api.shares import Leave, Sharer, Shares
from relay.domain.fair_share import OF_RESERVE, FairShare
from workers.dependencies import Meter

CALLERS: Final = [Sharer(name, is_admin=name.isupper()) for name in "abcdefghijAB"]
Step = tuple[str, int]
WORDS: Final = ["ask", "ask", "ask", "leave", "give up", "crowd"]
STEPS: Final = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, len(CALLERS) - 1)), max_size=60)


class Room:
    """Asks for places, and knows who has them and who waits."""

    def __init__(self, made: Callable[..., Shares], most: int) -> None:
        self.most, self.reserve = most, most // OF_RESERVE
        self.shares = made("search", "places", most, Meter())
        self.has: dict[asyncio.Task[None], Sharer] = {}
        self.waits: dict[asyncio.Task[None], Sharer] = {}
        self.leaves: dict[asyncio.Task[None], asyncio.Event] = {}

    async def ask(self, caller: Sharer) -> None:
        event = asyncio.Event()

        async def stay() -> None:
            me = asyncio.current_task()
            assert me is not None
            try:
                async with self.shares.turn(caller, lambda: None):
                    del self.waits[me]
                    self.has[me] = caller
                    await event.wait()
            except Problem:
                pass
            finally:
                self.has.pop(me, None)
                self.waits.pop(me, None)

        task = asyncio.create_task(stay())
        self.waits[task], self.leaves[task] = caller, event
        await self.settle()

    async def leave(self, caller: Sharer) -> None:
        for task, owner in list(self.has.items()):
            if owner == caller:
                self.leaves[task].set()
                break
        await self.settle()

    async def give_up(self, caller: Sharer, *, at_once: bool) -> None:
        """One that waits gives up; `at_once`: in the moment in which a place is free."""
        for task, owner in list(self.waits.items()):
            if owner == caller:
                if at_once and self.has:
                    self.leaves[next(iter(self.has))].set()
                    await asyncio.sleep(0)
                task.cancel()
                break
        await self.settle()

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    def check(self) -> None:
        seats = Counter(self.has.values())
        limited = sum(count for caller, count in seats.items() if not caller.is_admin)
        assert seats.total() <= self.most, "more than there are"
        assert limited <= self.most - self.reserve, "the reserve is for administrators"
        for caller in self.waits.values():
            if caller.is_admin:
                assert seats[caller] or self.reserved() == self.reserve, "it waits beside its reserve"
            elif not seats[caller]:
                assert seats.total() - self.reserved() >= self.most - self.reserve, "it waits beside a free place"

    def reserved(self) -> int:
        return len(self.shares._in_reserve)

    async def empty(self) -> None:
        """All leave as soon as they are in: then none is left."""
        for _ in range(500):
            if not self.has:
                break
            for task in list(self.has):
                self.leaves[task].set()
            await self.settle()
        assert not self.waits, "it waited in vain"


async def run(made: Callable[..., Shares], most: int, steps: list[Step]) -> None:
    room = Room(made, most)
    for number, (what, who) in enumerate(steps):
        match what:
            case "ask":
                await room.ask(CALLERS[who])
            case "leave":
                await room.leave(CALLERS[who])
            case "crowd":
                for caller in CALLERS[: who + 1]:
                    await room.ask(caller)
            case _:
                await room.give_up(CALLERS[who], at_once=bool(number % 2))
        room.check()
    await room.empty()


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 24), STEPS)
def test_none_starves_and_no_share_is_exceeded(most: int, steps: list[Step]) -> None:
    asyncio.run(run(Shares, most, steps))


class NoReserve(Shares):
    def _may_have_of_reserve(self, name: str) -> bool:
        return False


class ReserveForAll(Shares):
    def _now(self, caller: Sharer) -> Leave | None:
        return super()._now(caller._replace(is_admin=True))


class Forgetful(Shares):
    """Whose place is free is not called up for."""

    def _leave(self, name: str) -> None:
        self._fair.leave(name)


class Loses(Shares):
    """A place that was given to one who has just given up is lost."""

    async def _wait(self, caller: Sharer) -> Leave:
        place = asyncio.Future[Leave]()
        self._fair.wait(caller.name, lambda: shares._give(place, lambda: self._leave(caller.name)))
        return await place


class Unfair(FairShare):
    """A caller may take all."""

    def take(self, party: str) -> bool:
        has_place = self.free > 0
        self.free -= has_place
        return has_place


@pytest.mark.parametrize("planted", [NoReserve, ReserveForAll, Forgetful, Loses])
def test_a_planted_mistake_is_found(planted: type[Shares]) -> None:
    @settings(max_examples=1_000, deadline=None, database=None, phases=[Phase.generate], derandomize=True)
    @given(st.integers(8, 12), STEPS)
    def found(most: int, steps: list[Step]) -> None:
        asyncio.run(run(planted, most, steps))

    with pytest.raises(BaseException):  # noqa: B017 - an assertion, or a group of them
        found()


async def test_a_caller_alone_leaves_places_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken() -> int:
        held = Shares("tail", "places", 64, Meter())
        for number in range(64):
            try:
                held.take(CALLERS[0])
            except Problem:
                return number
        return 64

    assert taken() == 14
    monkeypatch.setattr(shares, "FairShare", Unfair)
    assert taken() == 56
