"""E10: Redis fails over to a replica that lacks the last second.

A master with one replica, watched by a sentinel. Under load the replica is cut off for a second, then the master is
killed, and the sentinel makes the replica the new master: what the old one had acknowledged in that second is gone. Two
processes do everything. Each trial has servers of its own. Passes: nothing lost, no copy at receivers that can be
asked, order kept.
"""

import asyncio
from functools import partial
from typing import Final

from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import MIX
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials
from tests.servers.sentinel import SentinelGroup

FAIL_OVERS: Final = 20
CUT_OFF_S: Final = 1.0


async def failovers(context: Context, findings: Findings) -> None:
    async with Servers() as servers:
        for trial in range(context.times(FAIL_OVERS)):
            group = SentinelGroup(fsync="everysec")
            try:
                await group.start()
                await _trial(servers, group, context, findings, trial)
            finally:
                await asyncio.to_thread(group.stop)


async def _trial(servers: Servers, group: SentinelGroup, context: Context, findings: Findings, trial: int) -> None:
    settings = {"RELAY_REDIS_URL": group.url}
    directory = context.out / str(trial)
    async with Stack(servers, directory, seed=context.seed + trial, settings=settings) as stack:
        await stack.start_members(2)
        await Trials(stack, context, findings).run(Plan(list(MIX)), partial(_fail_over, stack, group), only="master")


async def _fail_over(stack: Stack, group: SentinelGroup, load: Load) -> None:
    await asyncio.sleep(3.0)
    await group.in_sync()
    stack.fault("the replica is cut off")
    async with group.cut_off():
        await asyncio.sleep(CUT_OFF_S)
        stack.fault("kill -9 Redis, the master")
        await asyncio.to_thread(group.servers[0].kill)
    await group.failed_over()
    stack.fault("the replica is master", heals=True)
    await asyncio.sleep(3.0)


EXPERIMENTS: Final = (Experiment("E10", "Redis fails over, and loses its last second", failovers),)
