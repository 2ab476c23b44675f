"""Keys land where a Kafka client puts them."""

import pytest
from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from relay.log.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        # From org.apache.kafka.common.utils.UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32


@given(st.binary(max_size=300))
def test_the_hash_agrees_with_a_kafka_client(data: bytes) -> None:
    assert murmur2(data) == reference(data) & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_a_partition_is_within_bounds_and_stays(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def test_a_record_without_a_key_goes_to_the_first_partition() -> None:
    assert partition_of(None, 10) == 0
