"""The library's fetch loop, with the real code of the library and a broker of ours: it must not sleep on its work."""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.structs import TopicPartition as KafkaPartition

from relay.log import kafka_membership as membership

PLACE = KafkaPartition("t", 0)
NOTHING_NEW = SimpleNamespace(API_VERSION=4, topics=[("t", [(0, 0, 0, 0, [], b"")])])


class Broker:
    """Answers each fetch when told to."""

    _metadata_max_age_ms = 300_000
    cluster = SimpleNamespace(leader_for_partition=lambda _: 1)

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()

    async def send(self, _node: int, _request: object) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked.put_nowait(answer)
        return await answer

    async def asked(self) -> asyncio.Future[Any]:
        return await self._asked.get()


async def test_a_fetch_that_ends_while_the_loop_wakes_up_is_followed_by_another() -> None:
    """The loop looks at what is in flight before the end of that fetch has been noted there, and then sleeps, with
    nothing under way."""
    broker, subscriptions = Broker(), SubscriptionState()
    subscriptions.assign_from_user({PLACE})
    subscriptions.subscription.assignment.state_value(PLACE).seek(0)
    fetcher = Fetcher(broker, subscriptions, fetcher_timeout=3600)
    membership.keep_fetching(SimpleNamespace(_fetcher=fetcher))
    try:
        answer = await broker.asked()
        fetcher._notify(fetcher._wait_consume_future)  # records of before were taken
        answer.set_result(NOTHING_NEW)

        async with asyncio.timeout(5):
            await broker.asked()
    finally:
        await fetcher.close()
