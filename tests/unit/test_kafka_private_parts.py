"""The private parts of the client library that we lean on are there: an upgrade that moves one fails here, in seconds.

Each is looked for in the library's real objects. What our code reaches for is read from the code itself, so that no
new access goes unlisted.
"""

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher, FetchError, FetchResult
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import RecordTooLargeError
from aiokafka.producer.message_accumulator import MessageBatch
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.structs import TopicPartition

import relay.log.kafka

HERE: Final = Path(relay.log.kafka.__file__).parent
PLACE: Final = TopicPartition("t", 0)

PRIVATE: Final[dict[str, set[str]]] = {
    "consumer": {"_client", "_coordinator", "_fetcher", "_subscription"},
    "coordinator": {"_coordination_task", "_send_req"},
    "fetcher": {
        *("_fetch_task", "_records", "_in_flight", "_wait_consume_future"),
        *("_create_fetch_waiter", "_notify", "_prefetch_backoff"),
    },
    "fetch result": {"_assignment"},
    "fetch error": {"_error"},
    "client": {"_conns"},
    "connection": {"_requests"},
    "producer": {"_message_accumulator", "_sender"},
    "accumulator": {"_exception", "_closed", "_append_batch", "_batches"},
    "batch": {"_drain_waiter"},
}
"""By the object that has them."""

UNDOCUMENTED: Final[dict[str, set[str]]] = {
    "coordinator": {"generation", "member_id", "group_id", "check_errors"},
    "subscriptions": {"subscription", "fetch_context"},
    "assignment": {"state_value", "tps", "active"},
    "fetch result": {"getall", "has_more"},
    "partition state": {
        *("position", "has_valid_position", "highwater", "timestamp"),
        *("pause", "resume", "consumed_to"),
    },
    "connection": {"close", "connected", "send"},
    "record batch": {"validate_crc", "__iter__"},
    "producer": {"client", "create_batch"},
    "sender": {"sender_task", "close"},
    "accumulator": {"fail_all"},
}
"""Public by their names, of objects that are not."""


@pytest.fixture
async def library() -> AsyncIterator[dict[str, Any]]:
    """The library's objects, none of them connected to anything."""
    consumer, producer = AIOKafkaConsumer(group_id="g"), AIOKafkaProducer()
    client, subscriptions = AIOKafkaClient(), SubscriptionState()
    subscriptions.assign_from_user({PLACE})
    assignment = subscriptions.subscription.assignment
    assignment.state_value(PLACE).seek(0)
    fetcher, coordinator = Fetcher(client, subscriptions), GroupCoordinator(client, SubscriptionState())
    await asyncio.sleep(0)
    accumulator = producer._message_accumulator
    yield {
        "consumer": consumer,
        "coordinator": coordinator,
        "fetcher": fetcher,
        "subscriptions": subscriptions,
        "assignment": assignment,
        "partition state": assignment.state_value(PLACE),
        "fetch result": FetchResult(PLACE, assignment=assignment, partition_records=None, backoff=0.0),
        "fetch error": FetchError(error=RecordTooLargeError(), backoff=0.0),
        "client": client,
        "connection": AIOKafkaConnection("127.0.0.1", 9),
        "record batch": DefaultRecordBatch,
        "producer": producer,
        "sender": producer._sender,
        "accumulator": accumulator,
        "batch": MessageBatch(PLACE, producer.create_batch(), 1, 0),
    }
    coordinator._coordination_task.cancel()
    with suppress(asyncio.CancelledError):
        await coordinator._coordination_task
    await fetcher.close()
    await asyncio.gather(consumer.stop(), producer.stop(), client.close())


async def test_what_we_lean_on_is_there(library: dict[str, Any]) -> None:
    missing = [
        f"{name}.{attribute}"
        for table in (PRIVATE, UNDOCUMENTED)
        for name, attributes in table.items()
        for attribute in attributes
        if not hasattr(library[name], attribute)
    ]
    assert not missing, f"aiokafka {version('aiokafka')} lacks {', '.join(sorted(missing))}"


async def test_the_shapes_are_as_we_take_them(library: dict[str, Any]) -> None:
    assert isinstance(library["fetcher"]._in_flight, set)
    assert isinstance(library["fetcher"]._records, dict)
    assert isinstance(library["client"]._conns, dict)
    assert not library["connection"]._requests
    assert library["coordinator"].generation == -1
    assert ConnectionGroup.DEFAULT != ConnectionGroup.COORDINATION


def test_no_private_part_is_used_that_is_not_listed() -> None:
    listed = set().union(*PRIVATE.values())
    used = {attribute for path in HERE.glob("*.py") for attribute in _foreign(ast.parse(path.read_text()))}
    assert used == listed


def _foreign(tree: ast.AST) -> Iterator[str]:
    """Private attributes of other objects than our own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                yield node.attr
