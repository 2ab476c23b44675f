"""The library's fetch loop, with the real code of the library and a broker of ours: it must not sleep on its work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.structs import TopicPartition as KafkaPartition

from relay.log.kafka import membership

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

    @property
    def was_asked(self) -> bool:
        return not self._asked.empty()

    async def asked(self) -> asyncio.Future[Any]:
        async with asyncio.timeout(5):
            return await self._asked.get()


@asynccontextmanager
async def fetching(broker: Broker) -> AsyncIterator[Any]:
    """A consumer, as far as our accesses to it go, that has one partition and fetches."""
    subscriptions = SubscriptionState()
    subscriptions.assign_from_user({PLACE})
    subscriptions.subscription.assignment.state_value(PLACE).seek(0)
    fetcher = Fetcher(broker, subscriptions, fetcher_timeout=3600)
    consumer = SimpleNamespace(_fetcher=fetcher, _subscription=subscriptions)
    membership.keep_fetching(consumer)
    try:
        yield consumer
    finally:
        await fetcher.close()


async def test_a_fetch_that_ends_while_the_loop_wakes_up_is_followed_by_another() -> None:
    """The loop looks at what is in flight before the end of that fetch has been noted there, and then sleeps, with
    nothing under way."""
    broker = Broker()
    async with fetching(broker) as consumer:
        answer = await broker.asked()
        consumer._fetcher._notify(consumer._fetcher._wait_consume_future)  # records of before were taken
        answer.set_result(NOTHING_NEW)

        await broker.asked()


async def test_a_consumer_that_is_held_asks_for_nothing_until_it_is_released() -> None:
    broker = Broker()
    async with fetching(broker) as consumer:
        answer = await broker.asked()
        held = membership.hold(consumer)
        answer.set_result(NOTHING_NEW)
        for _ in range(20):  # turns of the loop: many more than the next request takes
            await asyncio.sleep(0)
        assert not broker.was_asked

        membership.release(held)
        await broker.asked()


async def test_what_was_held_is_released_though_it_went_to_others() -> None:
    broker = Broker()
    async with fetching(broker) as consumer:
        await broker.asked()
        held = membership.hold(consumer)
        consumer._subscription.unsubscribe()

        membership.release(held)
        assert membership.hold(consumer) == []
