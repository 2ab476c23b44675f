"""E5: rolling restarts (SIGTERM) under load: the most common fault, which must have no effect.

Three processes do everything and are replaced one after the other, each waiting for the one before. Passes: nothing
lost, no copy at any receiver and no result twice, order kept, no stop over 10 s. The notes have the longest pause of a
receiver while messages waited for it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tests.faults.harness.history import History
from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import MIX
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

RESTARTS: Final = 50
PROCESSES: Final = 3
STOP_S: Final = 10.0


async def rolling(context: Context, findings: Findings) -> None:
    longest_stop = 0.0
    async with Servers() as servers, Stack(servers, context.out, seed=context.seed) as stack:
        await stack.start_members(PROCESSES)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)

        async def roll(load: Load) -> None:
            nonlocal longest_stop
            longest_stop = max(longest_stop, *await killer.roll(list(stack.members.values())))

        def wrong(history: History) -> Sequence[str]:
            return [f"a stop took {longest_stop:.1f} s"] if longest_stop > STOP_S else []

        for _ in range(-(-context.times(RESTARTS) // PROCESSES)):
            await trials.run(Plan(list(MIX)), roll, only="SIGTERM", also=wrong)
        findings.notes.append(
            f"longest stop {longest_stop:.1f} s, longest pause {longest_pause(stack.history()):.1f} s"
        )


def longest_pause(history: History) -> float:
    """The longest time in which a receiver had no arrival while a message of the load waited for it."""
    first: dict[tuple[str, str], float] = {}
    arrivals: dict[str, list[float]] = defaultdict(list)
    for arrival in history.arrivals:
        first.setdefault((arrival.message_id, arrival.receiver), arrival.at)
        arrivals[arrival.receiver].append(arrival.at)
    longest = 0.0
    for sent in history.sent:
        came = first.get((sent.message_id, sent.receiver))
        if came is not None:
            index = bisect_left(arrivals[sent.receiver], came)
            before = arrivals[sent.receiver][index - 1] if index else sent.at
            longest = max(longest, came - max(before, sent.at))
    return longest


EXPERIMENTS: Final = (
    Experiment("E5", "rolling restarts under load", rolling, bounds={"copies": 0, "doubled_results": 0}),
)
