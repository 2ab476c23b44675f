"""Planted bugs about logs that lose their end, and transactions; see `planted`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import relay.log.kafka.record_batches
import tests.fakes.log
from relay.engine.effects import Effects
from relay.log.group_consumer import GroupConsumer
from relay.log.kafka.holdings import HeldPartition
from relay.log.kafka.leader_epochs import ReadHistory
from relay.log.kafka.offsets import Committed
from relay.log.port import TopicPartition
from relay.state.rows import Due
from tests.fakes.log import MemoryTransaction
from workers.to_receiver import ToReceiver


@contextmanager
def truncation_ignored() -> Iterator[None]:
    """Offsets count, even if the log has lost the records that were read."""

    def goes_on(self: object, *about: object) -> None:
        return None

    with (
        patch.object(ReadHistory, "divergence", goes_on),
        patch.object(tests.fakes.log._Partition, "divergence", goes_on),
    ):
        yield


@contextmanager
def unfinished_skipped() -> Iterator[None]:
    """After a loss of the log's end, reading continues there, even if earlier records were read and not finished."""

    async def commit_first(self: GroupConsumer, error: Any) -> None:
        for place in error.partitions:
            at = TopicPartition(*place)
            self._owned[at] = self._owned[at].__class__(self._owned[at].epoch, self._owned[at].position, 2**40)
        await rightly(self, error)

    def begun_at(self: HeldPartition, offset: int) -> Committed:
        return begun_rightly(self, max(offset, self.history.position - 1) if self.history.position else offset)

    rightly, begun_rightly = GroupConsumer._commit_first, HeldPartition.begun_at
    with patch.object(GroupConsumer, "_commit_first", commit_first), patch.object(HeldPartition, "begun_at", begun_at):
        yield


@contextmanager
def aborted_delivered() -> Iterator[None]:
    """Records of aborted transactions are read like others."""

    def end(self: MemoryTransaction, *, aborted: bool) -> None:
        rightly(self, aborted=False)

    rightly = MemoryTransaction._end
    with (
        patch.object(relay.log.kafka.record_batches, "_aborted_batches", lambda data, aborted: frozenset()),
        patch.object(MemoryTransaction, "_end", end),
    ):
        yield


@contextmanager
def lost_copy_forgotten() -> Iterator[None]:
    """A reference whose parked copy is missing counts as finished."""

    async def finished(self: Effects, lane: object, gone: Sequence[Due], found: object) -> list[Due]:
        return list(gone)

    with patch.object(Effects, "_finished", finished):
        yield


@contextmanager
def numbers_in_state_only() -> Iterator[None]:
    """The numbers of a receiver's deliveries are not written to the log."""
    with patch.object(ToReceiver, "resume", ToReceiver._resumed):
        yield


PLANTED_IN_LOGS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (truncation_ignored, unfinished_skipped, aborted_delivered, lost_copy_forgotten, numbers_in_state_only)
}
