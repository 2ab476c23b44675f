"""In which order partitions are read back."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from relay.log.port import TopicPartition
from relay.recovery.rebuild import Block, ReverseScan

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def _all(order: ReverseScan, time_of: dict[TopicPartition, list[int]]) -> list[Block]:
    """Every block in its turn; `time_of`: timestamp of each offset."""
    read = []
    while (block := order.next()) is not None:
        order.read(block, time_of[block.at][block.start : block.end])
        read.append(block)
    return read


def test_the_newest_block_of_all_partitions_comes_next() -> None:
    order = ReverseScan([Block(A, 0, 4), Block(B, 0, 4)], since_ms=-inf, size=2)
    times = {A: [10, 20, 30, 40], B: [5, 6, 7, 100]}
    assert _all(order, times) == [Block(A, 2, 4), Block(B, 2, 4), Block(A, 0, 2), Block(B, 0, 2)]
    assert order.reached_ms == -inf


def test_how_far_it_is() -> None:
    order = ReverseScan([Block(A, 0, 4), Block(B, 0, 2)], since_ms=-inf, size=2)
    assert order.reached_ms == inf
    order.read(Block(A, 2, 4), [30, 40])
    assert order.reached_ms == inf, "nothing is known of the other yet"
    order.read(Block(B, 0, 2), [50, 60])
    assert order.reached_ms == 30


def test_it_ends_where_a_whole_block_is_too_old_and_goes_on_when_that_is_lowered() -> None:
    order = ReverseScan([Block(A, 0, 6)], since_ms=35, size=2)
    times = {A: [10, 20, 30, 34, 33, 40]}
    assert _all(order, times) == [Block(A, 4, 6), Block(A, 2, 4)]
    order.since_ms = -inf
    assert _all(order, times) == [Block(A, 0, 2)]


def test_what_retention_has_taken_is_passed_over() -> None:
    order = ReverseScan([Block(A, 3, 9)], since_ms=0, size=4)
    block = order.next()
    assert block == Block(A, 5, 9)
    order.read(block, [])
    assert order.next() == Block(A, 3, 5)


@given(
    st.dictionaries(
        st.sampled_from([A, B, TopicPartition("c", 7)]), st.lists(st.integers(0, 50), max_size=30), max_size=3
    ),
    st.integers(1, 7),
)
def test_every_offset_is_read_once(time_of: dict[TopicPartition, list[int]], size: int) -> None:
    order = ReverseScan([Block(at, 0, len(times)) for at, times in time_of.items()], since_ms=-inf, size=size)
    read = [(block.at, offset) for block in _all(order, time_of) for offset in range(block.start, block.end)]
    assert sorted(read) == sorted((at, offset) for at, times in time_of.items() for offset in range(len(times)))
