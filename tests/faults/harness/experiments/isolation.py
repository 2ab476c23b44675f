"""E11: one receiver hangs, one answers 500, one takes a message a second; the 17 others must not be affected.

Two processes do everything for twenty receivers with a steady load. Two phases alternate: all twenty healthy, and the
three not. Passes: the 99th percentile of the time from sending to arrival at the 17 is in the bad phases below 1.5
times that of the good ones, or less than 50 ms above it (two cores do not measure better); and after the three have
recovered, all of their messages arrive, too. The notes have the figures, and how the processes' memory grew.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.faults.harness.history import Key, Sent
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

PHASE_S: Final = 60.0
GOOD: Final = tuple(f"good-{number}" for number in range(1, 18))
BAD: Final[Mapping[str, Mapping[str, object]]] = {
    "hangs": {"mode": "hang"},
    "fails": {"mode": "fail"},
    "slow": {"rate": 1},
}
MOST_TIMES: Final = 1.5
NOISE_S: Final = 0.05


async def isolation(context: Context, findings: Findings) -> None:
    receivers = {name: ReceiverPlan(status=False) for name in GOOD} | {name: ReceiverPlan() for name in BAD}
    seconds = max(5.0, PHASE_S * context.scale)
    async with Servers() as servers, Stack(servers, context.out, receivers, seed=context.seed) as stack:
        await stack.start_members(2)
        trials = Trials(stack, context, findings)
        plan = Plan(list(receivers), sources=20, rate=80.0, two=0.0, wide=0.0)
        before = _memory(stack)

        async def well(load: Load) -> None:
            await asyncio.sleep(seconds)

        async def ill(load: Load) -> None:
            for name, knobs in BAD.items():
                await stack.control(name, **knobs)
            stack.fault("three of twenty receivers are ill")
            await asyncio.sleep(seconds)
            for name in BAD:
                await stack.control(name, mode="answer", rate=None)
            stack.fault("all receivers are well", heals=True)

        waits: dict[bool, list[float]] = {True: [], False: []}
        for phase in range(4):
            sick = phase % 2 == 1
            already = len(stack.sent)
            await trials.run(plan, ill if sick else well, what="three ill" if sick else "all well", quiet_s=180)
            waits[sick] += _waits(stack, stack.sent[already:])
        good, bad = _p99(waits[False]), _p99(waits[True])
        growth = (_memory(stack) - before) / 2**20
        findings.notes.append(f"p99 of the 17: {good * 1000:.0f} ms, with three ill {bad * 1000:.0f} ms")
        findings.notes.append(f"memory of the two processes grew by {growth:.0f} MiB in four phases of {seconds:g} s")
        if bad > max(MOST_TIMES * good, good + NOISE_S):
            findings.problems.append(f"p99 of the others is {bad / good:.1f} times the usual")


def _waits(stack: Stack, sent: Sequence[Sent]) -> list[float]:
    arrived: dict[Key, float] = {}
    for arrival in stack.history(sent).arrivals:
        arrived.setdefault(arrival.key, arrival.at)
    return [arrived[each.key] - each.at for each in sent if each.receiver in GOOD and each.key in arrived]


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


def _memory(stack: Stack) -> int:
    """Resident bytes of all members."""
    pages = [int(Path(f"/proc/{member.pid}/statm").read_text().split()[1]) for member in stack.members.values()]
    return sum(pages) * 4096


EXPERIMENTS: Final = (Experiment("E11", "three ill receivers among twenty", isolation),)
