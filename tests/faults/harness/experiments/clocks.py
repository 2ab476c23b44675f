"""E14: the wall clock of one process is off, by an hour and by a day, ahead and behind.

Two processes do everything; one of them has the wrong clock (Python's own; Redis and the other process have the right
one). Waits over 3 s are parked by one and come due at the other, and each process is killed once, so that the other one
takes over what it has begun. Passes: nothing lost, nothing dead before its time, no copy at receivers that can be
asked, order kept. (Signatures then have the wrong time; these receivers do not check them.)
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import MIX, ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

TRIALS: Final = 3
"""Trials with each clock."""
HOUR_S: Final = 3600
OFF_S: Final = (HOUR_S, -HOUR_S, 24 * HOUR_S, -24 * HOUR_S)
_SKEW: Final = Path(__file__).parents[1] / "skew"
_LOSSY: Final = ReceiverPlan("lossy", chance=0.1)


async def clocks(context: Context, findings: Findings) -> None:
    receivers = {**MIX, "lossy": _LOSSY}
    settings = {"RELAY_HOLD_MAX": "3"}
    async with (
        Servers() as servers,
        Stack(servers, context.out, receivers, seed=context.seed, settings=settings) as stack,
    ):
        await stack.start_members(2)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)
        for _ in range(context.times(TRIALS)):
            for off_s in OFF_S:
                await trials.run(Plan(list(receivers)), partial(_wrong, stack, killer, off_s), what=f"{off_s:+} s")


async def _wrong(stack: Stack, killer: Killer, off_s: int, load: Load) -> None:
    right, wrong = stack.members.values()
    stack.fault(f"the clock of {wrong.name} is off by {off_s} s")
    wrong.always = {"HARNESS_CLOCK_S": str(off_s), "PYTHONPATH": f"{_SKEW}:{stack.python_path}"}
    for member in (wrong, right, wrong):
        await killer.kill(member)
        await killer.restart(member)
        await member.started()
        await asyncio.sleep(3.0)


EXPERIMENTS: Final = (Experiment("E14", "a process whose clock is off by an hour, or a day", clocks),)
