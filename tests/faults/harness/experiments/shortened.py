"""E22: the broker comes back without the end of its log.

When all is quiet the broker is killed, every partition of `from_sender` loses its last records, which were acknowledged
and are finished, and it is started again; then the senders go on, and other records take the lost offsets. In every
other trial the relay's processes are stopped meanwhile, so that they begin with what they have committed. Passes:
nothing lost that was sent after that, no copy, order kept, and the relay has logged the lost offsets. No sender uses
transactions: a broker that has lost the end of a transaction would keep it open.
"""

import asyncio
import json
from pathlib import Path
from typing import Final

from relay.log.port import Coordinate
from tests.faults.harness.experiments.brokers import partitions_of
from tests.faults.harness.load import Plan
from tests.faults.harness.receivers import MIX
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_cut import cut_log, last_batches

CUTS: Final = 10
LOST: Final = 5
"""Maximum of batches that each partition loses."""
LOAD_S: Final = 5.0


async def shortened(context: Context, findings: Findings) -> None:
    async with Servers() as servers, Stack(servers, context.out, seed=context.seed) as stack:
        await stack.start_members(2)
        trials = Trials(stack, context, findings)
        partitions = await partitions_of(servers.bootstrap, stack.topics.from_sender)
        for trial in range(context.times(CUTS)):
            before, load = (stack.load(Plan(list(MIX), transactional=0)) for _ in range(2))
            await before.run(seconds=LOAD_S)
            await stack.quiesce()
            members = list(stack.members.values()) if trial % 2 else []
            for member in members:
                await member.terminate()
            stack.fault("the broker loses the end of its log", heals=True)
            cut = await asyncio.to_thread(_shorten, servers.broker, stack.topics.from_sender, partitions)
            await load.run(seconds=LOAD_S)
            for member in members:
                await member.start()
            what = "stopped meanwhile" if members else "running"
            await trials.judge([*before.sent, *load.sent], what=what)
            if told := cut - _told(context.out):
                findings.problems.append(f"trial {trial + 1}: the relay did not say that {sorted(told)} were lost")


def _shorten(broker: KafkaBroker, topic: str, partitions: int) -> set[tuple[int, int]]:
    """The cut partitions, each with its first lost offset."""
    broker.kill()
    cut = set()
    for number in range(partitions):
        if batches := last_batches(broker, topic, number, LOST):
            cut_log(broker, Coordinate(topic, number, batches[0]))
            cut.add((number, batches[0]))
    broker.start()
    return cut


def _told(directory: Path) -> set[tuple[int, int]]:
    """The partitions that the relay's processes have logged as cut, each with its first lost offset."""
    lines = [line for path in directory.glob("**/*.log") for line in path.read_text().splitlines()]
    alarms = [json.loads(line) for line in lines if '"log_truncated"' in line]
    return {(alarm["partition"], alarm["first"]) for alarm in alarms}


EXPERIMENTS: Final = (
    Experiment("E22", "the broker comes back without the end of its log", shortened, bounds={"copies": 0}),
)
