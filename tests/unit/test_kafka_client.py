"""Requests of our own over a connection that goes away under them."""

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from relay.domain.errors import LogUnavailable
from relay.log.kafka.client import TOPICS_A_REQUEST, KafkaClient, described
from relay.log.kafka.cluster import KafkaCluster
from relay.log.port import TopicPartition

CLUSTER = KafkaCluster("unused", "test", repeat_s=0.0)


class Gone:
    """The library's client, whose transport was closed, which it has not seen yet."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.is_closed = False

    def get_random_node(self) -> int:
        return 1

    async def send(self, *_: object) -> NoReturn:
        raise self.error

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("error", [KeyError(7), RuntimeError("the handler is closed")], ids=repr)
async def test_a_connection_that_is_closed_under_a_request_is_an_outage(error: Exception) -> None:
    client, gone = KafkaClient(CLUSTER), Gone(error)
    library: Any = gone
    client._client = library
    with pytest.raises(LogUnavailable, match="the connection was lost"):
        await client.topics(["topic"])
    await client.close()
    assert gone.is_closed


class OneBroker:
    """The library's client, connected to a broker that leads one partition of each topic, and has nothing in it."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.cluster = SimpleNamespace(update_metadata=lambda _: None)

    def get_random_node(self) -> int:
        return 1

    async def send(self, _: int, request: Any) -> Any:
        self.asked.append(request)
        if isinstance(request, MetadataRequest):
            return SimpleNamespace(topics=[(0, topic, False, [(0, 0, 1, [1], [1])]) for topic in request._topics])
        return SimpleNamespace(topics=[(topic, [(0, 0, -1, 7)]) for topic, _ in request._topics])

    async def close(self) -> None:
        pass


async def test_the_leaders_of_many_topics_are_asked_for_together() -> None:
    client, broker = KafkaClient(CLUSTER), OneBroker()
    library: Any = broker
    client._client = library
    places = [TopicPartition(f"t{number}", 0) for number in range(TOPICS_A_REQUEST + 1)]

    assert await client.offsets(places, "end") == dict.fromkeys(places, 7)
    assert [type(request) for request in broker.asked] == [MetadataRequest, MetadataRequest, OffsetRequest]

    await client.topics(["other"])
    await client.offsets([TopicPartition("other", 0)], "end")
    assert [type(request) for request in broker.asked[3:]] == [MetadataRequest, OffsetRequest]
    await client.close()


def test_an_error_names_the_cause_once_and_no_objects_of_the_library() -> None:
    unreachable = "Unable to bootstrap from [('kafka', 9092, <AddressFamily.AF_UNSPEC: 0>)]"
    assert described(KafkaConnectionError(unreachable)) == "connection failed"
    assert described(KafkaConnectionError("the broker has moved")) == "KafkaConnectionError: the broker has moved"
