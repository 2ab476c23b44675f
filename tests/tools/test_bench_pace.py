"""Tests of the benchmark's generator: it sends each message when it is due, at any rate."""

from hypothesis import given
from hypothesis import strategies as st

from bench.generator import Pace

RATES = st.floats(0.1, 50_000) | st.sampled_from([0.1, 2.0, 3.0, 100.0, 7_777.0])
SLICE_S = 0.005


@given(RATES, st.integers(0, 3_600_000_000_000))
def test_at_the_next_look_something_is_due(rate: float, elapsed_ns: int) -> None:
    pace = Pace(rate, SLICE_S)
    sent = pace.due(elapsed_ns)
    look = pace.next_look(elapsed_ns, sent)
    assert look > elapsed_ns
    assert pace.due(look) > sent


@given(RATES, st.integers(0, 3_600_000_000_000))
def test_no_message_waits_for_longer_than_a_slice(rate: float, elapsed_ns: int) -> None:
    pace = Pace(rate, SLICE_S)
    sent = pace.due(elapsed_ns)
    assert pace.next_look(elapsed_ns, sent) <= max(pace.meant(sent), elapsed_ns) + SLICE_S * 1e9 + 1


def test_the_first_message_is_due_at_once() -> None:
    assert Pace(100, SLICE_S).due(0) == 1
