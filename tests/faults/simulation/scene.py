"""A relay in memory and everything that may befall it: messages, processes that come, go, die and freeze, losses."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self, cast

from relay.api.context import ApiContext
from tests.fakes.virtual_time import VirtualLoop
from tests.fakes.world import World
from tests.faults.simulation.answering import Answering
from tests.faults.simulation.checks import over_budget, over_parked, wrongs_at_rest, wrongs_now
from tests.faults.simulation.fates import Fate
from tests.faults.simulation.lacking import Configured, Crewed
from tests.faults.simulation.outside import Wire
from tests.faults.simulation.senders import Senders
from tests.faults.simulation.setups import CALM, Setup
from tests.faults.simulation.story import Story
from tests.faults.simulation.timed import untimed
from tests.faults.simulation.watched_log import Troubles, WatchedLog
from tests.faults.simulation.watched_state import WatchedState

SESSION_S = 15.0
"""A process that is frozen for longer is put out of its groups."""
RESTART_S = 0.5
END_S = 1500.0
"""A message that is unfinished so long after the last fault never ends."""
MOST_PROCESSES = 3
MOST_DAYS = 6.0
"""Together less than the dedup window."""
_BUSY_S = 0.3


@dataclass
class _Member:
    process: Crewed
    fate: Fate
    frozen_for_s: float = 0.0


@dataclass
class Scene(Senders):
    """Made by `opened`. Every operation leaves it in a state that `wrongs` can judge."""

    world: World
    state: WatchedState
    wire: Wire
    troubles: Troubles
    setup: Setup
    story: Story = field(default_factory=Story)
    crew: list[_Member] = field(default_factory=list)
    numbers: int = 0
    days: float = 0.0
    replica: Mapping[str, Any] = field(default_factory=dict)
    """Memory of a replica that lags; empty if there is none."""
    slow: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Calls to the log and the state that take time: see `Fate`."""
    outside: ClassVar[type[Wire]] = Wire

    def __post_init__(self) -> None:
        self.answering = Answering(self._api, self.story.given)

    @classmethod
    async def opened(cls, setup: Setup = CALM) -> Self:
        return await cls._around(World(setup.receivers, settings=setup.settings), setup)

    @classmethod
    async def _around(cls, world: World, setup: Setup) -> Self:
        state = WatchedState(clock=world.clock.time, ready=False)
        paced = frozenset(f"/{one.name}" for one in setup.receivers if one.post.rate_limit is not None)
        wire = cls.outside(busy_s=_BUSY_S, paced=paced)
        world.state, world.outside = state, wire
        troubles = Troubles()
        world.make_log = partial(WatchedLog, troubles=troubles)
        await world.create()
        await setup.declare(world)
        scene = cls(world, state, wire, troubles, setup)
        wire.answering = scene.answering
        return scene

    # processes

    async def join(self, lacks: Collection[str] = ()) -> None:
        """One more process, if the log is there: without it a process waits with its start. `lacks`: receivers whose
        settings it cannot use yet."""
        if self.world.broker.available:
            fate = Fate(self.slow)
            self.crew.append(_Member(await self._process(fate, lacks), fate))

    async def _process(self, fate: Fate, lacks: Collection[str]) -> Crewed:
        return Configured(self.world, fate, lacks)

    async def _api(self) -> ApiContext | None:
        """Of the process that started last, among those that respond."""
        able = [member.fate for member in self.crew if not member.fate.frozen]
        return await self.world.api_context(able[-1]) if able and self.world.broker.available else None

    async def answer(self, nth: int, more: str, *, expired: bool) -> None:
        """A receiver uses one of the URLs that it ever got."""
        token = self.answering.urls[nth % len(self.answering.urls)]
        self.answering.begin(token, more, expired=expired)

    def learn(self) -> None:
        """Every process can use all settings."""
        for member in self.crew:
            member.process.learn()

    async def leave(self, nth: int) -> None:
        """As at a SIGTERM."""
        member = self.crew.pop(nth)
        member.fate.stay_awake()  # otherwise nothing would thaw it, and it would never end
        await member.process.stop()

    async def kill(self, nth: int) -> None:
        self.story.faults += 1
        member = self.crew.pop(nth)
        member.fate.blow()
        member.fate.thaw()  # also one that is frozen dies
        await member.process.kill()

    def strike(self, nth: int, calls: int, *, after: bool, freeze: bool) -> None:
        self.story.faults += 1
        self.crew[nth].fate.strike_in(calls, after=after, freeze=freeze)

    def expel(self, nth: int) -> None:
        """Its groups go on without it, and it does not know yet."""
        self.story.faults += 1
        self.crew[nth].process.log.expel()

    def thaw(self) -> None:
        for member in self.crew:
            member.fate.thaw()

    # time

    async def run(self, seconds: float) -> None:
        """Let time pass. Who dies is replaced at once; who is frozen for long is put out."""
        until = self.world.clock.monotonic() + seconds
        while (rest := until - self.world.clock.monotonic()) > 0:
            await self._tend()
            await asyncio.sleep(min(RESTART_S, rest))
            self._expel_frozen(min(RESTART_S, rest))
        await self._tend()

    async def _tend(self) -> None:
        for member in [each for each in self.crew if await each.process.ended(0)]:
            self.crew.remove(member)
            await member.process.stop()  # raises what it died of, but for its fate
        if all(member.fate.frozen for member in self.crew) and len(self.crew) < MOST_PROCESSES:
            await self.join()

    def _expel_frozen(self, seconds: float) -> None:
        for member in self.crew:
            member.frozen_for_s = member.frozen_for_s + seconds if member.fate.frozen else 0.0
            if member.frozen_for_s >= SESSION_S:
                member.frozen_for_s = 0.0
                member.process.log.expel()

    async def advance(self, days: float) -> None:
        """The state's clock goes on while nothing is to be done."""
        if await self.world.is_at_rest() and self.days + days <= MOST_DAYS:
            self.days += days
            self.state.advance(days * 86_400)

    async def turn_clock(self, seconds: float) -> None:
        """Of the state. Forward it may end waits early, so that a late POST comes beside the next one."""
        if seconds > 0 and not await self.world.is_at_rest():
            self.story.faults += 1
            ends, unended = self.wire.results(), self.story.firsts.items()
            self.story.hurried |= {
                id for id, one in unended if any((id, name) not in ends for name in one.receivers or ())
            }
        self.state.advance(seconds)

    def stand_still(self, seconds: float) -> None:
        """Of the machine: nothing gets any time."""
        self.story.interrupted = True
        cast(VirtualLoop, asyncio.get_running_loop()).stand_still(seconds)

    # the relay's own infrastructure

    def bound(self, per_receiver: int, total: int) -> None:
        """So much may be parked. What gets no room may die, where it was never sent or others need the room."""
        self.world.settings = self.world.settings.model_copy(
            update={"parked_per_receiver": per_receiver, "parked_total": total}
        )
        self.story.is_bounded = True

    def lose_state(self) -> None:
        self.story.faults += 1
        self.story.losses += 1
        self.state.lose()

    def lag(self) -> None:
        """The state's replica gets no more writes."""
        self.replica = self.state.copied()

    def fail_over(self) -> None:
        """To the replica as it was at the last `lag`."""
        self.story.faults += 1
        self.story.losses += 1
        self.state.fail_over(self.replica)

    async def away(self, *, state: bool, log: bool, seconds: float) -> None:
        self.story.interrupted = True
        self.world.state_available, self.world.broker.available = not state, not log
        await self.run(seconds)
        self.world.state_available = self.world.broker.available = True

    def slow_down(self, call: str, seconds: float, *, after: bool) -> None:
        self.story.interrupted = True
        self.slow[call] = (0.0, seconds) if after else (seconds, 0.0)

    def partly(self, upto: int, *, arrives: bool) -> None:
        """Of the next append with more records only so many are acknowledged."""
        self.story.faults += arrives
        self.troubles.partly.append((upto, arrives))

    # judgement

    def wrongs(self) -> list[str]:
        found = self.state.wrongs + self.troubles.wrongs + wrongs_now(self.world, self.wire, self.story)
        found += over_parked(self.world, self.story, MOST_PROCESSES)
        return found + [wrong for member in self.crew for wrong in over_budget(self.world, member.process)]

    async def wrongs_at_end(self) -> list[str]:
        """After the last fault: whatever is still wrong when all is quiet, or that it never becomes so."""
        self.thaw()
        self.learn()
        self.wire.down.clear()
        self.wire.mishaps.clear()
        self.troubles.clear()
        self.slow.clear()
        await self._rest()
        wrong = self.wrongs()
        if (rest := await self._unfinished()) is not None:
            wrong.append(f"stuck: {rest}")
        await self.close()
        return wrong + wrongs_at_rest(self.world, self.wire, self.story, await self._ends_without_faults())

    async def _rest(self, most_s: float = END_S) -> None:
        until = self.world.clock.monotonic() + most_s
        await self.run(1.0)
        while await self._unfinished() and self.world.clock.monotonic() < until:
            await self.run(1.0)

    async def _unfinished(self) -> str | None:
        """What the relay still has to do; None if nothing."""
        if await self.world.is_at_rest():
            return None
        return f"{self.world.uncommitted()}, {len(self.world.parked_copies())} parked"

    async def _ends_without_faults(self) -> dict[tuple[str, str], set[str]]:
        """The ends of the same messages on a relay without faults."""
        calm = await type(self).opened(self.setup)
        for sending in self.story.sendings:
            await calm._send(sending._replace(message=untimed(sending.message)))
        await calm._rest()
        assert not (wrong := calm.wrongs()), f"without a fault: {wrong}"
        await calm.close()
        return calm.wire.results()

    async def close(self) -> None:
        self.answering.stop()
        for member in self.crew:
            await member.process.kill()
        self.crew.clear()
