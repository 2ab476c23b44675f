"""Which release of Kafka a broker is: it does not say, but the requests that it takes do.

Source: the versions of Fetch in Kafka's protocol guide, and the proposals that brought each.
"""

from typing import Any, Final

from aiokafka.protocol.admin import ApiVersionRequest

from relay.log.kafka.client import KafkaClient
from relay.log.kafka.metadata import LayoutAsk, layout_of

_FETCH: Final = 1
_SINCE: Final = {8: "2.0", 10: "2.1", 11: "2.3", 12: "2.7", 13: "3.1", 15: "3.5", 16: "3.7", 17: "3.9", 18: "4.1"}
"""Newest version of Fetch that is taken -> the first release that took it."""


async def about(client: KafkaClient) -> str:
    """Release and size of the cluster, in words. Raises LogUnavailable."""
    newest = await client.asked("asking for its versions", ApiVersionRequest(), _newest_fetch)
    brokers = len((await client.asked("reading metadata", LayoutAsk([]), layout_of)).brokers)
    return f"Kafka {release_of(newest)}, {brokers} broker{'' if brokers == 1 else 's'}"


def release_of(newest_fetch: int) -> str:
    """The release, judged by the newest version of Fetch."""
    known = [version for version in _SINCE if version <= newest_fetch]
    return f"{_SINCE[max(known)]} or newer" if known else f"older than {_SINCE[min(_SINCE)]}"


def _newest_fetch(answer: Any) -> int:
    return next((newest for key, _, newest in answer.api_versions if key == _FETCH), 0)
