"""`relay sink --numbered`: what it says about the numbers of arrivals."""

import json

import pytest

from relay.sink.arrival import ReceivedPost
from relay.sink.batch import arrivals_in
from relay.sink.numbers import NumberCheck

FIRST, SECOND = "first=3; last=4; reason=expired", "first=6; last=6; reason=rejected"
GAPS = f"{FIRST}, {SECOND}"


def arrival(
    number: int | None, gaps: str = "", *, status: int | None = 204, generation: int = 0, body: bytes = b""
) -> ReceivedPost:
    headers = {"relay-gap": gaps} if gaps else {}
    return ReceivedPost("w", "app", "m", "", 1, generation, number, body, headers, None, "ok", status, 0.0)


def said(*arrivals: ReceivedPost) -> tuple[list[str], str]:
    check = NumberCheck()
    return [line.strip() for each in arrivals for line in check.look(each)], str(check)


def test_numbers_without_holes_are_not_mentioned() -> None:
    assert said(*map(arrival, (7, 8, 9))) == ([], "numbers up to 9, 0 missing")


def test_gaps_are_shown_and_nothing_is_missing() -> None:
    found = said(arrival(2), arrival(5, FIRST), arrival(7, SECOND))
    assert found == ([f"gap: {FIRST}", f"gap: {SECOND}"], "numbers up to 7, 0 missing")


def test_what_no_gap_names_is_missing() -> None:
    lines, summary = said(arrival(1), arrival(9, GAPS))
    assert lines == [f"gap: {GAPS}", "MISSING: 2 to 2", "MISSING: 5 to 5", "MISSING: 7 to 8"]
    assert summary == "numbers up to 9, 4 missing"


@pytest.mark.parametrize("other", [arrival(None), arrival(9, status=500), arrival(9, status=None)])
def test_what_is_not_accepted_or_has_no_number_does_not_count(other: ReceivedPost) -> None:
    assert said(arrival(1), other, arrival(2)) == ([], "numbers up to 2, 0 missing")


def test_a_replay_is_no_repetition() -> None:
    lines, _ = said(arrival(1), arrival(2), arrival(1, generation=1), arrival(2))
    assert lines == ["number 2 again"]


@pytest.mark.parametrize("gaps", [{"relaygap": FIRST}, {"gaps": [{"first": 3, "last": 4, "reason": "expired"}]}])
def test_of_a_batch_each_message_counts(gaps: dict[str, object]) -> None:
    events = [
        {"source": "app", "id": "a", "sequence": 2, "data": 1},
        {"source": "app", "id": "b", "sequence": 5, **gaps},
    ]
    batch = arrivals_in(arrival(None, body=json.dumps(events).encode()))
    assert said(*batch) == ([f"gap: {FIRST}"], "numbers up to 5, 0 missing")
