"""Reads the parked copies of references that are due. Waits while the log is unavailable, and gives up none that the
log of another cluster lacks, because an operator may have mistaken its address."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from relay.domain.errors import LogUnavailable
from relay.domain.topics import TopicSpec
from relay.engine.parked_copy import ParkedCopy, life_key, parked_key, unwrap_ours
from relay.engine.supervision import Retrier
from relay.log.partitioner import partition_of
from relay.log.port import Log, LogReader, Record
from relay.state.port import State
from relay.state.rows import Due

CLUSTER_LEASE: Final = "cluster"
"""Lease of the cluster whose log has the parked copies of the state's references."""
CLUSTER_S: Final = 400 * 86_400.0
_OTHER_CLUSTER: Final = (
    "Redis has parked messages of another Kafka cluster, which this one lacks: correct RELAY_KAFKA_BOOTSTRAP_SERVERS or"
    " RELAY_REDIS_URL. If this cluster has replaced the other, `relay recover` gives these messages up as lost"
)


async def claim_cluster(log: LogReader, state: State) -> bool:
    """Whether the state's references are of this log's cluster: so if it is the first that claims them."""
    id = await log.cluster_id()
    return not id or await state.lease(CLUSTER_LEASE, id, CLUSTER_S)


async def check_cluster(log: LogReader, state: State) -> None:
    """Raises LogUnavailable if they are of another cluster."""
    if not await claim_cluster(log, state):
        raise LogUnavailable(_OTHER_CLUSTER)


async def adopt_cluster(log: LogReader, state: State) -> None:
    """An operator says that this log's cluster has replaced the former one."""
    await state.release(CLUSTER_LEASE, None)
    await claim_cluster(log, state)


class ParkedReader:
    """Reads the copies of parked records that are due. `parked`: `parked_messages`. `stage`: of the worker that has
    parked the records."""

    def __init__(self, log: Log, retrier: Retrier, parked: TopicSpec) -> None:
        self._log = log
        self._retrier = retrier
        self._parked = parked

    async def read(self, stage: str, taken: Sequence[Due], missing: list[Due]) -> list[ParkedCopy]:
        """The copies of these references, each at its place on the log, or a newer copy from there. A reference without
        one is added to `missing`."""
        wanted = [(due.at, parked_key(stage, due.row)) for due in taken]
        records = await self._retrier.until_done("read parked records", partial(self._log.read, wanted))
        read: list[ParkedCopy] = []
        for due, record in zip(taken, records, strict=True):
            _sort(due, [record], read, missing)
        return read

    async def search(self, stage: str, missing: Sequence[Due], found: list[ParkedCopy], gone: list[Due]) -> list[Due]:
        """Search all current copies, which is rarely needed: adds to `found`, and to `gone` those without a copy.
        Returns those whose copies have a tombstone: they are over, even if the state has forgotten that in a
        fail-over."""
        keys = [(parked_key(stage, due.row), life_key(stage, due.row, due.generation)) for due in missing]
        partitions = {partition_of(key, self._parked.partitions) for both in keys for key in both}
        newest: dict[bytes, Record] = {}
        for partition in partitions | {due.at.partition for due in missing}:
            newest |= await self._retrier.until_done("search parked records", partial(self._newest, partition))
        removed: list[Due] = []
        for due, both in zip(missing, keys, strict=True):
            its = newest.get(life_key(stage, due.row, due.generation))
            if its is not None and _is_removed(due, its):
                removed.append(due)
            else:
                records = [newest[key] for key in both if key in newest]
                _sort(due, [record for record in records if record.value is not None], found, gone)
        return removed

    async def _newest(self, partition: int) -> dict[bytes, Record]:
        """By key, tombstones included."""
        batches = self._log.scan(self._parked.name, partition)
        return {record.key: record async for batch in batches for record in batch if record.key is not None}


def _sort(due: Due, records: Iterable[Record | None], found: list[ParkedCopy], missing: list[Due]) -> None:
    """A copy of a newer release, or a record that is no parked copy, is neither: it is due again after its lease."""
    with suppress(LogUnavailable):
        copies = [unwrap_ours(record) for record in records if record is not None]
        # if the log has lost its end, the copy of another delivery may be at this offset
        its = [copy for copy in copies if copy is None or copy.row == due.row]
        living = [copy for copy in its if copy is not None and copy.generation >= due.generation]
        if living:
            found.append(living[0])
        elif None not in its:
            missing.append(due)


def _is_removed(due: Due, record: Record) -> bool:
    behind = record.partition == due.at.partition and record.offset > due.at.offset
    return behind and record.value is None
