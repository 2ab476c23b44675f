"""Leader epochs of the records of a partition that a reader has got, and the topic that these are from. Pure.

Sources: KIP-320; KIP-516 (topic ids). An offset alone names another record once a log has lost its end and grown again;
with the epoch of the record before it, the leader can say where its log diverges from the one that was read.
"""

from bisect import bisect_left
from typing import Final, NamedTuple

UNKNOWN: Final = -1


class EpochQuery(NamedTuple):
    """A question to a leader of epoch `leader`: where did epoch `written` end?"""

    leader: int
    written: int


class EpochEnd(NamedTuple):
    """A leader's reply about an epoch: the newest of its log that is not above it, and the offset behind its last
    record. Either is -1 if it has none."""

    epoch: int
    end: int


class ReadHistory:
    """How far a partition was read from offset `start` on, and the leader epochs of its records. `epoch`: of the record
    before `start`; -1 if unknown. `topic_id`: of the topic that is read; empty if unknown."""

    def __init__(self, start: int = 0, epoch: int = UNKNOWN, topic_id: str = "") -> None:
        self.topic_id = topic_id
        self.start = self.position = start
        self._last = start  # behind the last record that was handed out
        self._firsts = [UNKNOWN]
        self._epochs = [epoch]

    def written(self, offset: int, epoch: int) -> None:
        """The batch that begins at `offset` was written in `epoch`. Called in the order of the batches."""
        if epoch > self._epochs[-1]:
            self._firsts.append(offset)
            self._epochs.append(epoch)

    def taken(self, last: int | None, position: int) -> None:
        """Records up to offset `last` were returned; None if none. There are no more records before `position`."""
        self.position = position
        if last is not None:
            self._last = last + 1

    def behind(self, offset: int) -> int:
        """Where to continue once all records before `offset` are finished: behind markers, aborted and compacted
        records, too."""
        return max(offset, self.position) if offset == self._last else offset

    def epoch_before(self, offset: int) -> int:
        """The epoch in which the record before `offset` was written."""
        return self._epochs[max(0, bisect_left(self._firsts, offset) - 1)]

    def forget_before(self, offset: int) -> None:
        """No epoch before `offset` will be asked for."""
        first = bisect_left(self._firsts, offset) - 1
        if first > 0:
            del self._firsts[:first], self._epochs[:first]

    def divergence(self, offset: int, found: EpochEnd, leader_epoch: int) -> int | None:
        """Where the log diverges from the records read up to `offset`; None if it does not; 0 if it was created again.
        `found`: the end of the epoch before `offset`, from a leader of `leader_epoch`."""
        written = self.epoch_before(offset)
        if found.end == UNKNOWN:  # its log has no such epoch; or it keeps none
            return 0 if written > leader_epoch else None
        if written == leader_epoch and found.end < offset:
            return 0  # a log loses its end with its leader only
        end = found.end
        for first, epoch in zip(self._firsts, self._epochs, strict=True):
            if epoch > found.epoch and first != UNKNOWN:
                end = min(end, first)  # this log has none of the records read from there on
        return end if end < offset else None
