"""Every interleaving of two messages of one source with faults: nothing is lost, and copies are as promised.

The whole relay is searched for single faults. With more of them each worker is searched by itself, on every log that
the one before it can hand on: a worker tells the next nothing but its log. Each then has all the faults to itself,
which is more than a mix of them over all workers.
"""

import pytest

from tests.faults.model.search import Found, search
from tests.faults.model.world import MESSAGES, Faults, Flaw, Rules, Worker, beginning

FROM_SENDER: frozenset[Worker] = frozenset({"from_sender"})
TO_RECEIVER: frozenset[Worker] = frozenset({"to_receiver"})
TO_SENDER: frozenset[Worker] = frozenset({"to_sender"})


def _but(*flaws: Flaw) -> Rules:
    return Rules(flaws=frozenset[Flaw](flaws))


OURS = Rules()
UNASKED = Rules(asked=False)


def _whole(faults: Faults, rules: Rules = OURS, *, to_the_end: bool = True) -> Found:
    return search(beginning(faults, sent=MESSAGES), rules, to_the_end=to_the_end)


def _fanned_out(faults: Faults, rules: Rules = OURS) -> Found:
    return search(beginning(faults, sent=MESSAGES), rules, FROM_SENDER)


def _delivered(
    faults: Faults, rules: Rules = OURS, hops: tuple[int, ...] = MESSAGES, *, to_the_end: bool = True
) -> Found:
    return search(beginning(faults, hops=hops), rules, TO_RECEIVER, to_the_end=to_the_end)


def _returned(faults: Faults, answers: tuple[int, ...], rules: Rules = OURS) -> Found:
    return search(beginning(faults, answers=answers), rules, TO_SENDER)


def _repeated(faults: Faults, longest: int) -> list[tuple[int, ...]]:
    """What FromSender may put on to_receiver."""
    return sorted(log for log in _fanned_out(faults).logs if len(log) <= longest)


def _named(faults: object) -> str:
    assert isinstance(faults, Faults)
    return "+".join(f"{count}_{name}" for name, count in faults._asdict().items() if count) or "none"


# --- the whole relay --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [Faults(), Faults(crashes=1), Faults(flushes=1), Faults(resends=1), Faults(lost=1, dropped=1)],
    ids=_named,
)
def test_the_whole_relay_survives_it(faults: Faults) -> None:
    found = _whole(faults)
    assert found.first == {}
    assert found.states > 1_000


# --- one worker after the other ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [Faults(crashes=1), Faults(crashes=2, resends=1), Faults(crashes=1, flushes=1, resends=1), Faults(resends=2)],
    ids=_named,
)
def test_from_sender_hands_on_every_message(faults: Faults) -> None:
    found = _fanned_out(faults)
    assert found.first == {}
    assert all(log.index(0) < log.index(1) for log in found.logs), "the first of each is in order"


@pytest.mark.parametrize(
    "faults",
    [
        Faults(crashes=2, lost=1, dropped=1),
        Faults(crashes=2, lost=1, flushes=1),
        Faults(crashes=1, lost=1, dropped=1, flushes=1),
        Faults(lost=2, dropped=1, flushes=1),
        Faults(zombies=1, lost=1),
        Faults(zombies=1, dropped=1),
        Faults(zombies=1, flushes=1),
    ],
    ids=_named,
)
def test_a_receiver_that_can_be_asked_gets_each_message_once_and_in_order(faults: Faults) -> None:
    found = _delivered(faults)
    assert found.first == {}
    assert found.at_rest > 1


@pytest.mark.parametrize("faults", [Faults(crashes=1, lost=1, dropped=1), Faults(crashes=1, flushes=1)], ids=_named)
def test_so_it_does_whatever_from_sender_has_repeated(faults: Faults) -> None:
    logs = _repeated(Faults(crashes=1, flushes=1, resends=1), longest=4)
    assert len(logs) == 10
    for hops in logs:
        assert _delivered(faults, hops=hops).first == {}, hops


@pytest.mark.parametrize(
    "faults",
    [
        Faults(dropped=2),
        Faults(crashes=2),
        Faults(lost=2),
        Faults(zombies=1),
        Faults(zombies=1, lost=1),
        Faults(crashes=2, lost=1, dropped=1),
    ],
    ids=_named,
)
def test_one_that_cannot_gets_a_copy_at_most_for_each_crash_lost_response_and_zombie(faults: Faults) -> None:
    found = _delivered(faults, UNASKED)
    assert found.violations <= {"copied"}
    assert found.copies == faults.crashes + faults.lost + faults.zombies


def test_what_from_sender_has_repeated_does_not_count() -> None:
    for hops in _repeated(Faults(crashes=1, resends=1), longest=4):
        assert _delivered(Faults(), UNASKED, hops).first == {}, hops
        assert _delivered(Faults(crashes=1), UNASKED, hops).copies == 1, hops


@pytest.mark.parametrize("faults", [Faults(flushes=1), Faults(crashes=1, flushes=1)], ids=_named)
def test_after_a_loss_of_redis_a_crash_may_repeat_what_was_not_committed(faults: Faults) -> None:
    found = _delivered(faults, UNASKED)
    assert found.violations <= {"copied"}
    assert found.copies == faults.crashes * len(MESSAGES)


@pytest.mark.parametrize("answers", [(0, 1), (1, 0), (0, 1, 0), (1, 1, 0), (0, 1, 0, 1)])
def test_to_sender_brings_every_answer_back(answers: tuple[int, ...]) -> None:
    assert _returned(Faults(crashes=2, flushes=1), answers).first == {}


# --- the model can fail -----------------------------------------------------------------------------------------


def test_to_mark_before_producing_loses_a_message_at_one_crash() -> None:
    wrong = _but("mark_before_produce")
    assert _fanned_out(Faults(), wrong).violations == set()
    found = _fanned_out(Faults(crashes=1), wrong)
    assert found.violations == {"lost"}
    assert "from_sender: mark" in found.first["lost"]
    assert "crash of from_sender" in found.first["lost"]


def test_to_delete_what_is_known_at_done_repeats_a_message_that_is_sent_again() -> None:
    wrong = _but("delete_at_done")
    assert _whole(Faults(), wrong).violations == set()
    assert _whole(Faults(resends=1), wrong, to_the_end=False).violations == {"copied"}


def test_to_skip_what_has_a_result_loses_it_at_one_crash() -> None:
    assert _delivered(Faults(crashes=1), _but("skip_what_has_a_result")).violations == {"lost"}


def test_to_commit_past_what_has_not_ended_loses_it_at_one_crash() -> None:
    assert _returned(Faults(crashes=1), MESSAGES, _but("no_watermark")).violations == {"lost"}


@pytest.mark.parametrize(
    ("flaw", "faults"),
    [
        ("no_settling", Faults(crashes=1)),
        ("no_settling", Faults(lost=1)),
        ("no_lease", Faults(zombies=1)),
        ("no_suspicion", Faults(crashes=1, flushes=1)),
    ],
)
def test_each_protection_is_needed(flaw: Flaw, faults: Faults) -> None:
    assert _delivered(faults).first == {}
    assert _delivered(faults, _but(flaw), to_the_end=False).violations == {"copied"}


def test_the_fence_and_the_name_of_what_is_proved_stand_in_for_each_other() -> None:
    zombie = Faults(zombies=1)
    for flaws in ((), ("no_fence",), ("stale_proof",)):
        assert _delivered(zombie, _but(*flaws)).first == {}
    assert _delivered(zombie, _but("no_fence", "stale_proof"), to_the_end=False).violations == {"copied"}


THREE_AT_ONCE = Faults(zombies=1, dropped=1, flushes=1)


def test_a_404_counts_only_for_the_attempt_it_was_about() -> None:
    """A worker has heard that the receiver never saw a message, and freezes before it begins another attempt;
    meanwhile a new owner delivers it, and Redis loses both its row and the fence."""
    assert _delivered(THREE_AT_ONCE).first == {}
    assert _delivered(THREE_AT_ONCE, _but("stale_proof"), to_the_end=False).violations == {"copied"}
