"""Reads of a log, of whichever kind, that only tests need."""

from relay.domain.errors import LogUnavailable
from relay.log.port import LogAdmin, LogReader, Record


async def newest(log: LogReader, topic: str, partition: int) -> list[Record]:
    """The newest record of each key of a compacted topic's partition, without tombstones, in offset order."""
    found = {record.key: record async for batch in log.scan(topic, partition) for record in batch}
    return sorted((each for each in found.values() if each.value is not None), key=lambda record: record.offset)


async def lag(log: LogAdmin, group: str, topic: str) -> int:
    """Records of `topic` that `group` has not committed yet."""
    backlogs = await log.backlogs({topic: group})
    if not backlogs:
        raise LogUnavailable(f"no topic {topic}")
    return sum(each.unread for each in backlogs)
