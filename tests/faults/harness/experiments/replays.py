"""E17: delivered messages are replayed twice during kills, and delivered once more, not twice. A replay is a record on
the stage's topic with the next generation. After a load is delivered, each of its records on the receivers' topics is
produced twice with generation 1, while processes are killed at random. Passes: receivers with a status endpoint process
each message once in generation 0 and at most once in generation 1; others get copies only of requests in flight at a
kill; each has a result of generation 1; nothing lost.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from aiokafka import AIOKafkaProducer

from tests.faults.harness.history import History, Sent
from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Plan
from tests.faults.harness.receivers import ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

TRIALS: Final = 20
LOAD_S: Final = 5.0
KILLS: Final = 3
_REPLAYED_S: Final = 60.0
RECEIVERS: Final = {
    "asked": ReceiverPlan(seconds=0.02, generations=2),
    "later": ReceiverPlan("later", seconds=0.5, generations=2),
    "blind": ReceiverPlan(seconds=0.02, status=False, generations=2),
    "shared-asked": ReceiverPlan(seconds=0.02, generations=2, entry={"lane": "shared"}),
}


async def replays(context: Context, findings: Findings) -> None:
    async with Servers() as servers, Stack(servers, context.out, RECEIVERS, seed=context.seed) as stack:
        await stack.start_members(2)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)
        for _ in range(context.times(TRIALS)):
            await _trial(stack, killer, trials)


async def _trial(stack: Stack, killer: Killer, trials: Trials) -> None:
    load = stack.load(Plan(list(RECEIVERS)))
    await load.run(seconds=LOAD_S)
    if not await stack.quiesce():
        trials.findings.problems.append(f"not quiet before the replay: {stack.left()}")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_replay_twice(stack, load.sent))
        tasks.create_task(killer.kill_at_random(KILLS, (0.5, 2.0)))
    await stack.until(lambda: not _not_replayed(stack.history(load.sent), load.sent), _REPLAYED_S)
    await trials.judge(load.sent, only="kill", also=lambda history: _missing(history, load.sent))


async def _replay_twice(stack: Stack, sent: Sequence[Sent]) -> None:
    ids = {each.message_id for each in sent}
    lanes = {stack.topics.to_receiver(str(plan.entry.get("lane", name))) for name, plan in RECEIVERS.items()}
    records = [record for topic in sorted(lanes) for record in await stack.log.records(topic)]
    producer = AIOKafkaProducer(bootstrap_servers=stack.servers.bootstrap, acks="all")
    await producer.start()
    try:
        for _ in range(2):
            for record in records:
                headers = dict(record.headers)
                if headers["ce_id"].decode() in ids and headers["relay-generation"] == b"0":
                    again = {**headers, "relay-generation": b"1", "relay-attempt": b"0"}
                    await producer.send_and_wait(record.topic, record.value, record.key, headers=list(again.items()))
    finally:
        await producer.stop()


def _not_replayed(history: History, sent: Sequence[Sent]) -> set[str]:
    """Messages without a result of generation 1, as text."""
    again = {str(result.key) for result in history.returned if result.result_id.endswith("_1")}
    return {str(each.key) for each in sent} - again


def _missing(history: History, sent: Sequence[Sent]) -> Sequence[str]:
    missing = sorted(_not_replayed(history, sent))
    return [f"{len(missing)} were not answered in their second life, as {missing[0]}"] if missing else []


EXPERIMENTS: Final = (Experiment("E17", "replayed twice, with kills", replays),)
