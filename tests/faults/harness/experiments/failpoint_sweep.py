"""E1, E2: a process dies at every point where it calls a port, before the call and after it.

Each role is a process of its own. A run without faults counts the points that each role passes. A second run, with a
kill of each and a receiver that loses responses, finds those that are passed only when requests are in doubt. Then,
point by point: the role's process is started with that failpoint armed at a random passing; under a short load it ends
there, and is started again. One trial in ten fails the call instead (error), one in ten freezes the process past the
session timeout (pause). Several stacks work in parallel.

E1 has receivers with a status endpoint. Passes: nothing lost, each message processed once, order kept.
E2 has receivers without. Passes: nothing lost, order kept, copies at most what was in flight; the notes say at which
points there were any. Recovery: until all that was sent before the death is answered.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tests.faults.harness.failpoints import UNFAILING, read_counts
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.member import Member
from tests.faults.harness.receivers import ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import ROLES, Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

TRIALS: Final = 20
"""Trials of each point."""
STACKS: Final = 3
MESSAGES: Final = 60
RATE: Final = 40.0
SESSION_S: Final = 2.0
_WITHIN_S: Final = 8.0
_DOUBTFUL_S: Final = 20.0
_SETTINGS: Final = {"RELAY_HOLD_MAX": "3"}
_EDGES: Final = ("close", "start")
"""Calls at a process's start and end: a crash there is one between messages."""

REJECTING: Final = ReceiverPlan(
    "fail", status=False, deaths=frozenset({"rejected"}), entry={"codes": {"rejected": [500]}}
)
ASKED: Final = {
    "asked": ReceiverPlan(seconds=0.02),
    "later": ReceiverPlan("later", seconds=0.5),
    "shared-asked": ReceiverPlan(seconds=0.02, entry={"lane": "shared"}),
    "rejecting": REJECTING,
    "lossy": ReceiverPlan("lossy", chance=0.1),
}
BLIND: Final = {
    "blind": ReceiverPlan(seconds=0.02, status=False),
    "blind-shared": ReceiverPlan(seconds=0.02, status=False, entry={"lane": "shared"}),
    "rejecting": REJECTING,
    "lossy": ReceiverPlan("lossy", chance=0.1, status=False),
}


class Case(NamedTuple):
    """One trial: `role`'s process ends, or fails, at the `nth` passing of `point`. `doubt`: the point is passed only
    where requests are in doubt."""

    role: str
    point: str
    nth: int
    action: str
    doubt: bool


async def sweep(receivers: Mapping[str, ReceiverPlan], context: Context, findings: Findings) -> None:
    async with Servers() as servers:
        async with Stack(servers, context.out / "counting", receivers, settings=_SETTINGS) as stack:
            trials = Trials(stack, context, findings)
            plain = await _count(stack, trials, doubt=False)
            doubtful = await _count(stack, trials, doubt=True)
        cases = [*_cases(plain, context), *_cases(_only(doubtful, plain), context, doubt=True)]
        random.Random(context.seed).shuffle(cases)
        findings.notes.append(f"{len({(case.role, case.point) for case in cases})} points of {len(ROLES)} roles")
        copies: Counter[str] = Counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(STACKS):
                own = cases[number::STACKS]
                tasks.create_task(_sweep_stack(servers, receivers, context, findings, own, number, copies))
    if copies:
        findings.notes.append("copies at " + ", ".join(f"{point} {count}" for point, count in sorted(copies.items())))


async def _count(stack: Stack, trials: Trials, *, doubt: bool) -> dict[str, Counter[str]]:
    """How often each role passes each point under a load, and at a stop. `doubt`: after a kill."""
    counts = {role: stack.directory / f"{role}.{doubt}.counts" for role in ROLES}

    async def restart_all(load: Load) -> None:
        await asyncio.sleep(MESSAGES / RATE)
        if doubt:
            for member in stack.members.values():
                stack.fault(f"kill -9 {member.name}")
                await member.kill()
                await _start(stack, member.name, {"RELAY_FAILPOINT_COUNTS": str(counts[member.name])})
            await asyncio.sleep(MESSAGES / RATE)

    for role in ROLES:
        await _start(stack, role, {} if doubt else {"RELAY_FAILPOINT_COUNTS": str(counts[role])})
    for member in stack.members.values():
        await member.started()
    await trials.run(_plan(stack, doubt=doubt), restart_all, what="counting")
    for member in stack.members.values():
        await member.terminate()
    return {role: read_counts(path) for role, path in counts.items()}


def _only(some: Mapping[str, Counter[str]], others: Mapping[str, Counter[str]]) -> dict[str, Counter[str]]:
    """The points in `some` that are not in `others`."""
    return {
        role: Counter({point: count for point, count in points.items() if point not in others[role]})
        for role, points in some.items()
    }


def _cases(passed: Mapping[str, Counter[str]], context: Context, *, doubt: bool = False) -> Iterator[Case]:
    chance = random.Random(context.seed)
    for role, points in passed.items():
        for point, count in sorted(points.items()):
            if point.split(".")[1] in _EDGES or "@" in point:  # points limited to certain records are among the others
                continue
            for trial in range(context.times(TRIALS)):
                action = {8: "error", 9: "pause"}.get(trial % 10, "kill")
                if action == "error" and point in UNFAILING:
                    action = "kill"
                # of the first half, because the number of passings varies
                yield Case(role, point, chance.randint(1, max(1, count // 2)), action, doubt)


async def _sweep_stack(
    servers: Servers,
    receivers: Mapping[str, ReceiverPlan],
    context: Context,
    findings: Findings,
    cases: Sequence[Case],
    number: int,
    copies: Counter[str],
) -> None:
    directory = context.out / f"stack-{number}"
    async with Stack(
        servers, directory, receivers, seed=context.seed, settings=_SETTINGS, session_timeout_s=SESSION_S
    ) as stack:
        for role in ROLES:
            await _start(stack, role, {})
        for member in stack.members.values():
            await member.started()
        trials = Trials(stack, context, findings)
        for case in cases:
            what = f"{case.role} {case.point}:{case.nth}:{case.action}"
            verdict = await trials.run(
                _plan(stack, doubt=case.doubt),
                partial(_strike, stack, case, context.patience),
                what=what,
                only=" ended ",
            )
            copies[case.point] += verdict.copies
    copies += Counter()


async def _strike(stack: Stack, case: Case, patience: float, load: Load) -> None:
    """Replace the role's process by one with the armed failpoint, run the load, and wait for the end of the process."""
    member = stack.members[case.role]
    await member.terminate()
    ends = member.ends
    stack.fault(f"armed: {case.role} with {case.point}:{case.nth}:{case.action}")
    await _start(stack, case.role, {"RELAY_FAILPOINT": f"{case.point}:{case.nth}:{case.action}"})
    clock = asyncio.get_running_loop().time
    deadline = clock() + (_DOUBTFUL_S if case.doubt else _WITHIN_S) * patience
    while clock() < deadline and member.ends == ends and not (load.over and await stack.look()):
        if len(load.sent) >= MESSAGES:
            load.stop()
        if member.stopped_itself:
            stack.fault(f"{case.role} froze")
            await asyncio.sleep(SESSION_S + 1.5)
            stack.fault(f"SIGCONT {case.role}", heals=True)
            member.thaw()
        await asyncio.sleep(0.05)


async def _start(stack: Stack, role: str, extra: Mapping[str, str]) -> Member:
    member = stack.members.get(role) or stack.member(role, (role,))
    member.extra = dict(extra)
    await member.start()
    return member


def _plan(stack: Stack, *, doubt: bool) -> Plan:
    receivers = [name for name in stack.receivers if doubt or name != "lossy"]
    return Plan(receivers, sources=8, rate=RATE, again=0.1)


EXPERIMENTS: Final = (
    Experiment("E1", "a process dies at every call of a port; receivers can be asked", partial(sweep, ASKED)),
    Experiment("E2", "the same, receivers cannot be asked", partial(sweep, BLIND)),
)
