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
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.producer.message_accumulator import MessageBatch
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.structs import TopicPartition

import relay.log.kafka

HERE: Final = Path(relay.log.kafka.__file__).parent
PLACE: Final = TopicPartition("t", 0)

PRIVATE: Final[dict[str, set[str]]] = {
    "coordinator": {"_coordination_task", "_do_heartbeat"},
    "producer": {"_message_accumulator", "_sender"},
    "accumulator": {"_exception", "_closed", "_append_batch", "_batches"},
    "batch": {"_drain_waiter", "_builder"},
}
"""By the object that has them."""

UNDOCUMENTED: Final[dict[str, set[str]]] = {
    "coordinator": {
        *("generation", "member_id", "check_errors", "request_rejoin", "reset_generation", "close"),
        *("start_commit_offsets_refresh_task", "coordinator_id"),
    },
    "subscriptions": {"register_fetch_waiters", "subscribe"},
    "client": {
        *("cluster", "coordinator_lookup", "force_metadata_update", "ready", "send"),
        *("add_topic", "set_topics", "_maybe_wait_metadata"),
    },
    "cluster": {"leader_for_partition"},
    "connection": {"close", "connected", "send"},
    "record batch": {"validate_crc", "__iter__"},
    "producer": {"client", "create_batch"},
    "sender": {"sender_task", "close"},
    "accumulator": {"fail_all", "drain_by_nodes"},
}
"""Public by their names, of objects that are not; and what the coordinator calls of the client that we stand in for."""


@pytest.fixture
async def library() -> AsyncIterator[dict[str, Any]]:
    """The library's objects, none of them connected to anything."""
    producer, client, subscriptions = AIOKafkaProducer(), AIOKafkaClient(), SubscriptionState()
    coordinator = GroupCoordinator(client, subscriptions)
    await asyncio.sleep(0)
    yield {
        "coordinator": coordinator,
        "subscriptions": subscriptions,
        "client": client,
        "cluster": client.cluster,
        "connection": AIOKafkaConnection("127.0.0.1", 9),
        "record batch": DefaultRecordBatch,
        "producer": producer,
        "sender": producer._sender,
        "accumulator": producer._message_accumulator,
        "batch": MessageBatch(PLACE, producer.create_batch(), 1, 0),
    }
    coordinator._coordination_task.cancel()
    with suppress(asyncio.CancelledError):
        await coordinator._coordination_task
    await asyncio.gather(producer.stop(), client.close())


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
    assert library["coordinator"].generation == -1
    assert not library["coordinator"]._coordination_task.done()


def test_an_assignor_may_be_an_object_that_answers_for_its_member() -> None:
    """The library asks it for the member's metadata before each join, and gives it the assignment after each."""
    for method in ("metadata", "assign", "on_assignment"):
        assert hasattr(AbstractPartitionAssignor, method)


def test_no_private_part_is_used_that_is_not_listed() -> None:
    listed = set().union(*PRIVATE.values())
    used = {attribute for path in HERE.glob("*.py") for attribute in _foreign(ast.parse(path.read_text()))}
    assert used == listed


def _foreign(tree: ast.AST) -> Iterator[str]:
    """Private attributes of other objects than our own; `_replace` of a named tuple is public."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            if node.attr != "_replace" and not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                yield node.attr
