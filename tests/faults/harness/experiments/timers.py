"""E15: retries and polls fall due while every process is down.

Receivers refuse everything (so retries wait, those over a second parked), or answer later (so polls wait). Then all
processes are killed, the receivers recover, all retries and polls become due, and 15 s later two processes start.
Passes: nothing lost, order kept, no copy, and everything is answered within 5 s after both have started and the groups
have removed their dead members.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from tests.faults.harness.history import History
from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

TRIALS: Final = 10
DOWN_S: Final = 15.0
AIM_S: Final = 5.0
ANSWER_S: Final = 8.0
POLL_S: Final = 3.0
_RETRY: Final = {"retry": {"base": 3, "factor": 1, "cap": 3, "max_attempts": 1000}, "codes": {"not_processed": [500]}}
_PATIENT: Final = {**_RETRY, "breaker": {"failures": 100_000, "window": 60, "open_for": 1}}
RECEIVERS: Final = {
    "refuses": ReceiverPlan("fail", status=False, entry=_PATIENT),
    "refuses-shared": ReceiverPlan("fail", status=False, entry={**_PATIENT, "lane": "shared"}),
    "later": ReceiverPlan("later", seconds=ANSWER_S, entry={"poll": {"base": POLL_S, "factor": 1, "cap": POLL_S}}),
}


async def timers(context: Context, findings: Findings) -> None:
    settings = {"RELAY_HOLD_MAX": "1"}
    async with (
        Servers() as servers,
        Stack(servers, context.out, RECEIVERS, seed=context.seed, settings=settings) as stack,
    ):
        await stack.start_members(2)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)
        started_at = 0.0

        async def all_down(load: Load) -> None:
            nonlocal started_at
            for name in ("refuses", "refuses-shared"):
                await stack.control(name, mode="fail")
            await asyncio.sleep(5.0)
            load.stop()
            for member in stack.members.values():
                await killer.kill(member)
            for name in ("refuses", "refuses-shared"):
                await stack.control(name, mode="answer")
            await asyncio.sleep(DOWN_S)
            for member in stack.members.values():
                await killer.restart(member)
            for member in stack.members.values():
                await member.started()
            started_at = time.time()

        def late(history: History) -> Sequence[str]:
            came = {arrival.key: arrival.at for arrival in history.arrivals if arrival.receiver == "later"}
            # messages sent right before the kill may be POSTed only now, some to a slow receiver
            due = {key: max(started_at, at + ANSWER_S + POLL_S) for key, at in came.items()}
            took = max((result.at - due.get(result.key, started_at) for result in history.returned), default=0.0)
            findings.recoveries.append(max(0.0, took))
            return [f"the last was answered {took:.1f} s after the start"] if took > AIM_S else []

        for _ in range(context.times(TRIALS)):
            await trials.run(Plan(list(RECEIVERS), rate=30.0), all_down, only="nothing: measured here", also=late)


EXPERIMENTS: Final = (Experiment("E15", "timers fall due while every process is down", timers),)
