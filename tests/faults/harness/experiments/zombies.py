"""E4: a process is frozen (SIGSTOP) until others have taken over its partitions, and then continues (SIGCONT).

Two processes do everything. In rounds of five, one of them is frozen for 1 to 6 s beyond the session timeout under
load; then it continues with requests, timers and commits of partitions that it has lost. One of the two lacks a
variable that two receivers need. Passes: nothing lost, no copy at receivers that can be asked, order kept. The notes
have the number of fenced lanes.
"""

import asyncio
from typing import Final

from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import MIX, OF_SOME_PROCESSES, WITH_DOORS
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

ZOMBIES: Final = 50
A_ROUND: Final = 5
SESSION_S: Final = 2.0


async def zombies(context: Context, findings: Findings) -> None:
    wanted = context.times(ZOMBIES)
    receivers = {**MIX, **WITH_DOORS, **OF_SOME_PROCESSES}
    async with (
        Servers() as servers,
        Stack(servers, context.out, receivers, seed=context.seed, session_timeout_s=SESSION_S, has_doors=True) as stack,
    ):
        await stack.start_members(2, lacking=1)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)

        async def freeze(load: Load) -> None:
            for _ in range(min(A_ROUND, wanted)):
                await asyncio.sleep(killer.soon(1.0, 3.0))
                await killer.freeze(killer.some(), SESSION_S + killer.soon(1.0, 6.0))

        for _ in range(-(-wanted // A_ROUND)):
            await trials.run(Plan(list(receivers)), freeze, only="SIGSTOP")
        fenced = sum(path.read_text(errors="replace").count('"fenced"') for path in stack.directory.glob("relay-*.log"))
        findings.notes.append(f"lanes that found themselves fenced: {fenced}")


EXPERIMENTS: Final = (Experiment("E4", "a process frozen past its session, then woken up", zombies),)
