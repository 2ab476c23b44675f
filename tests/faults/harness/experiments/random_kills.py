"""E3: kill -9 of any process, again and again, under load.

Three processes do everything for the mix of receivers. In rounds of 20 kills, a random one is killed every 0.5 to 4 s
and started again at once or up to 2 s later, so that at times none is left. Every third message's id is sent a second
time. In half of the rounds waits over 3 s are parked, so that those in doubt (12 s) go through the parked topic, and a
further receiver closes the connection after every twentieth message that it processes. One process lacks a variable
that two further receivers need, and some sources send over HTTP, with the keys of three tenants.

Passes: nothing lost, no copy at receivers that can be asked, at others no more copies than were in flight at the
kills; order kept; all quiet at the end. Recovery: until all that was sent before a kill is answered, further kills and
the settling of requests in doubt included.
"""

from typing import Final

from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import MIX, OF_SOME_PROCESSES, WITH_DOORS, ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

KILLS: Final = 500
A_ROUND: Final = 20
PROCESSES: Final = 3
GAP_S: Final = (0.5, 4.0)
LOSSY: Final = ReceiverPlan("lossy", chance=0.05)


async def random_kills(context: Context, findings: Findings) -> None:
    rounds = -(-context.times(KILLS) // A_ROUND)
    async with Servers() as servers:
        for parking in (True, False):
            count = (rounds + parking) // 2
            if count:
                await _rounds(context, findings, servers, count, parking=parking)


async def _rounds(context: Context, findings: Findings, servers: Servers, count: int, *, parking: bool) -> None:
    settings = {"RELAY_HOLD_MAX": "3"} if parking else {}
    receivers = {**MIX, **WITH_DOORS, **OF_SOME_PROCESSES, **({"lossy": LOSSY} if parking else {})}
    directory = context.out / ("parking" if parking else "holding")
    kills = min(A_ROUND, context.times(KILLS))
    async with Stack(servers, directory, receivers, seed=context.seed, settings=settings, has_doors=True) as stack:
        await stack.start_members(PROCESSES, lacking=1)
        killer = Killer(stack, context.seed + parking)
        trials = Trials(stack, context, findings)

        async def kill(load: Load) -> None:
            await killer.kill_at_random(kills, GAP_S)

        for _ in range(count):
            await trials.run(Plan(list(receivers), again=0.33), kill, what=directory.name, only="kill")


EXPERIMENTS: Final = (Experiment("E3", "kill -9 of any process at random, under load", random_kills),)
