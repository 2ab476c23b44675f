"""Durations: valid forms, their meaning, and invalid ones."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from relay.config.entry_types import Duration, PositiveDuration
from relay.domain.times import LONGEST_S, format_duration, is_rfc3339, parse_duration


class _Waits(BaseModel):
    any: Duration = 0.0
    positive: PositiveDuration = 1.0


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (15, 15.0),
        (0.25, 0.25),
        ("15", 15.0),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("15s", 15.0),
        ("10m", 600.0),
        (" 1h ", 3600.0),
        ("2 d", 172_800.0),
        (".5h", 1800.0),
        (0, 0.0),
        ("36500d", LONGEST_S),
    ],
)
def test_what_may_be_written(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        -1, "-1s", "", "s", "1 week", "1h30m", "1e3", "1e3s", "٣s", "15S", "1..5", None, True, [], {},
        math.inf, -math.inf, math.nan, "inf", "nan", "9" * 400 + "d", 10**400, "36501d", 36_500 * 86_400 + 1,
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_the_message_says_what_is_allowed(written: object) -> None:
    with pytest.raises(ValueError, match="500ms, 15s, 10m, 1h, 2d"):
        parse_duration(written)


@given(st.text(max_size=12) | st.floats() | st.integers() | st.none() | st.booleans())
def test_a_duration_is_finite_and_not_negative_or_a_value_error(written: object) -> None:
    try:
        seconds = parse_duration(written)
    except ValueError:
        return
    assert 0 <= seconds <= LONGEST_S


@given(st.integers(0, 36_500), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_what_is_formatted_reads_back_the_same(count: int, unit: str) -> None:
    seconds = parse_duration(f"{count}{unit}")
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.5, "500ms"), (1.0, "1s"), (90.0, "90s"), (120.0, "2m"), (3600.0, "1h"), (172_800.0, "2d")],
)
def test_it_is_formatted_with_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_positive_duration_is_not_zero() -> None:
    assert _Waits.model_validate({"any": "0s"}).any == 0
    with pytest.raises(ValidationError):
        _Waits.model_validate({"positive": "0s"})


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-23T12:00:00Z", "2026-11-23t12:00:00.5z", "2026-11-23T12:00:00.123456789123+01:00",
        "2016-12-31T23:59:60Z", "0001-01-01T00:00:00-23:59",
    ],
)  # fmt: skip
def test_a_time_of_rfc_3339_has_a_date_and_a_zone(text: str) -> None:
    assert is_rfc3339(text)


@pytest.mark.parametrize(
    "text",
    [
        "yesterday", "", "1700000000", "2026-11-23", "2026-11-23T12:00:00", "2026-11-23T12:00Z", "20261123T120000Z",
        "2026-02-30T00:00:00Z", "2026-11-23T24:00:01Z", "2026-11-23T12:00:61Z", "2026-11-23T12:00:00+25:00",
        "2026-11-23T12:00:00,5Z", "٢٠٢٦-11-23T12:00:00Z", "2026-11-23T12:00:00Z\n",
    ],
)  # fmt: skip
def test_other_texts_are_no_times_of_rfc_3339(text: str) -> None:
    assert not is_rfc3339(text)
