"""Tests of the benchmark's counting: latencies in buckets, and messages by id."""

import json
import random
from math import ceil
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.drawing import Drawing
from bench.histogram import Histogram
from bench.ledger import Ledger, Tally
from bench.wire import WIDTH, Stamp, filler, prefix, stamp

durations = st.integers(min_value=1, max_value=10**12)


@given(st.lists(durations, min_size=1), st.floats(min_value=0.0, max_value=1.0))
def test_a_percentile_is_within_one_per_cent_of_the_exact_one(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(0, ceil(share * len(values)) - 1)]
    assert histogram.percentile_ms(share) * 1e6 == pytest.approx(exact, rel=0.011)
    assert histogram.total == len(values)


def test_percentiles_of_a_known_distribution() -> None:
    histogram = Histogram()
    values = range(1_000_000, 101_000_000, 10_000)
    for value in values:
        histogram.add(value)
    cuts = quantiles(values, n=100)
    for percent in (50, 95, 99):
        assert histogram.percentile_ms(percent / 100) == pytest.approx(cuts[percent - 1] / 1e6, rel=0.01)
    assert histogram.most_ms == pytest.approx(100.99)


def test_nothing_measured_is_zero_and_a_clock_set_back_is_the_least() -> None:
    assert Histogram().percentile_ms(0.99) == 0
    histogram = Histogram()
    histogram.add(-5)
    assert histogram.buckets[0] == 1


def test_what_is_beyond_the_last_bucket_counts_in_it_and_the_longest_is_exact() -> None:
    histogram = Histogram()
    histogram.add(10**15)
    assert histogram.total == 1
    assert histogram.most_ms == 10**9


@given(st.lists(durations), st.lists(durations))
def test_merged_parts_are_as_one(left: list[int], right: list[int]) -> None:
    parts, whole = (Histogram(), Histogram()), Histogram()
    for part, values in zip(parts, (left, right), strict=True):
        for value in values:
            part.add(value)
            whole.add(value)
    merged = Histogram.merged((part.sparse(), part.most_ns) for part in parts)
    assert (merged.buckets, merged.most_ns) == (whole.buckets, whole.most_ns)


def note(ledger: Ledger, *serials: int, pair: int = 0) -> Tally:
    for serial in serials:
        ledger.note(serial, pair, sent_ns=1_000, now_ns=2_000 + serial)
    return ledger.tally(0, 10)


def test_what_never_came_is_missing_from_its_range() -> None:
    tally = note(Ledger(1), 0, 1, 3, 9)
    assert (tally.arrived, tally.repeats, tally.misordered) == (4, 0, 0)
    assert (tally.first_ns, tally.last_ns) == (2_000, 2_009)


def test_every_further_arrival_is_a_repeat_and_no_disorder() -> None:
    tally = note(Ledger(1), 0, 1, 2, 0, 0, 1)
    assert (tally.arrived, tally.repeats, tally.misordered) == (3, 3, 0)
    assert sum(tally.buckets.values()) == 3  # latencies are of first arrivals


def test_a_first_arrival_behind_a_later_one_of_its_pair_is_out_of_order() -> None:
    ledger = Ledger(2)
    note(ledger, 5, pair=1)  # another pair's are no matter
    assert note(ledger, 0, 3, 1, 2, 4).misordered == 2


def test_a_copy_from_an_earlier_phase_is_a_repeat_in_the_next() -> None:
    ledger = Ledger(1)
    note(ledger, 0, 1)
    ledger.restart()
    ledger.note(1, 0, 0, 1)
    tally = ledger.tally(2, 10)
    assert (tally.arrived, tally.repeats, ledger.arrived) == (0, 1, 0)


def test_a_ledger_has_room_for_any_serial() -> None:
    ledger = Ledger(1)
    ledger.note(30_000_000, 0, 0, 1)
    assert ledger.tally(29_999_999, 30_000_002).arrived == 1


def test_a_tally_survives_json() -> None:
    tally = note(Ledger(1), 0, 2, 2)
    assert Tally.of_json(json.loads(json.dumps(tally.as_json()))) == tally


@given(
    st.integers(min_value=10**18, max_value=10**19 - 1),
    st.integers(min_value=0, max_value=8 * 10**9),
    st.integers(min_value=0, max_value=10**8),
    st.integers(min_value=200, max_value=4_000),
)
def test_a_payload_says_what_it_is_and_is_json_of_its_size(time_ns: int, serial: int, pair: int, size: int) -> None:
    payload = prefix(time_ns, serial, pair) + filler(size, random.Random(size))
    assert stamp(payload) == Stamp(time_ns, serial, pair)
    assert stamp(payload[:WIDTH]) == Stamp(time_ns, serial, pair)
    assert json.loads(payload)["t"] == time_ns
    assert len(payload) == size


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=1, max_value=40))
def test_every_pair_is_drawn_once_before_any_comes_again(sources: int, receivers: int) -> None:
    drawing = Drawing(sources, receivers)
    for round_ in range(2):
        drawn = [drawing.pair(round_ * drawing.pairs + index) for index in range(drawing.pairs)]
        assert sorted(drawn) == list(range(drawing.pairs))
    pairs = {(drawing.source_of(pair), drawing.receiver_of(pair)) for pair in drawn}
    assert pairs == {(source, receiver) for source in range(sources) for receiver in range(receivers)}
