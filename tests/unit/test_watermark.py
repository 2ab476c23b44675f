"""The commit watermark: every record before it is finished."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.engine.lane import Watermark
from relay.log.port import Record


def _record(offset: int) -> Record:
    return Record("from_sender", 0, offset, b"key", b"value", (), 0)


@given(
    gaps=st.lists(st.integers(1, 5), min_size=1, max_size=50), picks=st.lists(st.integers(0, 1_000_000), max_size=80)
)
def test_it_never_passes_an_unfinished_record_and_reaches_the_end(gaps: list[int], picks: list[int]) -> None:
    offsets = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    watermark, coming, unfinished, added = Watermark(), offsets[::-1], list[int](), list[int]()
    committed = 0
    for pick in picks:
        if coming and (pick % 2 or not unfinished):
            added.append(coming.pop())
            unfinished.append(added[-1])
            watermark.add([_record(added[-1])])
        elif unfinished:
            watermark.done(unfinished.pop(pick % len(unfinished)))
        if added:
            expected = min(unfinished, default=added[-1] + 1)
            assert watermark.next_offset == expected
            assert expected >= committed, "it never falls back"
            committed = expected
            assert watermark.span == (added[-1] + 1 - expected if unfinished else 0)
        assert len(watermark.unfinished) == len(unfinished)


def test_without_records_there_is_nothing_to_commit() -> None:
    watermark = Watermark()
    assert watermark.next_offset is None
    assert watermark.head is None
    assert watermark.span == 0


def test_a_record_is_finished_exactly_once() -> None:
    watermark = Watermark()
    watermark.add([_record(7)])
    watermark.done(7)
    with pytest.raises(KeyError):
        watermark.done(7)
