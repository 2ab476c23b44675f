"""Whether a batch goes on where a store ends. Pure."""

from collections.abc import Mapping

from relay.domain.errors import HistoryMoved
from relay.log.port import TopicPartition


def check_begin(stored: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]) -> None:
    """Raises HistoryMoved where the store has less than what comes before the batch."""
    for partition, offset in first.items():
        has = stored.get(partition, 0)
        if has < offset:
            topic, number = partition
            raise HistoryMoved(f"the history has {topic}/{number} up to {has}, and was at {offset}: it was cleared")
