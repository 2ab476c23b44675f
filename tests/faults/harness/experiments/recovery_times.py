"""RW, RB: recovery times with the settings of production (a session timeout of 15 s).

RW: one of two processes is killed (kill -9) and not started again, so that the other one has to take over. All
receivers answer at once, and have no status endpoint: attempts in doubt are repeated at once, so the time is that of
the consumer groups. Aim: within 20 s all that was sent before the kill is answered, and nothing takes over a second any
more. RB: the one broker is killed and started again at once. Aim: the same within 30 s, the broker's own start
included.
"""

import asyncio
from typing import Final

from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import ReceiverPlan
from tests.faults.harness.report import RECOVERY_MAX
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

TRIALS: Final = 10
SESSION_S: Final = 15.0
WORKER_S: Final = 20.0
BROKER_S: Final = 30.0
SLOW_S: Final = 1.0
"""Maximum time to an answer without a fault."""
RECEIVERS: Final = {
    "blind": ReceiverPlan(status=False),
    "blind-2": ReceiverPlan(status=False),
    "blind-shared": ReceiverPlan(status=False, entry={"lane": "shared"}),
}


async def worker(context: Context, findings: Findings) -> None:
    async with (
        Servers() as servers,
        Stack(servers, context.out, RECEIVERS, seed=context.seed, session_timeout_s=SESSION_S) as stack,
    ):
        await stack.start_members(2)
        killer = Killer(stack, context.seed)

        async def kill(load: Load) -> None:
            await asyncio.sleep(killer.soon(2.0, 4.0))
            await killer.kill(killer.some())
            await asyncio.sleep(WORKER_S)

        for _ in range(context.times(TRIALS)):
            await Trials(stack, context, findings, slow_s=SLOW_S).run(Plan(list(RECEIVERS)), kill, only="kill")
            for member in stack.members.values():
                await member.started()


async def broker(context: Context, findings: Findings) -> None:
    async with (
        Servers() as servers,
        Stack(servers, context.out, RECEIVERS, seed=context.seed, session_timeout_s=SESSION_S) as stack,
    ):
        await stack.start_members(2)
        killer = Killer(stack, context.seed)

        async def bounce(load: Load) -> None:
            await asyncio.sleep(killer.soon(2.0, 4.0))
            stack.fault("kill -9 broker")
            await asyncio.to_thread(servers.broker.restart)
            stack.fault("the broker answers again", heals=True)
            await asyncio.sleep(5.0)

        for _ in range(context.times(TRIALS)):
            await Trials(stack, context, findings, slow_s=SLOW_S).run(Plan(list(RECEIVERS)), bounce, only="kill")


EXPERIMENTS: Final = (
    Experiment("RW", "back after a killed process, session 15 s", worker, bounds={RECOVERY_MAX: WORKER_S}),
    Experiment("RB", "back after a killed broker, session 15 s", broker, bounds={RECOVERY_MAX: BROKER_S}),
)
