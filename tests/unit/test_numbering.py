"""The numbers of a receiver's deliveries on the log, and after a loss of the state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.numbering import (
    RENUMBERED,
    SKIPPED,
    NumberGap,
    Numbering,
    after_loss,
    decode_numbering,
    encode_numbering,
    gap_text,
    numbering_key,
)

GAPS = (NumberGap(2, 4, "expired"), NumberGap(7, 7, "rejected"))


def lost(first: int, last: int) -> NumberGap:
    return NumberGap(first, last, RENUMBERED)


def test_the_header_lists_all_gaps() -> None:
    assert gap_text(GAPS[:1]) == "first=2; last=4; reason=expired"
    assert gap_text(GAPS) == "first=2; last=4; reason=expired, first=7; last=7; reason=rejected"


def test_a_record_has_its_receiver_in_its_key_and_its_numbers_in_its_value() -> None:
    numbering = Numbering(12, ((9, 9), (11, 12)), GAPS)
    key, value = numbering_key("ci", numbering), encode_numbering(numbering)
    assert (key, value) == (
        b"numbers:ci:4",
        b'{"last":12,"open":[[9,9],[11,12]],"gaps":[[2,4,"expired"],[7,7,"rejected"]]}',
    )
    assert decode_numbering(key, value) == ("ci", numbering)
    assert decode_numbering(key, b'{"last":1,"newer":[]}') == ("ci", Numbering(1)), "of a newer release"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"numbers:ci:4", None),
        (b"life", b"ready"),
        (b"numbers:ci:4", b"?"),
        (b"numbers:\xff:1", b"{}"),
        (b"numbers:ci:4", b'{"newer":' * 100_000),
    ],
)
def test_any_other_record_is_none(key: bytes | None, value: bytes | None) -> None:
    assert decode_numbering(key, value) is None


def test_records_that_are_close_have_other_keys() -> None:
    assert len({numbering_key("ci", Numbering(number)) for number in range(100, 108)}) == 8


@pytest.mark.parametrize(
    ("known", "parked", "after"),
    [
        (Numbering(9, (), GAPS), (), Numbering(10_009, (), (*GAPS, lost(10, 10_009)))),
        (Numbering(9, ((5, 7),)), (), Numbering(10_009, (), (lost(5, 7), lost(10, 10_009)))),
        (Numbering(9, ((5, 7),)), (6,), Numbering(10_009, ((6, 6),), (lost(5, 5), lost(7, 7), lost(10, 10_009)))),
        (Numbering(9, ((5, 5),)), (5, 8), Numbering(10_009, ((5, 5),), (lost(10, 10_009),))),
        (Numbering(9), (12,), Numbering(10_012, ((12, 12),), (lost(10, 11), lost(13, 10_012)))),
        (Numbering(), (3, 5), Numbering(10_005, ((3, 3), (5, 5)), (lost(4, 4), lost(6, 10_005)))),
    ],
)
def test_after_a_loss_parked_ones_keep_their_numbers_and_others_are_gaps(
    known: Numbering, parked: tuple[int, ...], after: Numbering
) -> None:
    assert after_loss(known, parked) == after


numbers = st.sets(st.integers(1, 30), max_size=8)


@given(last=st.integers(1, 20), open_=numbers, parked=numbers)
def test_every_number_is_in_use_once_after_a_loss(last: int, open_: set[int], parked: set[int]) -> None:
    open_ = {number for number in open_ if number <= last}
    after = after_loss(Numbering(last, tuple((number, number) for number in sorted(open_))), parked)
    kept = {number for first, end in after.open for number in range(first, end + 1)}
    named = {number for gap in after.gaps for number in range(gap.first, gap.last + 1)}
    unsettled = open_ | set(range(last + 1, after.last + 1))
    assert after.last == max(last, *parked, 0) + SKIPPED
    assert kept == parked & unsettled
    assert named == unsettled - kept
