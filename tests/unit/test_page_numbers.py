"""Numbers as the pages show them."""

import pytest

from relay.pages.render import decimal, rate


@pytest.mark.parametrize(
    ("per_s", "shown"),
    [
        (None, "–"),
        (0, "0/s"),
        (0.0003, "1.1/h"),
        (0.02, "1.2/min"),
        (0.1, "0.1/s"),
        (9.94, "9.9/s"),
        (1200, "1,200/s"),
    ],
)
def test_a_rate_has_the_unit_in_which_it_can_be_read(per_s: float | None, shown: str) -> None:
    assert rate(per_s) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0, "0"), (0.0003, "0"), (0.0213, "0.02"), (3.14, "3.1"), (123.4, "123")]
)
def test_a_small_number_has_two_digits_and_a_large_one_is_whole(value: float | None, shown: str) -> None:
    assert decimal(value) == shown
