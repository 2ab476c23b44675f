"""Tests of the benchmark's disk usage: bytes per message, delivery or row."""

from pathlib import Path

import pytest
from aiokafka.structs import TopicPartition

from bench.disk import Kept, by_kind, on_disk, record_lines, since
from bench.history_sizes import reached, size_lines


def test_lanes_of_receivers_are_of_one_kind_and_empty_topics_of_none() -> None:
    found = by_kind(
        {
            TopicPartition("b-to_receiver_r1", 0): Kept(1_000, 2),
            TopicPartition("b-to_receiver_r2", 0): Kept(2_000, 4),
            TopicPartition("b-to_sender", 0): Kept(300, 1),
            TopicPartition("b-to_sender", 1): Kept(100, 1),
            TopicPartition("b-audit", 0): Kept(8_192, 0),
        },
        "b-",
    )
    assert found == {"to_receiver_*": Kept(3_000, 6), "to_sender": Kept(400, 2)}
    assert found["to_receiver_*"].each == 500


def test_of_two_moments_the_difference_counts() -> None:
    before = {"from_sender": Kept(1_000, 10), "receiver_config": Kept(500, 3)}
    now = {"from_sender": Kept(4_000, 20), "receiver_config": Kept(500, 3), "to_sender": Kept(700, 10)}
    assert since(before, now) == {"from_sender": Kept(3_000, 10), "to_sender": Kept(700, 10)}


def test_both_are_told_of_each_kind() -> None:
    packed = {"from_sender": Kept(9_000, 10), "to_sender": Kept(700, 10)}
    lines = list(record_lines(packed, {"from_sender": Kept(12_000, 10)}))
    assert [line.split(maxsplit=1)[1].strip() for line in lines] == [
        "900 bytes a record (10), 1,200 uncompressed",
        "70 bytes a record (10), none uncompressed",
    ]


def test_a_sparse_file_takes_what_is_written_of_it(tmp_path: Path) -> None:
    with (tmp_path / "00000.index").open("wb") as index:
        index.truncate(10 * 1024 * 1024)
    (tmp_path / "00000.log").write_bytes(b"x" * 100_000)
    assert 100_000 <= on_disk(tmp_path) < 1_000_000


@pytest.mark.parametrize(
    ("taken", "all_of_it"),
    [({}, False), ({("a", 0): 5}, False), ({("a", 0): 4, ("a", 1): 2}, False), ({("a", 0): 5, ("a", 1): 2}, True)],
)
def test_a_history_is_filled_once_it_has_every_record(taken: dict[tuple[str, int], int], all_of_it: bool) -> None:
    assert reached(taken, {("a", 0): 5, ("a", 1): 2, ("b", 0): 0}) is all_of_it


def test_tables_are_divided_by_their_rows_and_empty_ones_left_out() -> None:
    sizes = {"messages": 1_000, "deliveries": 600, "attempts": 3_000}
    lines = list(size_lines("S", sizes, {"messages": 2, "deliveries": 2, "attempts": 3, "counts": 0}))
    assert [line.split(maxsplit=1)[1].strip() for line in lines] == [
        "500 bytes per message (2)",
        "300 bytes per delivery (2)",
        "1,000 bytes per attempt (3)",
    ]
