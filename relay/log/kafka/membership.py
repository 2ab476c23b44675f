"""What only the private parts of AIOKafkaConsumer tell: its generation, its health, and when it has new data.

All accesses to them by our consumer are here. Written for aiokafka 0.14.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaError, NoError, for_code
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.structs import TopicPartition as KafkaPartition

from relay.log.port import TopicPartition


class Progress(NamedTuple):
    """How far a partition has got. `answered`: changes with every fetch that the broker answered for it."""

    position: int | None
    highwater: int | None
    answered: int | None

    @property
    def behind(self) -> bool:
        """Whether the broker has records that have not come yet; also when the position is not known."""
        return self.position is None or (self.highwater is not None and self.position < self.highwater)


def generation(consumer: AIOKafkaConsumer) -> int:
    """The generation of the group that this member belongs to; -1 when it belongs to none (any more)."""
    number: int = consumer._coordinator.generation
    return number


async def refusal(consumer: AIOKafkaConsumer) -> type[KafkaError] | None:
    """Why the group's coordinator does not accept a heartbeat of this member and generation; None: it does.

    Raises KafkaError when it did not answer.
    """
    coordinator = consumer._coordinator
    heartbeat = HeartbeatRequest(coordinator.group_id, coordinator.generation, coordinator.member_id)
    answer = await coordinator._send_req(heartbeat)
    error: type[KafkaError] = for_code(answer.error_code)
    return None if error is NoError else error


def dead_task(consumer: AIOKafkaConsumer) -> str | None:
    """Which background task has ended, if one has: without it nothing is fetched, and nothing says so."""
    if consumer._fetcher._fetch_task.done():
        return "fetch"
    if consumer._coordinator._coordination_task.done():
        return "coordination"
    return None


def progress(consumer: AIOKafkaConsumer, partition: TopicPartition) -> Progress:
    """The progress of an assigned partition."""
    state = consumer._subscription.subscription.assignment.state_value(KafkaPartition(*partition))
    position = state.position if state.has_valid_position else None
    return Progress(position, state.highwater, state.timestamp)


def new_data(consumer: AIOKafkaConsumer) -> asyncio.Future[None]:
    """Done when records (or an error) came in, of whatever partition. Cancel it when it is no longer waited for."""
    waiter: asyncio.Future[None] = consumer._fetcher._create_fetch_waiter()
    return waiter


def hold(consumer: AIOKafkaConsumer) -> list[Any]:
    """Ask the broker for nothing more until `release` gets what this returns. What was asked for already still comes;
    getmany must not be called meanwhile: it would throw that away."""
    subscription = consumer._subscription.subscription
    assignment = subscription and subscription.assignment
    states = [] if assignment is None else [assignment.state_value(partition) for partition in assignment.tps]
    for state in states:
        state.pause()
    return states


def release(states: Iterable[Any]) -> None:
    """What `hold` has returned; harmless when the partitions have gone to others since."""
    for state in states:
        state.resume()


def has_data(consumer: AIOKafkaConsumer, partitions: frozenset[TopicPartition]) -> bool:
    """Whether anything that was fetched of these, or an error, waits for getmany."""
    return not partitions.isdisjoint(consumer._fetcher._records)


def keep_alive(consumer: AIOKafkaConsumer) -> None:
    """Count as a poll, though nothing is asked for: a member that does not poll for `max_poll_interval_ms` leaves the
    group, and one that was never assigned a partition would not rejoin. Raises what coordination has failed with."""
    consumer._coordinator.check_errors()
    with consumer._subscription.fetch_context():
        pass


def drop_fetches(consumer: AIOKafkaConsumer) -> None:
    """Give up the connections on which a fetch waits for its answer, which nobody wants any more.

    After a rebalance the library forgets its fetches, but the broker does not: it answers the requests of a connection
    one by one, so the next fetch would wait until the last one of before is over.
    """
    for (_, group), connection in list(consumer._client._conns.items()):
        if group == ConnectionGroup.DEFAULT and connection._requests:
            connection.close()


class _InFlight(set[Any]):
    """The nodes that a fetcher waits for; when one is waited for no more, its loop looks again.

    The loop may wake up between the end of a fetch and its removal from here. It then takes the node for busy and,
    with nothing else to wait for, sleeps for `consumer_timeout_ms`.
    """

    def __init__(self, fetcher: Any) -> None:
        super().__init__(fetcher._in_flight)
        self._fetcher = fetcher

    def discard(self, node: object) -> None:
        super().discard(node)
        self._fetcher._notify(self._fetcher._wait_consume_future)


def keep_fetching(consumer: AIOKafkaConsumer) -> None:
    """Cure a started consumer of a lost wake-up in its fetch loop, before it is subscribed to anything."""
    consumer._fetcher._in_flight = _InFlight(consumer._fetcher)
