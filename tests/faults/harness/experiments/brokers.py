"""E6, E6b: the broker dies and comes back. E18: the groups' offsets are lost. E19a: its disk is full.

E6: one broker, kill -9 under load, started again 0 to 5 s later. Passes: nothing lost that was acknowledged, order
kept, all answered within 30 s of the kill (the broker's own start included). E6b: three brokers that replicate,
acknowledged by two. One is killed under load, the controller in every other trial, and started again 5 s later. Passes:
as E6. E18: after a load all processes stop, every group is put back to offset 0, and they start again: as after offsets
have expired. Passes: no copy at any receiver, and nothing returned twice. E19a: the broker's data are on a small file
system, which is filled under load until the broker gives up; then space is freed, and the broker is started. Passes:
nothing lost that was acknowledged, order kept.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import TopicPartition

from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import MIX
from tests.faults.harness.report import RECOVERY_MAX
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials
from tests.servers.kafka import KafkaBroker

KILLS: Final = 30
REWINDS: Final = 3
FULL_DISKS: Final = 3
AIM_S: Final = 30.0
DISK_MB: Final = 300


async def one_broker(context: Context, findings: Findings) -> None:
    async with Servers() as servers, Stack(servers, context.out, seed=context.seed) as stack:
        await stack.start_members(2)
        killer = Killer(stack, context.seed)

        async def kill(load: Load) -> None:
            await asyncio.sleep(killer.soon(2.0, 4.0))
            await _bounce(stack, servers.broker, killer.soon(0.0, 5.0))
            await asyncio.sleep(3.0)

        for _ in range(context.times(KILLS)):
            await Trials(stack, context, findings).run(Plan(list(MIX)), kill, only="kill")


async def three_brokers(context: Context, findings: Findings) -> None:
    async with Servers(brokers=3) as servers, Stack(servers, context.out, seed=context.seed) as stack:
        await stack.start_members(2)
        killer = Killer(stack, context.seed)

        for trial in range(context.times(KILLS)):
            victim = await _controller(servers) if trial % 2 else servers.brokers[trial // 2 % 3]

            async def kill(load: Load, victim: KafkaBroker = victim) -> None:
                await asyncio.sleep(killer.soon(2.0, 4.0))
                await _bounce(stack, victim, 5.0)
                await asyncio.sleep(5.0)

            await Trials(stack, context, findings).run(Plan(list(MIX)), kill, only="kill")


async def offsets_lost(context: Context, findings: Findings) -> None:
    async with Servers() as servers, Stack(servers, context.out, seed=context.seed) as stack:
        await stack.start_members(2)
        trials = Trials(stack, context, findings)

        for _ in range(context.times(REWINDS)):
            load = stack.load(Plan(list(MIX)))
            await load.run(seconds=5.0)
            await stack.quiesce()
            for member in stack.members.values():
                await member.terminate()
            stack.fault("every group put back to offset 0", heals=True)
            await rewind(servers.bootstrap, stack.groups())
            if not await stack.log.lags(stack.groups()):
                findings.problems.append("the offsets were not put back: nothing was tried")
            await trials.judge(load.sent, what="rewound")


async def full_disk(context: Context, findings: Findings) -> None:
    servers = Servers()
    async with small_disk(servers.broker.data) as mounted:
        if not mounted:
            findings.notes.append("not tried: nobody may mount a small file system here")
            return
        async with servers, Stack(servers, context.out, seed=context.seed) as stack:
            await stack.start_members(2)
            trials = Trials(stack, context, findings)

            async def fill(load: Load) -> None:
                await asyncio.sleep(2.0)
                await _fill(stack, servers.broker)
                await asyncio.sleep(2.0)

            for _ in range(context.times(FULL_DISKS)):
                await trials.run(Plan(list(MIX)), fill, only="disk")


async def _fill(stack: Stack, broker: KafkaBroker) -> None:
    """Wait until the broker ends, for at most half a minute; then free space, and start it again."""
    ballast = broker.data / "ballast"
    stack.fault("the broker's disk is full")
    try:
        for _ in range(60):
            _take_all_room(ballast)
            await asyncio.sleep(0.5)
            if broker.ended:
                break
    finally:
        ballast.unlink(missing_ok=True)
    stack.fault("room on the broker's disk", heals=True)
    await asyncio.to_thread(broker.restart)


def _take_all_room(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(bytes(65_536)) == 65_536:
            pass


@asynccontextmanager
async def small_disk(directory: Path) -> AsyncIterator[bool]:
    """Mount a separate file system at `directory`; False if that is not permitted."""
    await asyncio.to_thread(directory.mkdir)
    mounting = ("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(directory))
    mounted = await _call(*mounting)
    try:
        yield mounted
    finally:
        if mounted:
            await _call("umount", str(directory))
        shutil.rmtree(directory.parent, ignore_errors=True)


async def _call(*command: str) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return False
    return await process.wait() == 0


async def _controller(servers: Servers) -> KafkaBroker:
    """The broker that leads the quorum now."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers.bootstrap)
    try:
        await admin.start()
        about = await admin.describe_cluster()
    finally:
        await admin.close()
    return servers.brokers[int(about["controller_id"]) - 1]


async def rewind(bootstrap: str, groups: Mapping[str, str]) -> None:
    """Put groups without members back to offset 0. `groups`: topic -> group."""
    for topic, group in groups.items():
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            numbers = await partitions_of(bootstrap, topic)
            partitions = [TopicPartition(topic, number) for number in range(numbers)]
            consumer.assign(partitions)
            await consumer.commit(dict.fromkeys(partitions, 0))
        finally:
            await consumer.stop()


async def partitions_of(bootstrap: str, topic: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        (about,) = await admin.describe_topics([topic])
    finally:
        await admin.close()
    return len(about["partitions"])


async def _bounce(stack: Stack, broker: KafkaBroker, down_s: float) -> None:
    stack.fault(f"kill -9 broker {broker.bootstrap}")
    await asyncio.to_thread(broker.kill)
    await asyncio.sleep(down_s)
    await asyncio.to_thread(broker.start)
    stack.fault(f"broker {broker.bootstrap} answers again", heals=True)


EXPERIMENTS: Final = (
    Experiment("E6", "the one broker is killed and started again", one_broker, bounds={RECOVERY_MAX: AIM_S}),
    Experiment(
        "E6b", "one of three brokers is killed, or their controller", three_brokers, bounds={RECOVERY_MAX: AIM_S}
    ),
    Experiment("E18", "all groups start again at offset 0", offsets_lost, bounds={"copies": 0, "doubled_results": 0}),
    Experiment("E19a", "the broker's disk is full", full_disk),
)
