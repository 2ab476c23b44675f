"""`?wait=` and `Prefer: wait=`: what counts of them."""

import pytest

from relay.api.problems import Problem
from relay.api.waiters import WaitAsked, asked_in


@pytest.mark.parametrize(
    ("query", "prefer", "asked"),
    [
        ([], [], None),
        (["10"], [], WaitAsked(10.0)),
        (["0"], [], WaitAsked(0.0)),
        (["0.5"], [], WaitAsked(0.5)),
        (["1e-05"], [], WaitAsked(0.00001)),
        (["1e3"], [], WaitAsked(30.0)),
        (["1", "2"], [], WaitAsked(2.0)),
        (["900"], [], WaitAsked(30.0)),
        (["3"], ["wait=10"], WaitAsked(3.0)),
        ([], ["wait=10"], WaitAsked(10.0, preferred=True)),
        ([], ["respond-async, WAIT = 10 ; x=y"], WaitAsked(10.0, preferred=True)),
        ([], ["respond-async", "wait=10"], WaitAsked(10.0, preferred=True)),
        ([], ['wait="10"'], WaitAsked(10.0, preferred=True)),
        ([], ["wait=10, wait=20"], WaitAsked(10.0, preferred=True)),
        ([], ["wait=900"], WaitAsked(30.0, preferred=True)),
        ([], ["wait=soon"], None),
        ([], ["wait"], None),
        ([], ["await=10"], None),
        ([], ["return=minimal"], None),
    ],
)
def test_what_is_asked(query: list[str], prefer: list[str], asked: WaitAsked | None) -> None:
    assert asked_in(query, prefer, 30.0) == asked


@pytest.mark.parametrize("text", ["", "-1", "soon", "1e9", "inf", "nan", "10s", "1" * 10, "٣"])
def test_a_query_that_says_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(Problem) as refused:
        asked_in([text], ["wait=10"], 30.0)
    assert refused.value.kind.status == 400
    assert refused.value.errors[0]["parameter"] == "wait"


def test_only_a_preference_is_told_to_be_applied() -> None:
    assert WaitAsked(30.0, preferred=True).applied == {"Preference-Applied": "wait=30"}
    assert WaitAsked(30.0).applied == {}
