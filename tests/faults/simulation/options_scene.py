"""A relay whose receivers use options, and whose operators erase payloads and order jobs, while it is under test."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from msgspec import structs

from relay.domain.control_key import ControlKey, encode_value
from relay.domain.erasure import Erasure
from relay.domain.errors import NotYet, RelayError
from relay.domain.exchange import Response
from relay.domain.message import Message
from relay.domain.replay_job import Action, Selection
from relay.domain.timing import Timing
from tests.fakes.moving import SOURCES
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import CrashError
from tests.fakes.world import Known
from tests.faults.simulation.checks_options import wrong_erasures, wrong_jobs, wrong_lives, wrong_reads, wrong_windows
from tests.faults.simulation.fates import Fate
from tests.faults.simulation.moving import Lagging, MovingScene
from tests.faults.simulation.options import NEWEST, VALUES, WITH_OPTIONS, Job, OptionsStory, OptionsWire
from tests.faults.simulation.outside import Mishap
from tests.faults.simulation.setups import Setup
from tests.faults.simulation.story import Delivery, value_at

LARGEST = 100_000
"""Bytes of a payload that is encrypted without a thread: in virtual time a thread never ends."""


class Replaying(Lagging, ReplayProcess):
    """One that may do the jobs."""


@dataclass
class OptionsScene(MovingScene):
    world: ReplayWorld
    wire: OptionsWire
    story: OptionsStory = field(default_factory=OptionsStory)
    asking: set[asyncio.Task[None]] = field(default_factory=set)
    outside = OptionsWire

    @classmethod
    async def opened(cls, setup: Setup = WITH_OPTIONS) -> Self:
        world = ReplayWorld(settings=setup.settings)
        world.sources = SOURCES
        world.known = Known(setup.receivers, ())
        scene = await cls._around(world, setup)
        scene.wire.world = world
        return scene

    # sending

    async def produce(
        self, source: str, receivers: Sequence[str], count: int, size: int = 0, timing: Timing | None = None
    ) -> None:
        await super().produce(source, receivers, count, min(size, LARGEST), timing)
        if NEWEST in receivers and timing is None:
            self._note_together(count)

    def _note_together(self, count: int) -> None:
        """Those of one value wait together, and so one of them arrives at most."""
        groups: dict[str | None, list[str]] = defaultdict(list)
        for each in self.story.sendings[-count:]:
            groups[value_at(each.message.payload, "/k")].append(each.message.message_id)
        self.story.windows += [ids for value, ids in groups.items() if value is not None]

    def _new(self, source: str, receivers: Sequence[str], size: int = 0) -> Message:
        one = super()._new(source, receivers, size)
        self.story.times[one.message_id].append(self.world.clock.time())
        own = f', "k": {json.dumps(VALUES[self.numbers % len(VALUES)])}}}'.encode()
        return structs.replace(one, payload=one.payload.replace(b"}", own))

    def refuse(self, message_id: str) -> None:
        """By one of its receivers."""
        self.story.refused.add(message_id)
        self.mishap(message_id, [Mishap("turned_away", response=Response(422, {}, b""))])

    # what operators do

    async def erase(self, **what: str) -> None:
        erasure = Erasure(f"e{len(self.story.erasures)}", self.world.clock.time(), **what)
        self.story.erasures.append(erasure)
        key = ControlKey("erasure", erasure.id).encode()
        await self.world.append(self.world.topics.receiver_config, key, encode_value(erasure), ())

    def order(
        self, action: Action, receivers: Collection[str], ids: Collection[str], rate: float | None, *, only_failed: bool
    ) -> None:
        selection = Selection(receivers=frozenset(receivers), ids=frozenset(ids))
        only_failed |= action == "discard"
        job = Job(f"job{len(self.story.jobs)}", action, selection, self.world.clock.time(), only_failed)
        self.story.jobs.append(job)

        async def ask(process: ReplayProcess) -> None:
            await process.order(action, selection, only_failed=only_failed, rate=rate, id=job.id)

        self._ask(ask)

    def stop(self, id: str) -> None:
        self.story.stopped.add(id)

        async def ask(process: ReplayProcess) -> None:
            await process.replay_service.stop(id)

        self._ask(ask)

    def _ask(self, ask: Callable[[ReplayProcess], Coroutine[Any, Any, None]]) -> None:
        """Of an API, which may die meanwhile."""
        running = [member.process for member in self.crew if not member.fate.frozen]
        able = [one for one in running if isinstance(one, Replaying) and one.registry.ready.is_set()]

        async def asking() -> None:
            with suppress(RelayError, NotYet, CrashError):
                await ask(able[0])

        if able:
            task = asyncio.create_task(asking())
            self.asking.add(task)
            task.add_done_callback(self.asking.discard)

    # processes and the end

    async def _process(self, fate: Fate, lacks: Collection[str]) -> Replaying:
        """`lacks`: nothing, as who lacks receivers also lacks what was erased."""
        return Replaying(self.world, fate, ())

    async def _unfinished(self) -> str | None:
        if (rest := await super()._unfinished()) is not None:
            return rest
        jobs = (await self.world.registry()).jobs.all()
        return ", ".join(job.order.id for job in jobs if not job.is_over) or None

    def wrongs(self) -> list[str]:
        wire, story = self.wire, self.story
        mine = [*wire.wrongs, *wrong_erasures(wire, story), *wrong_windows(wire, story)]
        return super().wrongs() + mine + list(wrong_lives(self.world, story))

    async def wrongs_at_end(self) -> list[str]:
        wrong = await super().wrongs_at_end()
        jobs = {job.order.id: job for job in (await self.world.registry()).jobs.all()}
        return [*wrong, *wrong_jobs(self.world, jobs, self.story), *await wrong_reads(self.world, self.story)]

    async def _ends_without_faults(self) -> dict[Delivery, set[str]]:
        """There, too, those that wait together are replaced, but not the same ones."""
        ends = await super()._ends_without_faults()
        return {one: {"answered"} if one[1] == NEWEST else end for one, end in ends.items()}

    async def close(self) -> None:
        for task in self.asking:
            task.cancel()
        await super().close()
