"""What goes to the log in one call is bounded in bytes and in records, and goes there once."""

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from relay.engine.commands import CallQueue, Commands
from relay.engine.slices import LEAST_BYTES, SLICE_BYTES, SLICE_RECORDS, Slices, measured, slices, weight_of
from relay.log.port import Coordinate, NewRecord, size_of

WEIGHTS = st.lists(st.integers(LEAST_BYTES, 2 * SLICE_BYTES), max_size=40)


def records(*sizes: int) -> list[NewRecord]:
    return [NewRecord("t", b"k", bytes(size)) for size in sizes]


def at(offset: int) -> Coordinate:
    return Coordinate("t", 0, offset)


def test_a_records_size_is_what_it_carries() -> None:
    assert size_of(NewRecord("topic", b"key", b"value", (("name", b"12"), ("n", b"")))) == 3 + 5 + 4 + 2 + 1
    assert size_of(NewRecord("topic", None, None)) == 0


def test_a_payload_that_many_records_share_is_in_memory_once() -> None:
    payload, other = bytes(100_000), bytes(50_000)
    one, more = NewRecord("t", b"k", payload), [NewRecord("t", b"key", payload, (("h", b"v"),))] * 30
    assert measured([one], payload) == (100_001, 1)
    assert measured([one], other) == (100_001, 100_001)
    assert measured(more, payload) == (30 * 100_005, 30 * 5)
    assert measured([*more, NewRecord("t", None, other)], None)[1] == 30 * 5 + 150_000
    assert measured([], payload) == (0, 0)


@given(WEIGHTS)
def test_slices_are_in_order_whole_and_bounded(weights: list[int]) -> None:
    found = list(slices(list(enumerate(weights)), weights))
    assert [item for some in found for item in some] == list(enumerate(weights))
    for some in found:
        assert len(some) == 1 or sum(weight for _, weight in some) <= SLICE_BYTES
    for some, following in pairwise(found):
        assert sum(weight for _, weight in some) + following[0][1] > SLICE_BYTES, "no call more than it takes"


def test_small_records_are_bounded_by_their_number() -> None:
    many = records(*[1] * (2 * SLICE_RECORDS + 1))
    assert [len(some) for some in slices(many, [weight_of((one,)) for one in many])] == [SLICE_RECORDS] * 2 + [1]


@given(st.lists(st.integers(0, SLICE_BYTES), min_size=1, max_size=12), st.data())
def test_what_is_acknowledged_never_goes_again(sizes: list[int], data: st.DataObject) -> None:
    """Calls fail, with some of their records acknowledged; one record is found to be too large at last."""
    made, went = records(*sizes), list[int]()
    rest = Slices(made)
    for _ in range(200):
        some = rest.next()
        if not some:
            break
        indexes = [next(n for n, one in enumerate(made) if one is each) for each in some]
        fate = data.draw(st.sampled_from(["all", "some", "none", "anew"]))
        if fate == "all":
            rest.acknowledged([at(index) for index in indexes])
            went += indexes
        elif fate == "some":
            upto = data.draw(st.integers(0, len(some) - 1))
            rest.partly({place: at(indexes[place]) for place in range(upto)})
            went += indexes[:upto]
        elif fate == "anew":  # the append is repeated by another call, which knows what the first one knew
            rest = Slices(made, rest.places)
    assert len(went) == len(set(went))
    assert rest.places == {index: at(index) for index in went}
    if not rest.next():
        assert rest.all_places() == [at(index) for index in range(len(made))]


def _taken(asks: Commands) -> list[Sequence[Any]]:
    found = []
    while commands := asks.commands():
        found += [command.items for command in commands]
        for command in commands:
            asks.answered(command.ask)
    return found


@given(WEIGHTS)
def test_a_call_takes_a_slice_of_what_waits(weights: list[int]) -> None:
    asks = Commands()
    for weight in weights:
        asks.put(CallQueue.APPEND, SimpleNamespace(weight=weight))
    taken = [[item.weight for item in some] for some in _taken(asks)]
    assert [weight for some in taken for weight in some] == weights
    assert all(len(some) == 1 or sum(some) <= SLICE_BYTES for some in taken)
