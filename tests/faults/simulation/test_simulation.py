"""A relay under random faults, drawn by hypothesis: its promises hold at every moment, and all messages end as they
would have without a fault.

RELAY_SIMULATION_EXAMPLES: number of stories, new ones at each run; without it a few, always the same.
"""

import os
import sys
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RULE_MARKER, run_state_machine_as_test

from relay.engine import admission
from relay.engine.commands import CallQueue
from relay.engine.policy import BudgetShare
from relay.engine.runner import Runner
from relay.engine.slices import Slices
from tests.faults.harness.planted import PLANTED
from tests.faults.simulation.machine import (
    CrowdedMachine,
    ExpiringMachine,
    FullMachine,
    LaggingMachine,
    ParkedMachine,
    RelayMachine,
    WideMachine,
)
from tests.faults.simulation.moving_machine import MovingMachine, ResumedMachine
from tests.faults.simulation.options_machine import OptionsMachine
from tests.faults.simulation.planted_moves import PLANTED_IN_MOVES
from tests.faults.simulation.planted_options import PLANTED_IN_OPTIONS
from tests.faults.simulation.planted_returns import PLANTED_IN_RETURNS

EXAMPLES = os.environ.get("RELAY_SIMULATION_EXAMPLES")
STEPS = 25
SHRINKING_S = 600
"""A failing story is repeated in ever shorter forms, which takes a while."""


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
def test_memory_without_a_budget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BudgetShare, "full", False)
    monkeypatch.setattr(Runner, "_room", lambda _: sys.maxsize)
    _is_found("memory: ")


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
def test_an_append_that_forgets_what_was_acknowledged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slices, "partly", lambda _slices, _places: None)
    _is_found("appended again", ["partly"])


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
def test_a_record_that_is_looked_up_again_behind_later_ones_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "look_up_again", lambda lane, work: lane.calls.put(CallQueue.LOOK_UP, work))
    _is_found("I4: ", [], LaggingMachine)


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
@pytest.mark.parametrize(
    ("bug", "wrong", "rules"),
    [
        ("truncation_ignored", "I2: from_sender", None),
        ("unfinished_skipped", "I2: from_sender", ["cut_log_at_commit"]),
        ("aborted_delivered", "other bytes", ["transact"]),
        ("delete_at_done", "I3: ", ["resend", "lose_state"]),
        ("commit_before_produce", "I2: ", None),
        ("non_monotone_stage", "I5: ", ["strike", "join", "thaw"]),
        ("dlq_not_acked", "I2: ", None),
        ("unusable_is_unknown", "instead of", ["join", "learn"]),
        ("places_not_kept", "I9: .* were under way", ["join"]),
        ("missed_slots_made_up_for", "I9: .* began within", ["stand_still"]),
        ("sent_before_due", "before it was due", ["produce_timed"]),
        ("replaced_though_sent", "was sent to .* and replaced", ["produce_keyed"]),
        ("older_ones_kept", "of one key were all sent", ["produce_keyed"]),
    ],
)
def test_the_planted_bug_is_found(bug: str, wrong: str, rules: Sequence[str] | None) -> None:
    """Those that need more of a coincidence have an experiment each, in `test_planted_bugs`."""
    with PLANTED[bug]():
        _is_found(wrong, rules)


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
@pytest.mark.parametrize(
    ("bug", "wrong", "machine"),
    [
        ("seen_parked_before_unseen", "I4: ", CrowdedMachine),
        ("parked_without_bounds", "parked: ", FullMachine),
        ("deadline_forgotten", "after its deadline", ExpiringMachine),
        ("tombstone_before_hop", "I2: |stuck: ", ParkedMachine),
    ],
)
def test_the_planted_bug_is_found_by_a_story_that_begins_with_it(
    bug: str, wrong: str, machine: type[RelayMachine]
) -> None:
    with PLANTED[bug]():
        _is_found(wrong, [], machine)


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
@pytest.mark.parametrize(
    ("bug", "wrong"),
    [
        ("former_lane_not_read", "stuck: "),
        ("cut_not_published", "has no cut there"),
        ("markers_not_awaited", "stuck: |I4: "),
        ("former_lane_not_awaited", "I4: "),
        ("parked_not_awaited", "I4: "),
    ],
)
def test_the_bug_in_a_step_of_a_move_is_found(bug: str, wrong: str) -> None:
    with PLANTED_IN_MOVES[bug]():
        _is_found(wrong, ["move", "join", "learn", "kill"], MovingMachine)


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
def test_a_move_without_regard_to_the_marker_is_found() -> None:
    with PLANTED_IN_MOVES["moved_before_the_marker"]():
        _is_found("I4: ", [], ResumedMachine)


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
@pytest.mark.parametrize(
    ("bug", "wrong"),
    [
        ("not_encrypted", "for everybody to read"),
        ("erased_later", "erased: .* was sent"),
        ("last_one_skipped", "is done, and did not replay"),
    ],
)
def test_the_bug_in_an_option_is_found(bug: str, wrong: str) -> None:
    with PLANTED_IN_OPTIONS[bug]():
        _is_found(wrong, ["order", "erase", "refuse", "nobody_listens"], OptionsMachine)


@pytest.mark.slow
@pytest.mark.timeout(SHRINKING_S)
@pytest.mark.parametrize(
    ("bug", "wrong", "rules", "machine"),
    [
        ("marked_and_not_appended", "I2: |I8: |ended as", [], RelayMachine),
        ("failures_not_told", "the notice that", [], RelayMachine),
        ("told_twice", "I8: .* came 2 times", [], RelayMachine),
        ("answers_mixed_up", "I8: .* with b", [], RelayMachine),
        ("not_sent_again", "I8: .* in generation 1, and never", ["replay"], RelayMachine),
        ("attempts_not_counted", "I3: .* as attempt 1", ["mishap"], RelayMachine),
        ("replays_without_order", "I4: .* in generation 1", ["replay"], RelayMachine),
        ("sent_ones_given_up", "given up for lack of room", [], FullMachine),
        ("parked_without_shares", "parked: ", [], FullMachine),
    ],
)
def test_the_bug_on_the_way_back_is_found(
    bug: str, wrong: str, rules: Sequence[str], machine: type[RelayMachine]
) -> None:
    with PLANTED_IN_RETURNS[bug]():
        _is_found(wrong, rules, machine)


def _is_found(wrong: str, rules: Sequence[str] | None = None, machine: type[RelayMachine] = RelayMachine) -> None:
    """`rules`: what else befalls a relay that gets messages; None: all that may befall it, which takes longer."""
    known = {name for name in dir(machine) if hasattr(getattr(machine, name), RULE_MARKER)}
    others = known - {"produce", "run", *(known if rules is None else rules)}
    aimed = type(machine.__name__, (machine,), dict.fromkeys(others))
    few = settings(TestRelay.settings, max_examples=400, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=wrong):
        run_state_machine_as_test(aimed, settings=few)


TestRelay = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(RelayMachine.TestCase)
TestRelay.settings = settings(
    max_examples=int(EXAMPLES or 40),
    stateful_step_count=STEPS,
    derandomize=not EXAMPLES,
    report_multiple_bugs=False,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=list(HealthCheck),
)

TestWide = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(WideMachine.TestCase)
TestWide.settings = settings(TestRelay.settings, max_examples=int(EXAMPLES or 2), stateful_step_count=8)

TestCrowded = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(CrowdedMachine.TestCase)
TestCrowded.settings = settings(TestRelay.settings, max_examples=int(EXAMPLES or 6), stateful_step_count=6)

TestParked = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(ParkedMachine.TestCase)
TestParked.settings = settings(TestRelay.settings, max_examples=int(EXAMPLES or 6), stateful_step_count=6)

TestLagging = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(LaggingMachine.TestCase)
TestLagging.settings = settings(TestRelay.settings, max_examples=int(EXAMPLES or 6), stateful_step_count=6)

TestFull = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(FullMachine.TestCase)
TestFull.settings = settings(TestRelay.settings, max_examples=int(EXAMPLES or 6), stateful_step_count=10)

TestMoving = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(MovingMachine.TestCase)
TestMoving.settings = settings(TestRelay.settings, max_examples=int(EXAMPLES or 16), stateful_step_count=12)

TestResumed = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(ResumedMachine.TestCase)
TestResumed.settings = settings(TestRelay.settings, max_examples=int(EXAMPLES or 6), stateful_step_count=6)

TestOptions = pytest.mark.timeout(0 if EXAMPLES else SHRINKING_S)(OptionsMachine.TestCase)
TestOptions.settings = settings(TestRelay.settings, max_examples=int(EXAMPLES or 16), stateful_step_count=12)
