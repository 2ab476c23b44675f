"""The search can fail: each of these mistakes is found, with as few faults as it takes, and is none without them."""

from contextlib import ExitStack
from typing import Any

import pytest

from tests.faults.model.events import after
from tests.faults.model.flaws import FLAWS
from tests.faults.model.here import Cast
from tests.faults.model.search import Found, search
from tests.faults.model.test_model import ASKED, EXPIRING, HELD, KEYED, ONE, PARKED, TWO_RECEIVERS, in_removal
from tests.faults.model.world import MESSAGES, Faults, World, beginning


def _found(cast: Cast, faults: Faults, *flaws: str, to_the_end: bool = False, **logs: tuple[int, ...]) -> Found:
    with ExitStack() as planted:
        for flaw in flaws:
            planted.enter_context(FLAWS[flaw]())
        return search(beginning(cast, faults, **logs), to_the_end=to_the_end)


def _delivered(faults: Faults, *flaws: str, messages: tuple[int, ...] = ONE, cast: Cast = ASKED) -> Found:
    return _found(cast, faults, *flaws, to_receiver=messages)


def test_to_mark_before_producing_loses_a_message_at_one_crash() -> None:
    wrong = "mark_before_produce"
    assert _delivered(Faults(), wrong).violations == set()
    found = _delivered(Faults(crashes=1), wrong)
    assert "lost" in found.violations
    crash = found.first["lost"].index("crash to_receiver 0")
    assert found.first["lost"][crash - 1].endswith("append hop records"), "whose first call was the mark"


def test_to_take_what_was_seen_for_what_was_handed_on_loses_it_at_one_crash() -> None:
    found = _found(ASKED, Faults(crashes=1), "seen_is_proof", from_sender=ONE)
    assert "lost" in found.violations
    assert _found(ASKED, Faults(), "seen_is_proof", from_sender=ONE).violations == set()


def test_to_forget_what_is_done_repeats_a_message_that_is_sent_again() -> None:
    logs: dict[str, Any] = {"from_sender": ONE, "to_receiver": (), "to_sender": ()}
    assert _found(ASKED, Faults(), "delete_at_done", **logs).violations == {"unmarked"}
    assert _found(ASKED, Faults(resends=1), "delete_at_done", to_the_end=True, **logs).violations == {
        "copied",
        "unmarked",
    }


def test_to_skip_what_has_an_outcome_loses_it_at_one_crash() -> None:
    assert "lost" in _delivered(Faults(crashes=1), "skip_on_delivered").violations


def test_to_commit_past_what_has_not_ended_loses_it_at_one_crash() -> None:
    assert "lost" in _found(ASKED, Faults(crashes=1), "commit_before_produce", to_sender=ONE).violations


@pytest.mark.parametrize("role", ["from_sender", "to_receiver", "to_sender"])
def test_to_commit_before_the_mark_leaves_a_row_that_nobody_marks_any_more(role: str) -> None:
    logs: dict[str, Any] = {role: ONE}
    assert _found(ASKED, Faults(), "commit_before_mark", **logs).violations == set()
    assert _found(ASKED, Faults(crashes=1), **logs).violations == set()
    assert _found(ASKED, Faults(crashes=1), "commit_before_mark", **logs).violations == {"unmarked"}


@pytest.mark.parametrize("flaw", ["index_before_park", "tombstone_before_hop"])
def test_to_be_too_early_with_what_is_parked_loses_it_at_one_crash(flaw: str) -> None:
    assert _delivered(Faults(refused=1), flaw, cast=PARKED).violations == set()
    assert "lost" in _delivered(Faults(refused=1, crashes=1), flaw, cast=PARKED).violations


@pytest.mark.parametrize(
    ("flaw", "faults"),
    [
        ("no_settle", Faults(crashes=1)),
        ("no_settle", Faults(lost=1)),
        ("no_lease", Faults(zombies=1)),
        ("no_suspicion", Faults(crashes=1, flushes=1)),
    ],
)
def test_each_protection_is_needed(flaw: str, faults: Faults) -> None:
    assert _delivered(faults).first == {}
    assert _delivered(faults, flaw).violations == {"copied"}


def test_the_fence_and_the_name_of_what_is_proved_stand_in_for_each_other() -> None:
    zombie = Faults(zombies=1)
    for flaws in ((), ("no_fence",), ("stale_proof",)):
        assert _delivered(zombie, *flaws).first == {}
    assert _delivered(zombie, "no_fence", "stale_proof").violations == {"copied"}


def test_a_404_counts_only_for_the_attempt_it_was_about() -> None:
    """A worker has heard that the receiver never saw a message, and freezes before it begins another attempt;
    meanwhile a new owner delivers it, and the state loses both its row and the fence."""
    assert search(_in_doubt()).first == {}
    with FLAWS["stale_proof"]():
        assert search(_in_doubt(), to_the_end=False).violations == {"copied"}


def _in_doubt() -> World:
    """A POST was dropped on its way."""
    start = beginning(ASKED, Faults(zombies=1, dropped=1, flushes=1), to_receiver=ONE)
    return after(start, "reads", "carries on", "hears the verdict", "is dropped")


@pytest.mark.parametrize("flaw", ["no_life_in_removals", "no_life_in_tombstones"])
def test_a_removal_that_names_no_life_loses_the_next_one_to_who_wakes_up_late(flaw: str) -> None:
    assert search(in_removal()).first == {}
    with FLAWS[flaw]():
        assert "lost" in search(in_removal(), to_the_end=False).violations


def test_without_order_one_overtakes_another_that_was_refused() -> None:
    assert _delivered(Faults(refused=1), "no_order", messages=MESSAGES).violations == {"disordered"}


def test_to_take_one_receiver_for_all_loses_the_message_of_the_other_at_one_crash() -> None:
    flaw = "first_hop_is_enough"
    for cast, faults in ((ASKED, Faults(crashes=1)), (TWO_RECEIVERS, Faults())):
        assert _found(cast, faults, flaw, from_sender=ONE).violations == set()
    assert "lost" in _found(TWO_RECEIVERS, Faults(crashes=1), flaw, from_sender=ONE).violations


def test_a_state_whose_time_goes_back_makes_what_is_parked_wait_for_as_long() -> None:
    assert _delivered(Faults(refused=1), "time_goes_back", cast=PARKED).violations == set()
    assert "late" in _delivered(Faults(refused=1, clocks=1), "time_goes_back", cast=PARKED).violations


@pytest.mark.parametrize(
    ("flaw", "cast", "faults", "violation"),
    [
        ("sent_before_due", HELD, Faults(), "untimely"),
        ("deadline_forgotten", EXPIRING, Faults(refused=1), "untimely"),
        ("replaced_though_sent", KEYED, Faults(), "replaced"),
        ("loss_forgotten", KEYED, Faults(flushes=1), "replaced"),
    ],
)
def test_a_time_or_a_key_that_is_not_kept_is_seen(flaw: str, cast: Cast, faults: Faults, violation: str) -> None:
    assert _delivered(faults, messages=MESSAGES, cast=cast).first == {}
    assert violation in _delivered(faults, flaw, messages=MESSAGES, cast=cast).violations


def test_what_never_comes_to_an_end_is_seen() -> None:
    assert _delivered(Faults(), messages=(0, 0)).first == {}
    assert _delivered(Faults(), "duplicates_stay", messages=(0, 0)).violations == {"stuck"}


def test_what_the_table_of_phases_does_not_have_is_seen() -> None:
    found = _delivered(Faults(), "unforeseen")
    assert "broken" in found.violations
    assert "IllegalTransition" in found.first["broken"][-1]
