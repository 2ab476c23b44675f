"""The rights of a user, as a cluster reports them or does not."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, IncompatibleBrokerVersion, TopicAuthorizationFailedError

from relay.domain.errors import LogUnavailable
from relay.domain.rights import Right
from relay.log.kafka import admin
from relay.log.kafka.admin import KafkaAdmin
from relay.log.kafka.cluster import KafkaCluster

TOPIC = Right("topic", "t", False, ("Read", "Write", "DescribeConfigs"), "t")
GROUP = Right("group", "g", True, ("Read",), "g")
READ_ONLY = 1 << 3 | 1 << 8
NOT_TOLD = -(2**31)


class Client:
    """`topic`: error and operations of the topic's answer, or an exception to raise. `group`: likewise; None: no
    answer."""

    def __init__(
        self, topic: tuple[int, int] | Exception = (0, -1), group: tuple[int, int] | Exception | None = (0, -1)
    ) -> None:
        self._topic = topic
        self._group = group

    async def asked(self, _doing: str, _request: object, read: Any) -> Any:
        if isinstance(self._topic, Exception):
            raise self._topic
        error, operations = self._topic
        return read(SimpleNamespace(topics=[(error, "t", False, [], operations)]))

    async def coordinated(self, _group: str, _doing: str, _request: object, read: Any) -> Any:
        if self._group is None:
            await asyncio.Event().wait()
        if isinstance(self._group, Exception):
            raise LogUnavailable("no") from self._group
        error, operations = self._group or (0, 0)
        return read(SimpleNamespace(groups=[(error, "g", "Empty", "", "", [], operations)]))


async def told(client: Any) -> list[tuple[str, tuple[str, ...]]]:
    log = KafkaAdmin(KafkaCluster("unused"), None)
    log._client = client
    return [(right.name, right.operations) for right in await log.lacking([TOPIC, GROUP])]


@pytest.mark.parametrize(
    ("client", "found"),
    [
        (Client(), []),
        (Client((0, READ_ONLY)), [("t", ("Write", "DescribeConfigs"))]),
        (Client((TopicAuthorizationFailedError.errno, NOT_TOLD)), [("t", ("Read", "Write"))]),
        (Client((3, 0)), []),
        (Client((0, NOT_TOLD), (0, NOT_TOLD)), []),
        (Client(group=(0, 1 << 8)), [("g", ("Read",))]),
        (Client(group=GroupAuthorizationFailedError()), [("g", ("Read",))]),
        (Client(group=TimeoutError()), []),
        (Client(IncompatibleBrokerVersion()), []),
    ],
    ids=["all", "some", "not described", "no such topic", "not told", "group", "no group", "no answer", "too old"],
)
async def test_what_is_lacking(client: Client, found: list[tuple[str, tuple[str, ...]]]) -> None:
    assert await told(client) == found


async def test_a_coordinator_that_is_silent_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "PATIENCE_S", 0.01)
    assert await told(Client((0, READ_ONLY), None)) == [("t", ("Write", "DescribeConfigs"))]
