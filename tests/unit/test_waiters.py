"""`?wait=` and `Prefer: wait=`: what counts of them."""

import pytest

from relay.api.problems import Problem
from relay.api.waiters import RequestedWait, wait_in


@pytest.mark.parametrize(
    ("query", "prefer", "asked"),
    [
        ([], [], None),
        (["10"], [], RequestedWait(10.0)),
        (["0"], [], RequestedWait(0.0)),
        (["0.5"], [], RequestedWait(0.5)),
        (["1e-05"], [], RequestedWait(0.00001)),
        (["1e3"], [], RequestedWait(30.0)),
        (["1", "2"], [], RequestedWait(2.0)),
        (["900"], [], RequestedWait(30.0)),
        (["3"], ["wait=10"], RequestedWait(3.0)),
        ([], ["wait=10"], RequestedWait(10.0, preferred=True)),
        ([], ["respond-async, WAIT = 10 ; x=y"], RequestedWait(10.0, preferred=True)),
        ([], ["respond-async", "wait=10"], RequestedWait(10.0, preferred=True)),
        ([], ['wait="10"'], RequestedWait(10.0, preferred=True)),
        ([], ["wait=10, wait=20"], RequestedWait(10.0, preferred=True)),
        ([], ["wait=900"], RequestedWait(30.0, preferred=True)),
        ([], ["wait=soon"], None),
        ([], ["wait"], None),
        ([], ["await=10"], None),
        ([], ["return=minimal"], None),
    ],
)
def test_what_is_asked(query: list[str], prefer: list[str], asked: RequestedWait | None) -> None:
    assert wait_in(query, prefer, 30.0) == asked


@pytest.mark.parametrize("text", ["", "-1", "soon", "1e9", "inf", "nan", "10s", "1" * 10, "٣"])
def test_a_query_that_says_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(Problem) as refused:
        wait_in([text], ["wait=10"], 30.0)
    assert refused.value.kind.status == 400
    assert refused.value.errors[0]["parameter"] == "wait"


def test_only_a_preference_is_told_to_be_applied() -> None:
    assert RequestedWait(30.0, preferred=True).applied == {"Preference-Applied": "wait=30"}
    assert RequestedWait(30.0).applied == {}
