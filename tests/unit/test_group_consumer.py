"""A member of a group within this process, in what the suite of all logs cannot see."""

import asyncio
from collections.abc import Sequence

from relay.domain.topics import TopicSpec
from relay.log.port import Assignment, Subscription, TopicPartition
from tests.fakes.log import MemoryBroker, opened_log
from tests.fakes.virtual_time import virtually


@virtually
async def test_one_that_was_put_out_and_has_to_wait_for_its_own_end_lets_time_pass() -> None:
    """A topic of its is missing, and it may not look for it before it has ended what it had."""
    log = await opened_log(MemoryBroker(), [TopicSpec("there", partitions=1)], {"there": "group"})
    assigned: list[TopicPartition] = []
    leaving, may_end = asyncio.Event(), asyncio.Event()

    async def on_assigned(assignments: Sequence[Assignment]) -> None:
        assigned.extend(each.partition for each in assignments)

    async def on_revoked(_: Sequence[TopicPartition]) -> None:
        leaving.set()
        await may_end.wait()

    consumer = log.consumer(Subscription("group", ["there", "missing"]), on_assigned, on_revoked)
    await consumer.start()
    log.expel()
    poll = asyncio.create_task(consumer.poll(max_records=1, timeout_s=5))
    await leaving.wait()
    await poll  # it ends by its own time only
    again = asyncio.create_task(consumer.poll(max_records=1, timeout_s=5))
    await asyncio.sleep(0)
    may_end.set()
    await again
    assert assigned == [TopicPartition("there", 0)] * 2
    await consumer.close()
