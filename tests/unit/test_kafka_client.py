"""Requests of our own over a connection that goes away under them."""

from dataclasses import replace
from typing import Any, NoReturn

import pytest

from relay.domain.errors import LogUnavailable
from relay.log.kafka.client import KafkaClient
from relay.log.kafka.cluster import KafkaCluster, KafkaSecurity

CLUSTER = replace(KafkaCluster("unused", "test", KafkaSecurity(), None), repeat_s=0.0)


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
