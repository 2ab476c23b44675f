"""Tests of the fault harness's report: which results pass, which fail, and its text."""

import json
from dataclasses import fields, replace
from typing import Final

import pytest

from tests.faults.harness.checker import DAMAGE, Verdict, total
from tests.faults.harness.history import Counterexample, Key
from tests.faults.harness.report import RECOVERY_MAX, Outcome, as_json, markdown

CLEAN: Final = replace(total([]), messages=1200, copies=7, doubled_results=3)
KILLS: Final = Outcome(
    experiment="E3",
    title="random kill -9",
    trials=4,
    messages=1200,
    verdict=CLEAN,
    recoveries_s=(2.0, 9.5, 3.0),
    notes=("two members",),
    bounds={"copies": 40, RECOVERY_MAX: 30},
    faults=100,
)


def with_damage(kind: str, count: int) -> Verdict:
    counterexample = Counterexample(kind, (Key("a", "m", "ci"),), "a/m for ci: it went wrong")
    counts = {each.name: getattr(CLEAN, each.name) for each in fields(CLEAN) if each.name != "first"}
    return Verdict(**{**counts, kind: count}, first=counterexample)


def test_an_outcome_without_damage_and_within_its_bounds_passes() -> None:
    assert KILLS.passed
    assert KILLS.exceeded == ()
    assert KILLS.most_lost == 0.03


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_that_was_not_expected_fails_and_expected_damage_does_not(kind: str) -> None:
    outcome = replace(KILLS, verdict=with_damage(kind, 2))
    assert outcome.exceeded == (f"{kind} 2, expected at most 0",)
    assert replace(outcome, bounds={kind: 2}).passed
    assert not replace(outcome, bounds={kind: 1}).passed


def test_counts_that_are_no_damage_and_the_recovery_are_held_to_their_bounds_only() -> None:
    outcome = replace(KILLS, bounds={"copies": 6, RECOVERY_MAX: 9})
    assert outcome.exceeded == ("copies 7, expected at most 6", "recovery 9.5 s, expected at most 9 s")
    assert replace(KILLS, bounds={}).passed


def test_what_no_verdict_counts_fails_in_words() -> None:
    outcome = replace(KILLS, problems=("a receiver was paced too fast",), bounds={"copies": 6})
    assert outcome.exceeded == ("copies 7, expected at most 6", "a receiver was paced too fast")


def test_a_bound_on_what_nothing_counts_is_an_error() -> None:
    with pytest.raises(ValueError, match="E3: bounds on looses"):
        _ = replace(KILLS, bounds={"looses": 1}).passed


def test_the_upper_bound_is_three_in_what_was_tried_and_none_after_a_loss() -> None:
    assert replace(KILLS, faults=0).most_lost == 0.75
    assert replace(KILLS, faults=2).most_lost == 1.0
    assert replace(KILLS, faults=0, trials=0).most_lost is None
    assert replace(KILLS, verdict=with_damage("lost", 1)).most_lost is None


def test_the_table() -> None:
    failed = replace(KILLS, experiment="E9", title="a|b", verdict=with_damage("altered", 1), recoveries_s=(), faults=0)
    lines = markdown([KILLS, failed]).splitlines()
    assert [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[:4]] == [
        [
            *("experiment", "trials", "faults", "messages", "lost", "doubled", "copies", "out of order", "stuck"),
            *("recovery median s", "recovery max s", "lost per fault (95 %)", "verdict"),
        ],
        ["---", *["---:"] * 11, "---"],
        ["E3 random kill -9", "4", "100", "1,200", "0", "0", "7", "0", "0", "3.0", "9.5", "< 3.00%", "pass"],
        ["E9 a\\|b", "4", "-", "1,200", "0", "0", "7", "0", "0", "-", "-", "< 75.00%", "FAIL"],
    ]
    assert lines[4:] == [
        "",
        "- E3: expected copies <= 40, recovery_max_s <= 30",
        "- E3: doubled_results 3",
        "- E3: two members",
        "- E9: altered 1, expected at most 0",
        "- E9: expected copies <= 40, recovery_max_s <= 30",
        "- E9: altered 1, doubled_results 3",
        "- E9: first counterexample: altered: a/m for ci: it went wrong",
        "- E9: two members",
    ]


def test_the_json_has_all_of_it() -> None:
    document = json.loads(as_json([KILLS, replace(KILLS, verdict=with_damage("lost", 1))], {"seed": 7}))
    assert (document["about"], document["passed"]) == ({"seed": 7}, False)
    kills, lossy = document["outcomes"]
    assert (kills["experiment"], kills["passed"], kills["most_lost"], kills["verdict"]["copies"]) == (
        "E3",
        True,
        0.03,
        7,
    )
    assert (kills["recoveries_s"], kills["recovery_median_s"], kills["recovery_max_s"]) == ([2.0, 9.5, 3.0], 3.0, 9.5)
    assert lossy["exceeded"] == ["lost 1, expected at most 0"]
    assert lossy["verdict"]["first"]["messages"] == [["a", "m", "ci"]]
    assert json.loads(as_json([]))["passed"] is True
