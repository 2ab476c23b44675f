"""Tests of the benchmark's judgement: whether a rate is sustained, which rate is tried next, what used the CPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.backlog import Depth, judge
from bench.campaign import backlog_of
from bench.cases import BASE, CASES
from bench.phases import most_in_flight
from bench.procstat import Sample
from bench.search import Search
from bench.usage import usage


def depths(*backlogs: float) -> list[Depth]:
    return [Depth(float(at), round(backlog)) for at, backlog in enumerate(backlogs)]


def test_a_small_backlog_that_stays_is_sustained() -> None:
    assert judge(depths(*[120, 80] * 10), rate=1000).sustained


def test_a_backlog_from_the_start_that_shrinks_is_sustained() -> None:
    assert judge(depths(*range(1900, 900, -100)), rate=1000).sustained


def test_a_backlog_that_grows_is_not_sustained_however_small() -> None:
    verdict = judge(depths(*[30 * at for at in range(20)]), rate=1000)
    assert not verdict.sustained
    assert verdict.growth == pytest.approx(0.03)


def test_growth_that_chance_explains_does_not_count() -> None:
    assert judge(depths(0, 0, 0, 0, 100), rate=1000).sustained
    assert not judge(depths(0, 0, 0, 100, 500), rate=1000).sustained


def test_a_backlog_that_stays_large_is_not_sustained() -> None:
    verdict = judge(depths(*[2500] * 20), rate=1000)
    assert (verdict.sustained, verdict.behind_s, verdict.growth) == (False, 2.5, 0.0)


def test_growth_counts_over_the_second_half_only() -> None:
    assert judge(depths(0, 200, 400, 600, 800, *[900] * 6), rate=1000).sustained


def test_nothing_seen_is_not_sustained() -> None:
    assert not judge([], rate=1000).sustained


@given(st.floats(min_value=50, max_value=20_000), st.floats(min_value=0.3, max_value=3.0))
def test_a_search_ends_near_the_limit_and_never_above_it(limit: float, guess: float) -> None:
    search = Search(limit * guess, tries=30)
    while not search.over:
        search.tell(search.rate <= limit)
    assert search.good is not None
    assert limit / 1.06 <= search.good <= limit


def test_a_search_ends_when_its_tries_are_used_up() -> None:
    search = Search(100.0, tries=3)
    for _ in range(3):
        assert not search.over
        search.tell(sustained=False)
    assert (search.over, search.good) == (True, None)


def test_littles_law_bounds_what_slow_receivers_allow() -> None:
    assert CASES["latency-1s"].allowed == 16 * 32 / 1.0
    assert CASES["latency-50ms"].allowed == pytest.approx(16 * 32 / 0.05)
    assert BASE.allowed is None


def test_a_backlog_is_cut_to_what_the_caps_allow_in_ten_minutes() -> None:
    assert backlog_of(BASE, 10**6) == 10**6
    assert backlog_of(CASES["latency-1s"], 10**6) == 512 * 600


def test_requests_in_flight_are_bounded_by_descriptors_and_by_local_ports() -> None:
    assert most_in_flight(20_000) == 19_000
    assert most_in_flight(10**9) < 2**16


def sample(at: float, relay: float, *, busy: float, kernel: float = 0.0, steal: float = 0.0) -> Sample:
    return Sample(at, {"relay": relay}, {"relay": 1}, busy, kernel, steal)


def test_cpu_is_per_message_and_what_is_neither_ours_nor_the_kernels_is_foreign() -> None:
    first, last = sample(0, 1.0, busy=10.0, kernel=1.0), sample(10, 6.0, busy=16.5, kernel=1.5, steal=0.2)
    used = usage(first, last, messages=1000, rss={"relay": 7}, cpus=2)
    assert used.cpu_us == {"relay": pytest.approx(5000)}
    assert used.cores == {"relay": pytest.approx(0.5)}
    assert used.foreign == pytest.approx(1.0 / 20)
    assert used.steal == pytest.approx(0.01)
    assert not used.fit


def test_a_machine_of_our_own_is_fit() -> None:
    assert usage(sample(0, 0, busy=0), sample(10, 5, busy=5.1), 1, {}, cpus=2).fit
