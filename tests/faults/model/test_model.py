"""Every interleaving of two messages of one source with faults: nothing is lost, and copies are as promised.

The cores and steps are the relay's own. The whole relay is searched with few faults; with more, each worker is searched
alone, on each log that the worker before it can produce: workers affect the next one by their log only. Each then has
all the faults to itself, which is more than a mix of them over all workers. RELAY_MODEL_DEEP=1 searches more, for
minutes.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from relay.domain.timing import Timing
from relay.engine.commands import CallQueue
from tests.faults.model.events import after, events, happen
from tests.faults.model.here import Cast
from tests.faults.model.search import Found, search
from tests.faults.model.world import MESSAGES, START, Faults, World, beginning

ASKED = Cast()
UNASKED = Cast(asked=False)
PARKED = Cast(parks=True)
TWO_RECEIVERS = Cast(names=("r", "q"))
DELAYED = Cast(parks=True, timings={0: Timing(deliver_at=START + 20)})
HELD = Cast(timings={0: Timing(deliver_at=START + 3)})
EXPIRING = Cast(parks=True, timings={0: Timing(deadline=START + 1)})
KEYED = Cast(timings=dict.fromkeys(MESSAGES, Timing(key="k")))
KEYED_DELAYED = Cast(parks=True, timings={0: Timing(deliver_at=START + 20, key="k"), 1: Timing(key="k")})
COALESCED = Cast(timings=dict.fromkeys(MESSAGES, Timing(key="k", window=2.0)))
ONE = (0,)
DEEP = bool(os.environ.get("RELAY_MODEL_DEEP"))

pytestmark = [pytest.mark.timeout(3_600)] if DEEP else []

Told = Callable[[str, object], None]


class Story(NamedTuple):
    """`worlds`: at least so many come of it, or something that can happen did not."""

    faults: Faults
    worlds: int
    messages: tuple[int, ...] = MESSAGES

    def __str__(self) -> str:
        counts = [f"{count}_{name}" for name, count in self.faults._asdict().items() if count]
        return "+".join((*counts, "of_" + "_".join(map(str, self.messages))))


def _stories(*stories: Story, deep: tuple[Story, ...] = ()) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("story", [*stories, *(deep if DEEP else ())], ids=str)


def _seen(found: Found, story: Story, told: Told) -> Found:
    told("worlds", found.worlds)
    assert found.worlds >= story.worlds
    return found


@pytest.fixture
def told(record_property: Told) -> Told:
    """Says how much was looked at."""
    return record_property


# --- the whole relay --------------------------------------------------------------------------------------------


@_stories(
    Story(Faults(), 2_000),
    Story(Faults(crashes=1), 1_200, ONE),
    Story(Faults(flushes=1), 500, ONE),
    Story(Faults(repeats=1), 500, ONE),
    Story(Faults(lost=1, dropped=1), 250, ONE),
    Story(Faults(resends=1), 600, ONE),
    deep=(Story(Faults(lost=1), 4_000), Story(Faults(crashes=1, flushes=1), 5_000, ONE)),
)
def test_the_whole_relay_survives_it(story: Story, told: Told) -> None:
    start = beginning(ASKED, story.faults, from_sender=story.messages, to_receiver=(), to_sender=())
    assert _seen(search(start), story, told).first == {}


# --- one worker after the other ---------------------------------------------------------------------------------


@_stories(
    Story(Faults(crashes=1, repeats=1), 400),
    Story(Faults(crashes=1, resends=1), 1_500),
    Story(Faults(crashes=1, flushes=1), 450),
    Story(Faults(resends=2), 900),
    deep=(Story(Faults(crashes=2, flushes=1, resends=1), 10_000), Story(Faults(crashes=2, repeats=2), 1_000)),
)
def test_from_sender_hands_on_every_message(story: Story, told: Told) -> None:
    found = _seen(search(beginning(ASKED, story.faults, from_sender=story.messages)), story, told)
    assert found.first == {}
    assert all(log.index(0) < log.index(1) for log in found.logs), "the first of each is in order"


@_stories(
    Story(Faults(crashes=1), 140),
    Story(Faults(crashes=1, repeats=1), 450),
    Story(Faults(crashes=1, resends=1), 150, ONE),
    deep=(Story(Faults(crashes=1, resends=1), 2_000),),
)
def test_from_sender_hands_every_message_on_to_each_of_two_receivers(story: Story, told: Told) -> None:
    found = _seen(search(beginning(TWO_RECEIVERS, story.faults, from_sender=story.messages)), story, told)
    assert found.first == {}


@_stories(
    Story(Faults(crashes=2), 1_300),
    Story(Faults(crashes=1, lost=1, dropped=1), 3_000),
    Story(Faults(crashes=1, flushes=1), 2_400),
    Story(Faults(crashes=1, repeats=1), 800),
    Story(Faults(lost=1, dropped=1, flushes=1), 1_400),
    Story(Faults(zombies=1), 1_800),
    Story(Faults(zombies=1, crashes=1), 1_200, ONE),
    Story(Faults(moves=1), 1_100),
    Story(Faults(moves=1, crashes=1), 900, ONE),
    Story(Faults(moves=1, lost=1, dropped=1), 1_200, ONE),
    Story(Faults(crashes=1, clocks=1), 130, ONE),
    Story(Faults(lost=1, clocks=1), 240),
    deep=(
        Story(Faults(crashes=1, clocks=1), 900),
        Story(Faults(zombies=1, clocks=1), 450, ONE),
        Story(Faults(zombies=1, dropped=1, flushes=1), 5_500, ONE),
        Story(Faults(crashes=2, lost=1, dropped=1), 5_000),
        Story(Faults(crashes=2, flushes=1), 5_000),
        Story(Faults(zombies=1, lost=1), 5_000),
        Story(Faults(zombies=1, flushes=1), 5_000),
        Story(Faults(moves=1, crashes=1, lost=1), 5_000),
        Story(Faults(moves=1, flushes=1), 5_000),
    ),
)
def test_a_receiver_that_can_be_asked_gets_each_message_once_and_in_order(story: Story, told: Told) -> None:
    found = _seen(search(beginning(ASKED, story.faults, to_receiver=story.messages)), story, told)
    assert found.first == {}


def test_so_it_does_whatever_from_sender_has_repeated() -> None:
    logs = _repeated(longest=4 if DEEP else 3)
    assert len(logs) >= 4
    for hops in logs:
        assert search(beginning(ASKED, Faults(crashes=1), to_receiver=hops)).first == {}, hops


@cache
def _repeated(longest: int) -> list[tuple[int, ...]]:
    """What FromSender may put on to_receiver."""
    found = search(beginning(ASKED, Faults(crashes=1, resends=1), from_sender=MESSAGES))
    return sorted(log for log in found.logs if len(log) <= longest)


@_stories(
    Story(Faults(refused=1), 120),
    Story(Faults(refused=1, flushes=1), 800),
    Story(Faults(refused=1, repeats=1), 300),
    Story(Faults(refused=1, crashes=1, repeats=1), 2_000, ONE),
    Story(Faults(refused=2, crashes=1), 1_800, ONE),
    Story(Faults(refused=1, moves=1), 1_500, ONE),
    Story(Faults(refused=1, clocks=1), 300),
    Story(Faults(refused=1, flushes=1, clocks=1), 700, ONE),
    deep=(
        Story(Faults(refused=1, crashes=1, clocks=1), 2_500, ONE),
        Story(Faults(refused=1, crashes=1), 8_000),
        Story(Faults(refused=1, crashes=1, flushes=1), 7_500, ONE),
        Story(Faults(refused=1, zombies=1), 10_000, ONE),
        Story(Faults(refused=1, moves=1), 10_000),
    ),
)
def test_what_was_parked_comes_in_its_turn(story: Story, told: Told) -> None:
    """What the receiver refuses has to wait for longer than anything is held in memory; its follower waits behind."""
    found = _seen(search(beginning(PARKED, story.faults, to_receiver=story.messages)), story, told)
    assert found.first == {}


def test_whoever_removes_what_was_parked_leaves_the_next_life_alone(told: Told) -> None:
    assert _seen(search(in_removal()), Story(Faults(), 100), told).first == {}


def in_removal() -> World:
    """A message was refused, parked, and rejected. Its owner froze right before it removed what was parked; another has
    done that, and the message is replayed, and may be refused and parked once more."""
    world = beginning(PARKED, Faults(refused=2, rejected=1, zombies=1, replays=1), to_receiver=ONE)
    _until(world, "is refused")
    _until(world, "is rejected")
    while not any(each.command.ask is CallQueue.RETIRE for each in world.owners["to_receiver"].under_way):
        happen(world, events(world)[0])
    after(world, "freezes")
    while own := [event for event in events(world) if event.of[:1] == ("to_receiver",) and event.progress]:
        happen(world, own[0])
    return after(world, "is replayed")


def _until(world: World, wanted: str) -> None:
    while not any(event.do == wanted for event in events(world)):
        happen(world, events(world)[0])
    after(world, wanted)


@_stories(
    Story(Faults(dropped=2), 100),
    Story(Faults(crashes=2), 1_800),
    Story(Faults(lost=2), 250),
    Story(Faults(moves=1), 1_100),
    Story(Faults(zombies=1, lost=1), 400, ONE),
    deep=(Story(Faults(crashes=1, lost=1, dropped=1), 6_000), Story(Faults(zombies=1), 2_000)),
)
def test_one_that_cannot_gets_a_copy_at_most_for_each_fault_that_hides_an_answer(story: Story, told: Told) -> None:
    found = _seen(search(beginning(UNASKED, story.faults, to_receiver=story.messages)), story, told)
    faults = story.faults
    assert found.violations <= {"copied"}
    assert found.copies == faults.crashes + faults.lost + faults.moves + faults.zombies


def test_what_from_sender_has_repeated_does_not_count() -> None:
    for hops in _repeated(longest=3):
        assert search(beginning(UNASKED, Faults(), to_receiver=hops)).first == {}, hops
        assert search(beginning(UNASKED, Faults(crashes=1), to_receiver=hops)).copies == 1, hops


@_stories(Story(Faults(flushes=1), 100), Story(Faults(crashes=1, flushes=1), 2_000))
def test_after_a_loss_of_redis_a_crash_may_repeat_what_was_not_committed(story: Story, told: Told) -> None:
    found = _seen(search(beginning(UNASKED, story.faults, to_receiver=story.messages)), story, told)
    assert found.violations <= {"copied"}
    assert found.copies == story.faults.crashes * len(MESSAGES)


@_stories(
    Story(Faults(lost=1), 200, (1, 0)),
    Story(Faults(crashes=1), 1_800),
    Story(Faults(crashes=2, flushes=1), 900, ONE),
    deep=(Story(Faults(crashes=1), 5_000, (0, 1, 0)), Story(Faults(crashes=1, flushes=1), 5_000)),
)
def test_to_sender_brings_every_answer_back(story: Story, told: Told) -> None:
    assert _seen(search(beginning(ASKED, story.faults, to_sender=story.messages)), story, told).first == {}


# --- messages with times and keys -------------------------------------------------------------------------------


@_stories(
    Story(Faults(crashes=1), 2_500),
    Story(Faults(flushes=1), 600),
    Story(Faults(lost=1), 300),
    Story(Faults(refused=1, repeats=1), 400),
    deep=(Story(Faults(moves=1), 8_000), Story(Faults(crashes=1, flushes=1), 2_000, ONE)),
)
def test_a_delayed_message_is_sent_once_and_not_before_it_is_due(story: Story, told: Told) -> None:
    assert _seen(search(beginning(DELAYED, story.faults, to_receiver=story.messages)), story, told).first == {}


@_stories(Story(Faults(crashes=1), 150), Story(Faults(flushes=1), 60), Story(Faults(zombies=1), 700))
def test_so_is_one_that_is_held_in_memory(story: Story, told: Told) -> None:
    assert _seen(search(beginning(HELD, story.faults, to_receiver=story.messages)), story, told).first == {}


@_stories(Story(Faults(refused=1), 80), Story(Faults(crashes=1), 350), Story(Faults(flushes=1), 100))
def test_a_message_is_not_sent_after_its_deadline(story: Story, told: Told) -> None:
    assert _seen(search(beginning(EXPIRING, story.faults, to_receiver=story.messages)), story, told).first == {}


@_stories(
    Story(Faults(crashes=1), 700),
    Story(Faults(refused=1, crashes=1), 1_500),
    Story(Faults(flushes=1), 300),
    Story(Faults(lost=1, flushes=1), 900),
    Story(Faults(resends=1, flushes=1), 600),
    Story(Faults(moves=1), 3_000),
    deep=(Story(Faults(zombies=1), 15_000), Story(Faults(refused=1, flushes=1, repeats=1), 1_500)),
)
def test_a_message_is_replaced_by_a_newer_one_only_if_it_was_not_sent(story: Story, told: Told) -> None:
    assert _seen(search(beginning(KEYED, story.faults, to_receiver=story.messages)), story, told).first == {}


@_stories(Story(Faults(flushes=1), 1_600), Story(Faults(lost=1), 700), deep=(Story(Faults(crashes=1), 8_000),))
def test_so_is_a_delayed_one(story: Story, told: Told) -> None:
    assert _seen(search(beginning(KEYED_DELAYED, story.faults, to_receiver=story.messages)), story, told).first == {}


@_stories(Story(Faults(crashes=1), 300), Story(Faults(flushes=1), 120), Story(Faults(lost=1), 60))
def test_of_a_window_the_newest_is_sent(story: Story, told: Told) -> None:
    assert _seen(search(beginning(COALESCED, story.faults, to_receiver=story.messages)), story, told).first == {}


def test_after_a_loss_of_redis_a_crash_may_send_one_whose_end_was_not_committed() -> None:
    """Its dead letter is on the log; until the rows of finished messages are rebuilt from that, it is asked for, and
    the receiver has not seen it."""
    found = search(beginning(KEYED, Faults(crashes=1, flushes=1), to_receiver=MESSAGES))
    assert found.violations == {"replaced", "disordered"}
