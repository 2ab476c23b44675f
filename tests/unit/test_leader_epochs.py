"""The offset at which a log diverges from the records read of it: the leader's answer against the known epochs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.log.kafka.leader_epochs import UNKNOWN, EpochEnd, ReadHistory
from relay.log.port import TopicPartition
from tests.fakes.kafka_broker import FakeLog

AT = TopicPartition("topic", 0)


def test_a_record_has_the_epoch_of_its_batch() -> None:
    history = ReadHistory(5, 1)
    for offset, epoch in ((5, 1), (8, 3), (9, 3), (12, 4)):
        history.written(offset, epoch)
    assert [history.epoch_before(offset) for offset in (5, 8, 9, 12, 13, 99)] == [1, 1, 3, 3, 4, 4]
    history.forget_before(10)
    assert [history.epoch_before(offset) for offset in (10, 12, 13)] == [3, 3, 4]


def test_what_is_committed_reaches_beyond_what_nothing_is_read_of() -> None:
    history = ReadHistory(3)
    assert history.behind(3) == 3
    history.taken(None, 6)
    assert history.behind(3) == 6
    history.taken(8, 9)
    assert [history.behind(offset) for offset in (7, 8, 9)] == [7, 8, 9]
    history.taken(None, 12)
    assert [history.behind(offset) for offset in (8, 9)] == [8, 12]


@pytest.mark.parametrize(
    ("told", "leader", "divergence"),
    [
        (EpochEnd(2, 30), 2, None),
        (EpochEnd(2, 31), 3, None),
        (EpochEnd(2, 20), 3, 20),
        (EpochEnd(1, 20), 3, 10),  # of epoch 2, which began at 10, that log has nothing
        (EpochEnd(UNKNOWN, UNKNOWN), 1, 0),  # no leader ever had our epoch: another log
        (EpochEnd(2, 20), 2, 0),  # no leader loses what it has led: another log
        (EpochEnd(UNKNOWN, UNKNOWN), 2, None),  # a broker that keeps no epochs
    ],
)
def test_what_a_leader_says(told: EpochEnd, leader: int, divergence: int | None) -> None:
    history = ReadHistory(0)
    history.written(0, 1)
    history.written(10, 2)
    assert history.divergence(30, told, leader) == divergence


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 8)), min_size=1, max_size=8), st.data())
def test_no_record_is_skipped_however_often_a_log_is_cut(
    changes: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    """A reader that is anywhere when the log is cut, and asks when it has grown again, goes on before the first record
    that it has not read."""
    log, written, read, history = FakeLog(), list[str](), list[str](), ReadHistory(0)
    for epoch, (count, is_cut, lost) in enumerate(changes):
        if is_cut:
            log.cut(max(0, log.end - lost))
            del written[log.end :]
        log.epochs.append((log.end, epoch))
        for number in range(count):
            written.append(f"{epoch}.{number}")
            log.end += 1
        at = len(read)
        if at and (known := history.epoch_before(at)) != UNKNOWN:
            told = log.epoch_end(known)
            if (divergence := history.divergence(at, told, epoch)) is not None:
                del read[divergence:]
                history = ReadHistory(divergence, history.epoch_before(divergence) if divergence else UNKNOWN)
        assert read == written[: len(read)]
        for offset in range(len(read), data.draw(st.integers(len(read), len(written)))):
            history.written(offset, int(written[offset].split(".")[0]))
            read.append(written[offset])
