"""Any body of a replay or discard request is either parsed or rejected with an error."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.api.body import read_json
from relay.api.problems import Problem
from relay.api.replay_selection import check_delivered, check_rate, selection_of
from relay.domain.replay_job import Selection
from relay.schema.replays import Discards, Replays

NOW = 1_700_000_000.0
NAMES = (
    "receiver",
    "source",
    "reason",
    "status",
    "stage",
    "ids",
    "since",
    "until",
    "rate",
    "dry_run",
    "only_failed",
    "x",
)
WORDS = ("ci", "-", "rejected", "to_receiver", "1h", "2026-01-01T00:00:00Z", "9999-99-99T99:99:99Z", "1-1", "\x00")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(WORDS)
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=2)


def understood(body: bytes, kind: type[Discards]) -> Selection | Problem:
    try:
        asked = read_json(body, kind)
        if isinstance(asked, Replays):
            check_delivered(asked)
        check_rate(asked.rate)
        return selection_of(asked, NOW)
    except Problem as problem:
        return problem


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4) | VALUES, st.sampled_from([Replays, Discards]))
def test_any_json_is_a_selection_or_a_problem_that_says_where(body: Any, kind: type[Discards]) -> None:
    found = understood(json.dumps(body).encode(errors="surrogatepass"), kind)
    if isinstance(found, Problem):
        assert found.kind.status == 400
        assert all("pointer" in error for error in found.errors)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_selection_or_a_problem(body: bytes) -> None:
    found = understood(body, Replays)
    assert isinstance(found, Selection) or found.kind.status == 400


@pytest.mark.parametrize(
    ("since", "since_ms"),
    [
        ("90m", 1_699_994_600_000),
        (1_699_999_999.5, 1_699_999_999_500),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.250+01:00", 1_700_000_000_250),
        ("99999d", 0),
    ],
)
def test_a_moment_may_be_given_in_three_ways(since: Any, since_ms: int) -> None:
    body = json.dumps({"since": since, "receiver": ["b", "a"], "status": 500, "ids": "m-1"}).encode()
    expected = Selection(frozenset("ab"), statuses=frozenset({500}), ids=frozenset({"m-1"}), since_ms=since_ms)
    assert selection_of(read_json(body, Replays), NOW) == expected


def test_an_integer_may_be_written_with_a_decimal_point() -> None:
    assert read_json(b'{"status": [500.0, 5.02e2]}', Replays).status == [500, 502]
    for mistake in (b'{"status": 500.5}', b'{"status": "500"}', b'{"status": 1e30}', b'{"status": 500.0, "x": 1}'):
        with pytest.raises(Problem):
            read_json(mistake, Replays)
