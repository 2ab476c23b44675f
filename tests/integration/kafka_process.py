"""A separate process on the Kafka log, for tests that kill one. Prints one line for each durable step.

python -m tests.integration.kafka_process produce BOOTSTRAP TOPIC           each acknowledged record
python -m tests.integration.kafka_process consume BOOTSTRAP TOPIC GROUP     the offset it committed, after 5 records
"""

import asyncio
import sys
from collections.abc import Sequence

from relay.log.kafka.cluster import KafkaCluster
from relay.log.kafka.log import KafkaLog
from relay.log.port import Assignment, NewRecord, Subscription, TopicPartition

SESSION_TIMEOUT_MS = 6_000
COMMITTED_RECORDS = 5


async def produce(log: KafkaLog, topic: str) -> None:
    """Append without end, three partitions' worth at a time."""
    number = 0
    while True:
        batch = [NewRecord(topic, f"key-{n % 7}".encode(), f"value-{n}".encode()) for n in range(number, number + 20)]
        for at, record in zip(await log.append(batch), batch, strict=True):
            say(at.partition, at.offset, (record.value or b"").decode())
        number += 20


async def consume(log: KafkaLog, topic: str, group: str) -> None:
    """Commit the first records of the only assigned partition, then stop reading."""
    ends: dict[TopicPartition, int] = {}

    async def assigned(assignments: Sequence[Assignment]) -> None:
        for assignment in assignments:
            say("owns", assignment.partition.partition)

    async def revoked(partitions: Sequence[TopicPartition]) -> None:
        pass

    consumer = log.consumer(Subscription(group, [topic]), assigned, revoked)
    await consumer.start()
    left = COMMITTED_RECORDS
    while left:
        for partition, records in (await consumer.poll(max_records=left, timeout_s=1)).items():
            left -= len(records)
            ends[partition] = records[-1].offset + 1
    await consumer.commit(ends)
    consumer.pause(list(ends))
    say("committed", *ends.values())
    while True:
        await consumer.poll(max_records=1, timeout_s=1)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(role: str, bootstrap: str, *arguments: str) -> None:
    log = KafkaLog(KafkaCluster(bootstrap), session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_interval_ms=200)
    await log.start()
    await (consume(log, *arguments) if role == "consume" else produce(log, *arguments))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
