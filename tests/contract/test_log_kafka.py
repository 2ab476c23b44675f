"""The log on Kafka keeps the contract, on a real broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.structs import TopicPartition as KafkaPartition

from relay.log.kafka import KafkaLog
from relay.log.port import Coordinate, Log
from tests.contract.log_contract import LogContract
from tests.servers.kafka import Broker

pytestmark = pytest.mark.kafka


class KafkaRig:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = self._new()
        self.log: Log = self._client
        self.max_message_bytes = self._client.max_record_bytes

    def _new(self) -> KafkaLog:
        return KafkaLog(self._bootstrap, session_timeout_ms=10_000, heartbeat_interval_ms=100)

    async def reopen(self) -> Log:
        members = await vanish(self._client)
        self._client = self._new()
        self.log = self._client
        await self.log.start()
        for group, member in members:
            await self._expel(group, member)
        return self.log

    async def _expel(self, group: str, member: str) -> None:
        """What the broker does by itself when the session of a member is over, without the wait."""
        ours = self._client._client
        request = LeaveGroupRequest(group, member)
        await ours._repeated("expelling a member", lambda client: ours._to_coordinator(client, group, request))

    async def drop_before(self, at: Coordinate) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        await admin.delete_records({KafkaPartition(at.topic, at.partition): RecordsToDelete(at.offset)})
        await admin.close()


async def vanish(log: KafkaLog) -> list[tuple[str, str]]:
    """Cut all connections and end all tasks of `log`, as a killed process would; the group members that are left."""
    members = []
    for consumer in log._consumers:
        theirs, consumer._consumer, consumer._closing = consumer._consumer, None, True
        if theirs is None:
            continue
        coordinator, fetcher = theirs._coordinator, theirs._fetcher
        members.append((coordinator.group_id, coordinator.member_id))
        theirs._closed = True
        own = [coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task]
        await cut(theirs._client, *own, fetcher._fetch_task, *fetcher._pending_tasks)
    producer = log._producer._producer
    assert producer is not None
    log._producer._producer, log._producer._closed = None, True
    producer._closed = True
    producer._message_accumulator.fail_all(KafkaError("the process is gone"))
    await cut(producer.client, producer._sender.sender_task)
    await log._client.close()
    return members


async def cut(client: AIOKafkaClient, *tasks: asyncio.Task[Any] | None) -> None:
    for connection in client._conns.values():
        connection.close()
    running = [task for task in (*tasks, client._sync_task) if task is not None]
    for task in running:
        task.cancel()
    for task in running:
        with suppress(asyncio.CancelledError, KafkaError):
            await task


class TestKafkaLog(LogContract):
    @pytest_asyncio.fixture
    async def rig(self, kafka_broker: Broker) -> AsyncIterator[KafkaRig]:
        rig = KafkaRig(kafka_broker.bootstrap)
        await rig.log.start()
        yield rig
        await rig.log.close()
