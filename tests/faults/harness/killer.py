"""Kills and freezes processes of the relay, on a schedule that depends on a seed."""

import asyncio
import random
import time
from collections.abc import Sequence

from tests.faults.harness.member import Member
from tests.faults.harness.stack import Stack


class Killer:
    """Its actions are recorded in the stack's history. `seed`: determines the processes and pauses."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self._stack = stack
        self._random = random.Random(seed)

    async def kill_at_random(self, count: int, gap_s: tuple[float, float]) -> None:
        """kill -9, `count` times, of any member; it is started again at once, or after up to 2 s."""
        async with asyncio.TaskGroup() as restarts:
            for _ in range(count):
                await asyncio.sleep(self._random.uniform(*gap_s))
                member = await self._victim()
                after_s = max(0.0, self._random.uniform(-2.0, 2.0))
                await self.kill(member)
                restarts.create_task(self.restart(member, after_s))

    async def kill(self, member: Member) -> None:
        self._stack.fault(f"kill -9 {member.name}")
        await member.kill()

    async def restart(self, member: Member, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        if not member.wanted:
            self._stack.fault(f"start {member.name}", heals=True)
            await member.start()

    async def freeze(self, member: Member, seconds: float) -> None:
        """SIGSTOP, and SIGCONT `seconds` later: meanwhile others may have taken over its partitions."""
        self._stack.fault(f"SIGSTOP {member.name} for {seconds:.1f} s")
        member.freeze()
        await asyncio.sleep(seconds)
        self._stack.fault(f"SIGCONT {member.name}", heals=True)
        member.thaw()

    async def roll(self, members: Sequence[Member]) -> list[float]:
        """For each member in turn: SIGTERM, wait for its end, start, wait until it has started. Returns the seconds
        that each took to end."""
        took = []
        for member in members:
            self._stack.fault(f"SIGTERM {member.name}")
            begun = time.monotonic()
            await member.terminate()
            took.append(time.monotonic() - begun)
            self._stack.fault(f"start {member.name}", heals=True)
            await member.start()
            await member.started()
        return took

    def some(self) -> Member:
        """Any member."""
        return self._random.choice(list(self._stack.members.values()))

    def soon(self, least_s: float, most_s: float) -> float:
        return self._random.uniform(least_s, most_s)

    async def _victim(self) -> Member:
        """A running member; if all are down, the first to run again."""
        while True:
            running = [member for member in self._stack.members.values() if member.running]
            if running:
                return self._random.choice(running)
            await asyncio.sleep(0.1)
