"""Record batches that others wrote: each good record is read, and each offset is a record, a flaw, or part of one."""

import itertools
import struct
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.log.kafka import record_batches, salvage
from relay.log.kafka.record_batches import FetchedRecords, Unpacking, offset_behind
from relay.log.kafka.salvage import decompressed
from relay.log.port import Record, TopicPartition, size_of
from tests.fakes.raw_batches import ENCODERS, RawBatch, RawRecord

AT = TopicPartition("topic", 3)
GOOD = [RawRecord(b"k%d" % n, b"v%d" % n, [(b"n", b"%d" % n)]) for n in range(4)]
codecs = pytest.mark.parametrize("codec", sorted(ENCODERS))


END = 2**40


def read(data: bytes, start: int = 0, end: int = END, max_bytes: int = 10_000) -> FetchedRecords:
    return Unpacking(AT, data, start=start, end=end, max_bytes=max_bytes).take_all()


def good(chunk: FetchedRecords) -> dict[int, bytes | None]:
    return {record.offset: record.value for record in chunk.records if record.flaw is None}


def flaws(chunk: FetchedRecords) -> list[tuple[int | None, int, str]]:
    """(first offset of a gap, offset, detail)."""
    return [(record.flaw.first_offset, record.offset, record.flaw.detail) for record in chunk.records if record.flaw]


@codecs
def test_what_is_well_is_read(codec: int) -> None:
    chunk = read(RawBatch(GOOD, base=7, codec=codec).encoded() + RawBatch(GOOD, base=11, codec=codec).encoded())
    assert chunk.next_offset == 15
    assert chunk.records[1] == Record(*AT, 8, b"k1", b"v1", (("n", b"1"),), 1_700_000_000_001, size=6)
    assert good(chunk) == {7 + n: b"v%d" % (n % 4) for n in range(8)}


def test_what_comes_before_the_offset_that_was_asked_for_is_left_out() -> None:
    assert sorted(good(read(RawBatch(GOOD, base=7).encoded(), start=9))) == [9, 10]


def test_a_batch_that_is_cut_short_comes_again() -> None:
    whole, cut = RawBatch(GOOD).encoded(), RawBatch(GOOD, base=4).encoded()[:-1]
    assert read(whole + cut).next_offset == 4
    assert read(whole + cut[:5]).next_offset == 4


def test_nothing_is_nothing() -> None:
    assert read(b"", start=5) == FetchedRecords([], 5, END)


def test_offsets_that_are_gone_are_no_flaw() -> None:
    chunk = read(RawBatch(GOOD[:2], base=5, deltas=[1, 4], last_delta=9).encoded(), start=5)
    assert (sorted(good(chunk)), flaws(chunk), chunk.next_offset) == ([6, 9], [], 15)
    assert read(RawBatch([], base=5, last_delta=3).encoded(), start=5) == FetchedRecords([], 9, END)


@pytest.mark.parametrize("end", [5, 7, 9, 10])
def test_what_was_appended_after_the_broker_looked_for_the_end_is_read(end: int) -> None:
    """Its high watermark is from before it reads."""
    data = RawBatch(GOOD, base=5).encoded() + RawBatch(GOOD[:1], base=9).encoded()
    assert (sorted(good(read(data, start=5, end=end))), flaws(read(data, start=5, end=end))) == ([5, 6, 7, 8, 9], [])
    assert offset_behind(data, 5, end) == 10
    assert sorted(good(read(data, start=3, end=5))) == [5, 6, 7, 8, 9], "what was before it is gone"


def test_markers_of_transactions_are_left_out() -> None:
    assert read(RawBatch(GOOD[:1], attributes=0x20).encoded()) == FetchedRecords([], 1, END)


# one record


@codecs
def test_a_header_name_that_is_not_utf8_costs_its_own_record(codec: int) -> None:
    bad = RawRecord(b"k", b"bad", [(b"ce_id", b"1"), (b"h\xe9\xff a/b", b"x"), (b"more", None)])
    chunk = read(RawBatch([*GOOD, bad, *GOOD], codec=codec).encoded())
    assert sorted(good(chunk)) == [0, 1, 2, 3, 5, 6, 7, 8]
    record = chunk.records[4]
    assert record.flaw is not None
    assert (record.offset, record.value, record.flaw.reason, record.flaw.first_offset) == (4, b"bad", "invalid", None)
    assert record.headers == (("ce_id", b"1"), ("relay-raw-h%E9%FF%20a%2Fb", b"x"), ("more", b""))
    assert "not UTF-8: relay-raw-h%E9%FF" in record.flaw.detail


BODIES = {
    "nothing at all": b"",
    "no end of a number": b"\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    "a key beyond its end": b"\0\2\2\x50abc",
    "a value beyond its end": b"\0\2\2\2a\x50abc",
    "a value of a negative size and no more": b"\0\2\2\2a\x03",
    "a negative number of headers": b"\0\2\2\2a\2b\x03",
    "more headers than bytes": b"\0\2\2\2a\2b\xfe\xff\xff\xff\x0f",
    "a header without a name": b"\0\2\2\2a\2b\2\x01\2x",
    "a header's name beyond its end": b"\0\2\2\2a\2b\2\x50x",
    "a header's value beyond its end": b"\0\2\2\2a\2b\2\2n\x50x",
    "bytes behind its headers": b"\0\2\2\2a\2b\0more",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@codecs
def test_a_record_that_is_damaged_inside_costs_its_own_offset(body: bytes, codec: int) -> None:
    chunk = read(RawBatch([GOOD[0], RawRecord(body=body), GOOD[2]], base=10, codec=codec).encoded())
    assert (good(chunk), chunk.next_offset) == ({10: b"v0", 12: b"v2"}, 13)
    assert [(first, offset) for first, offset, _ in flaws(chunk)] == [(None, 11)]


@pytest.mark.parametrize("deltas", [(0, 0, 1), (0, 5, 2), (0, 1, 99), (-7, -7, -7)])
@codecs
def test_offsets_that_a_client_made_up_do_not_count(codec: int, deltas: Sequence[int]) -> None:
    chunk = read(RawBatch(GOOD[:3], base=10, codec=codec, deltas=deltas).encoded(), end=20)
    assert (good(chunk), chunk.next_offset) == ({10: b"v0", 11: b"v1", 12: b"v2"}, 13)


@pytest.mark.parametrize("deltas", [(0, 0, 3), (0, -7, 3), (0, 99, 3)])
def test_made_up_offsets_among_such_as_are_gone_cost_their_own_records(deltas: Sequence[int]) -> None:
    chunk = read(RawBatch(GOOD[:3], base=10, deltas=deltas, last_delta=5).encoded(), end=20)
    assert (sorted(good(chunk)), chunk.next_offset) == ([10, 13], 16)
    assert [(first, offset) for first, offset, _ in flaws(chunk)] == [(None, 11)]


@codecs
def test_a_value_that_is_too_large_is_not_kept(codec: int) -> None:
    large = RawRecord(b"k", b"x" * 10_001, [(b"ce_id", b"1")])
    bad_name = RawRecord(b"k", b"x" * 20_000, [(b"\xff", b"1")])
    for records in ([GOOD[0], large, GOOD[2]], [GOOD[0], large, GOOD[2], bad_name]):
        chunk = read(RawBatch(records, codec=codec).encoded())
        assert good(chunk) == {0: b"v0", 2: b"v2"}
        record = chunk.records[1]
        assert record.flaw is not None
        assert (record.value, record.headers) == (None, (("ce_id", b"1"),))
        assert (record.flaw.reason, record.flaw.omitted) == ("too_large", "value=10001")
    last = chunk.records[3].flaw
    assert last is not None
    assert last.omitted == "value=20000"


# whole batches


def damaged(batch: RawBatch, position: int = -1) -> bytes:
    data = bytearray(batch.encoded())
    data[position] ^= 0x40
    return bytes(data)


@codecs
def test_a_batch_with_a_wrong_checksum_is_skipped_and_says_which_offsets(codec: int) -> None:
    batches = [RawBatch(GOOD, base=base, codec=codec) for base in (0, 4, 8)]
    chunk = read(batches[0].encoded() + damaged(batches[1]) + batches[2].encoded())
    assert (sorted(good(chunk)), chunk.next_offset) == ([0, 1, 2, 3, 8, 9, 10, 11], 12)
    assert flaws(chunk) == [(4, 7, "offsets 4 to 7 are skipped in topic/3: wrong checksum")]


def test_only_what_was_asked_for_of_a_damaged_batch_is_skipped() -> None:
    assert flaws(read(damaged(RawBatch(GOOD, base=4)), start=6)) == [
        (6, 7, "offsets 6 to 7 are skipped in topic/3: wrong checksum")
    ]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_nobody_knows(codec: int) -> None:
    chunk = read(RawBatch(GOOD, attributes=codec).encoded() + RawBatch(GOOD, base=4).encoded())
    assert flaws(chunk) == [(0, 3, f"offsets 0 to 3 are skipped in topic/3: unknown codec {codec}")]
    assert sorted(good(chunk)) == [4, 5, 6, 7]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_bytes_that_are_not_of_their_codec(codec: int) -> None:
    chunk = read(RawBatch(GOOD, codec=codec).encoded(b"nothing of the kind") + RawBatch(GOOD, base=4).encoded())
    assert [(first, offset) for first, offset, _ in flaws(chunk)] == [(0, 3)]
    assert "damaged" in flaws(chunk)[0][2]
    assert sorted(good(chunk)) == [4, 5, 6, 7]


def test_gzip_without_its_end_is_read_as_others_read_it() -> None:
    batch = RawBatch(GOOD, codec=1)
    assert sorted(good(read(batch.encoded(ENCODERS[1](batch.body)[:-8])))) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("batch", "read_of_it", "gap"),
    [
        (RawBatch(GOOD, tail=b"\x03"), [0, 1, 2, 3], None),
        (RawBatch(GOOD, count=-1), [], (0, 3)),
        (RawBatch(GOOD, count=9, last_delta=8), [0, 1, 2, 3], (4, 8)),
        (RawBatch(GOOD, count=2), [0, 1], (2, 3)),
        (
            RawBatch([*GOOD[:2], RawRecord(body=b"x"), GOOD[3]], tail=b"\xff\xff", count=9, last_delta=8),
            [0, 1, 3],
            (4, 8),
        ),
    ],
)
def test_records_of_which_nobody_can_tell_where_they_begin(
    batch: RawBatch, read_of_it: Sequence[int], gap: tuple[int, int] | None
) -> None:
    chunk = read(batch.encoded() + RawBatch(GOOD[:1], base=20).encoded())
    assert sorted(good(chunk)) == [*read_of_it, 20]
    assert [(first, last) for first, last, _ in flaws(chunk) if first is not None] == ([gap] if gap else [])


def patched(batch: RawBatch, form: str, position: int, value: int) -> bytes:
    data = bytearray(batch.encoded())
    struct.pack_into(form, data, position, value)
    return bytes(data)


NEXT = RawBatch(GOOD[:1], base=4).encoded()
FRAMES = {
    "a negative length": (patched(RawBatch(GOOD), ">i", 8, -1), (0, 0), 1),
    "a length of nothing": (patched(RawBatch(GOOD), ">i", 8, 0), (0, 0), 1),
    "a length beyond the end": (patched(RawBatch(GOOD), ">i", 8, 2**30), (0, 0), 1),
    "an offset of the past": (patched(RawBatch(GOOD), ">q", 0, -5) + NEXT, (0, 3), 5),
    "an offset of the future": (patched(RawBatch(GOOD), ">q", 0, 2**50) + NEXT, (0, 0), 1),
    "a last offset of the future": (patched(RawBatch(GOOD), ">i", 23, 2**30) + NEXT, (0, 3), 5),
    "a negative last offset": (patched(RawBatch(GOOD), ">i", 23, -1) + NEXT, (0, 3), 5),
    "an old format": (patched(RawBatch(GOOD), ">b", 16, 1) + NEXT, (0, 3), 5),
    "a format of the future": (patched(RawBatch(GOOD), ">b", 16, -1) + NEXT, (0, 3), 5),
    "too few bytes for a batch": (struct.pack(">qiib", 0, 5, 0, 2) + NEXT, (0, 3), 5),
    "bytes of nothing": (b"\0" * 11, (0, 0), 1),
}


@pytest.mark.parametrize(("data", "gap", "following"), FRAMES.values(), ids=FRAMES)
def test_a_frame_that_cannot_be_costs_as_little_as_possible_and_the_reader_goes_on(
    data: bytes, gap: tuple[int, int], following: int
) -> None:
    chunk = read(data, end=1_000)
    assert [(first, last) for first, last, _ in flaws(chunk)] == [gap]
    assert chunk.next_offset == following


# bombs


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_never_more_is_unpacked_than_allowed(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "MAX_BATCH_BYTES", 1_000_000)
    bomb = RawBatch([RawRecord(b"k", bytes(1_000_001))], codec=codec)
    allowed = RawBatch([RawRecord(b"k", bytes(900_000))], base=1, codec=codec)
    chunk = read(bomb.encoded() + allowed.encoded(), max_bytes=2_000_000)
    assert flaws(chunk) == [(0, 0, "offset 0 is skipped in topic/3: more than 1000000 bytes, uncompressed")]
    assert [record.flaw.reason for record in chunk.records if record.flaw] == ["too_large"]
    assert good(chunk) == {1: bytes(900_000)}


@given(st.sampled_from([1, 2, 3, 4]), st.integers(300, 200_000), st.integers(0, 255), st.integers(1, 300))
def test_each_codec_gives_back_the_data(codec: int, size: int, byte: int, period: int) -> None:
    data = (bytes([byte]) * (period - 1) + b"!") * (size // period)
    packed = bytes(ENCODERS[codec](data))
    assert decompressed(codec, packed, max(1, len(data))) == data


def test_gzip_in_several_members() -> None:
    data = zlib.compress(b"a" * 100, wbits=31) + zlib.compress(b"b" * 100, wbits=31)
    assert decompressed(1, data, 200) == b"a" * 100 + b"b" * 100


# anything

records = st.builds(
    RawRecord,
    st.none() | st.binary(max_size=8),
    st.none() | st.binary(max_size=40),
    st.lists(st.tuples(st.binary(max_size=6), st.none() | st.binary(max_size=6)), max_size=3),
    st.none() | st.integers(-3, 9),
    st.none() | st.none() | st.integers(0, 5).map(lambda size: b"\xff" * size),  # without an offset
)
batches = st.lists(
    st.builds(
        RawBatch,
        st.lists(records, min_size=1, max_size=5),
        codec=st.sampled_from(sorted(ENCODERS)),
        tail=st.just(b"") | st.just(b"\xff\xff"),
        count=st.none() | st.none() | st.integers(-2, 8),
    ),
    min_size=1,
    max_size=4,
)


def stream(parts: Sequence[RawBatch]) -> tuple[bytes, int]:
    data, offset = b"", 0
    for part in parts:
        data += part.at(offset).encoded()
        offset += len(part.records)
    return data, offset


def changed(data: bytes, changes: Sequence[tuple[int, int]]) -> bytes:
    """With these bytes at these places."""
    spoilt = bytearray(data)
    for position, byte in changes:
        spoilt[position % len(spoilt)] = byte
    return bytes(spoilt)


def accounted(chunk: FetchedRecords) -> list[int]:
    """Every offset that a record or a flaw stands for."""
    found: list[int] = []
    for record in chunk.records:
        first = record.offset
        if record.flaw is not None and record.flaw.first_offset is not None:
            first = record.flaw.first_offset
        found += range(first, record.offset + 1)
    return found


@given(batches, st.integers(0, 6))
def test_every_offset_is_accounted_for_once_whatever_the_records_are(parts: list[RawBatch], start: int) -> None:
    data, end = stream(parts)
    start = min(start, len(parts[0].records) - 1)  # a fetch begins with the batch that has its offset
    chunk = read(data, start, end)
    assert accounted(chunk) == list(range(start, end))
    assert chunk.next_offset == end


def test_a_damaged_batch_that_claims_the_offsets_of_the_next_moves_nobody_beyond_the_end() -> None:
    """The next records there would never be read."""
    data, end = stream([RawBatch([RawRecord()] * 3), RawBatch([RawRecord()] * 2)])
    chunk = read(changed(data, [(26, end - 1)]), 0, end)  # the last byte of the first batch's last offset delta
    assert accounted(chunk) == list(range(end))
    assert chunk.next_offset == end


@given(batches, st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4), st.integers(0, 6))
def test_no_bytes_stop_the_reader_or_move_it_back(
    parts: list[RawBatch], changes: list[tuple[int, int]], start: int
) -> None:
    data, end = stream(parts)
    start = min(start, len(parts[0].records) - 1)
    chunk = read(changed(data, changes), start, end)
    offsets = [record.offset for record in chunk.records]
    # a batch that begins at the end may have been appended after the broker looked for it
    assert start < chunk.next_offset <= (end if max(offsets, default=0) < end else max(offsets) + 1)
    assert offsets == sorted(set(offsets))
    assert all(start <= offset < chunk.next_offset for offset in offsets)
    for record in chunk.records:
        for name, _ in record.headers:
            name.encode()  # any client can read it


@given(st.binary(max_size=200), st.integers(0, 9))
def test_any_bytes_at_all(data: bytes, start: int) -> None:
    chunk = read(data, start, 100)
    assert chunk.next_offset > start or not data


# a few records at a time


def sliced(data: bytes, start: int, end: int, counts: Sequence[int], *, fold: bool) -> FetchedRecords:
    """Taken so many at a time, in a circle; with `fold`, every batch is unpacked again each time."""
    unpacking, found = Unpacking(AT, data, start=start, end=end, max_bytes=10_000), list[Record]()
    for count in itertools.cycle(counts):
        taken = unpacking.take(count)
        assert len(taken) <= count
        found += taken
        if unpacking.is_large:
            assert unpacking.take(1) == []
            unpacking.unpack()
        if unpacking.done:
            return FetchedRecords(found, unpacking.position, end)
        if fold:
            unpacking.fold()
    raise AssertionError("unreachable")


slices = st.lists(st.integers(1, 5), min_size=1, max_size=3)
changes = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=3)


@given(batches, changes, st.integers(0, 6), slices, st.booleans(), st.booleans())
@settings(max_examples=60)
def test_it_does_not_matter_how_many_are_taken_at_a_time(
    parts: list[RawBatch], changes: list[tuple[int, int]], start: int, counts: list[int], fold: bool, large: bool
) -> None:
    data, end = stream(parts)
    spoilt, start = changed(data, changes), min(start, len(parts[0].records) - 1)
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(record_batches, "UNPACKED_AT_ONCE", 10)
        assert sliced(spoilt, start, end, counts, fold=fold) == read(spoilt, start, end)


@given(batches, changes)
def test_where_to_fetch_on_is_known_before_anything_is_unpacked_or_not_told(
    parts: list[RawBatch], changes: list[tuple[int, int]]
) -> None:
    data, end = stream(parts)
    assert offset_behind(data, 0, end) == end
    spoilt = changed(data, changes)
    assert offset_behind(spoilt, 0, end) in (None, 0, read(spoilt, 0, end).next_offset)


def test_a_batch_that_is_cut_does_not_count_for_where_to_fetch_on() -> None:
    whole, cut = RawBatch(GOOD).encoded(), RawBatch(GOOD, base=4).encoded()[:-1]
    assert offset_behind(whole + cut, 0, 8) == 4
    assert offset_behind(cut, 4, 8) == 4


def test_all_is_taken_as_soon_as_the_last_record_is() -> None:
    """Otherwise one batch too many is held until the next request."""
    unpacking = Unpacking(AT, RawBatch(GOOD).encoded(), start=0, end=4, max_bytes=10)
    assert len(unpacking.take(4)) == 4
    assert unpacking.done


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_becomes_large_is_not_unpacked_on_the_way(codec: int) -> None:
    size = record_batches.UNPACKED_AT_ONCE // 4
    large = RawBatch([RawRecord(value=bytes(size)) for _ in range(5)], codec=codec)
    data = RawBatch(GOOD).encoded() + large.at(4).encoded()
    unpacking = Unpacking(AT, data, start=0, end=9, max_bytes=2 * size)
    assert len(unpacking.take(100)) == 4
    assert (unpacking.is_large, unpacking.opened) == (True, 0)
    unpacking.unpack()
    assert unpacking.opened > 5 * size
    assert [record.offset for record in unpacking.take(100) + unpacking.take(100)] == [4, 5, 6, 7, 8]


def test_the_size_of_a_record_is_found_once_and_again_after_a_change() -> None:
    record = read(RawBatch(GOOD, base=7).encoded()).records[1]
    assert record.size == size_of(record) == len(b"k1") + len(b"v1") + len("n") + len(b"1")
    assert size_of(record.changed(value=b"longer")) == size_of(record) + len(b"longer") - len(b"v1")
