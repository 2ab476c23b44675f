"""E8: Redis is killed, or stopped. E9: it loses its data. E19b: it has no memory left.

E8: in turn: kill -9 and a new start on the same files (fsynced every second, so up to a second is missing) at once or
up to 3 s later; stopped for 10 s (SIGSTOP). Passes: nothing lost, no copy at receivers that can be asked, order kept;
and no POST arrives while Redis has been away for longer than a request may take to start. E9: FLUSHALL at a random
moment under load, in every other trial with a kill -9 of a process in the same moment. Messages are parked (waits over
3 s), so that the recovery pass has records to restore. Passes: as E8. E19b: `maxmemory` is set to the memory in use,
for 8 s. Passes: as E8: the relay waits, and nothing is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import redis.asyncio

from tests.faults.harness.history import Fault, History
from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import MIX, ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

OUTAGES: Final = 50
FLUSHES: Final = 30
FULL: Final = 5
STOPPED_S: Final = 10.0
_STARTS_WITHIN_S: Final = 6.0
"""A request starts within 5 s of its begin, so one that was begun before Redis failed may still arrive."""
_LOSSY: Final = ReceiverPlan("lossy", chance=0.1)


async def outages(context: Context, findings: Findings) -> None:
    async with Servers() as servers, Stack(servers, context.out, seed=context.seed) as stack:
        await stack.start_members(2)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)

        async def bounce(load: Load) -> None:
            await asyncio.sleep(killer.soon(1.0, 3.0))
            stack.fault("kill -9 Redis")
            servers.valkey.kill()
            await asyncio.sleep(max(0.0, killer.soon(-3.0, 3.0)))
            await asyncio.to_thread(servers.valkey.start)
            stack.fault("Redis answers again", heals=True)
            await asyncio.sleep(2.0)

        async def stand_still(load: Load) -> None:
            await asyncio.sleep(killer.soon(1.0, 3.0))
            stack.fault("SIGSTOP Redis")
            servers.valkey.freeze()
            await asyncio.sleep(STOPPED_S)
            stack.fault("SIGCONT Redis", heals=True)
            servers.valkey.thaw()
            await asyncio.sleep(2.0)

        for trial in range(context.times(OUTAGES)):
            kind = stand_still if trial % 2 else bounce
            await trials.run(Plan(list(MIX)), kind, what=kind.__name__, only="Redis", also=posts_while_away)


async def flushes(context: Context, findings: Findings) -> None:
    receivers = {**MIX, "lossy": _LOSSY}
    settings = {"RELAY_HOLD_MAX": "3"}
    async with (
        Servers() as servers,
        Stack(servers, context.out, receivers, seed=context.seed, settings=settings) as stack,
    ):
        await stack.start_members(2)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)

        async def flush(load: Load, kill: bool) -> None:
            await asyncio.sleep(killer.soon(2.0, 5.0))
            stack.fault("FLUSHALL")
            victim = killer.some()
            await asyncio.gather(stack.flush_redis(), *([killer.kill(victim)] if kill else []))
            await killer.restart(victim, killer.soon(0.0, 1.0))
            await asyncio.sleep(2.0)

        for trial in range(context.times(FLUSHES)):
            what = "FLUSHALL and kill -9" if trial % 2 else "FLUSHALL"
            await trials.run(
                Plan(list(receivers), again=0.1), partial(flush, kill=trial % 2 == 1), what=what, only="FLUSHALL"
            )


async def no_memory(context: Context, findings: Findings) -> None:
    async with Servers() as servers, Stack(servers, context.out, seed=context.seed) as stack:
        await stack.start_members(2)
        trials = Trials(stack, context, findings)

        async def fill(load: Load) -> None:
            await asyncio.sleep(2.0)
            async with _limited(servers.redis):
                stack.fault("Redis has no memory left")
                await asyncio.sleep(8.0)
            stack.fault("Redis has memory again", heals=True)
            await asyncio.sleep(2.0)

        for _ in range(context.times(FULL)):
            await trials.run(Plan(list(MIX)), fill, only="memory left")


@asynccontextmanager
async def _limited(url: str) -> AsyncIterator[None]:
    client = redis.asyncio.Redis.from_url(url)
    try:
        await client.config_set("maxmemory", 1)
        yield
    finally:
        await client.config_set("maxmemory", 0)
        await client.aclose()


def posts_while_away(history: History) -> Sequence[str]:
    """POSTs that arrived although Redis had been unavailable for longer than a begun request may take to start."""
    away: Fault | None = None
    wrong = []
    for fault in history.faults:
        if away is not None and fault.heals:
            late = [a for a in history.arrivals if away.at + _STARTS_WITHIN_S < a.at < fault.at]
            wrong += [f"{len(late)} POSTs without Redis, as {late[0].message_id}"] if late else []
        away = None if fault.heals else fault
    return wrong


EXPERIMENTS: Final = (
    Experiment("E8", "Redis is killed, or stands still for 10 s", outages),
    Experiment("E9", "FLUSHALL, also together with a kill -9", flushes),
    Experiment("E19b", "Redis has no memory left", no_memory),
)
