"""`relay sink --numbered`: what it says about the numbers of arrivals."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from relay.cli import sink
from relay.domain.errors import RelayError
from relay.sink import Sink
from relay.sink.arrival import ReceivedPost, arrivals_in
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


async def fetched(check: NumberCheck, *items: dict[str, Any]) -> tuple[list[str], list[int]]:
    """The lines, and after which numbers was asked."""
    asked = []

    async def catch_up(after: int) -> AsyncIterator[Any]:
        asked.append(after)
        for item in items:
            yield item

    return [line.strip() async for line in check.fetch(catch_up)], asked


async def test_what_is_missing_is_fetched_until_nothing_is() -> None:
    check = NumberCheck()
    assert await fetched(check) == ([], []), "nothing is missing"
    for number in (1, 3, 7, 8):
        list(check.look(arrival(number)))
    assert check.found_missing.is_set()
    message = {"source_id": "app", "message_id": "m", "size": 2}
    items: list[dict[str, Any]] = [{**message, "sequence": number} for number in (2, 3, 4)]
    items += [{"first": 5, "last": 5, "reason": "in_progress"}, {"first": 6, "last": 6, "reason": "expired"}]
    items += [{**message, "sequence": 8}]
    lines = ["fetched 2: app m, 2 bytes", "fetched 4: app m, 2 bytes", "6 to 6 do not arrive: expired"]
    assert await fetched(check, *items) == (lines, [1])
    assert str(check) == "numbers up to 8, 1 missing"
    assert await fetched(check, {**message, "sequence": 5}) == (["fetched 5: app m, 2 bytes"], [4])
    assert str(check) == "numbers up to 8, 0 missing"


@pytest.mark.parametrize("other", [arrival(None), arrival(9, status=500), arrival(9, status=None)])
def test_what_is_not_accepted_or_has_no_number_does_not_count(other: ReceivedPost) -> None:
    assert said(arrival(1), other, arrival(2)) == ([], "numbers up to 2, 0 missing")


def test_a_replay_is_no_repetition() -> None:
    lines, _ = said(arrival(1), arrival(2), arrival(1, generation=1), arrival(2))
    assert lines == ["number 2 again"]


def test_a_replay_with_a_new_number_counts() -> None:
    found = said(arrival(1), arrival(2, generation=1), arrival(3))
    assert found == ([], "numbers up to 3, 0 missing")


@pytest.mark.parametrize("gaps", [{"relaygap": FIRST}, {"gaps": [{"first": 3, "last": 4, "reason": "expired"}]}])
def test_of_a_batch_each_message_counts(gaps: dict[str, object]) -> None:
    events = [
        {"source": "app", "id": "a", "sequence": 2, "data": 1},
        {"source": "app", "id": "b", "sequence": 5, **gaps},
    ]
    batch = arrivals_in(arrival(None, body=json.dumps(events).encode()))
    assert said(*batch) == ([f"gap: {FIRST}"], "numbers up to 5, 0 missing")


async def test_an_unexpected_error_while_fetching_is_logged_and_ends_the_sink(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fetching() -> None:
        raise KeyError("size")

    with pytest.raises(RelayError, match=r"^--catch-up: unexpected error, KeyError: 'size'$"):
        await sink._serve(Sink("answer"), "127.0.0.1", 0, fetching())
    [logged] = [each for each in caplog.records if each.name.startswith("relay")]
    assert (logged.message, logged.exc_info is not None) == ("catch_up_failed", True)
    assert capsys.readouterr().out.endswith("0 POSTs of 0 messages; 0 status GETs\n")
