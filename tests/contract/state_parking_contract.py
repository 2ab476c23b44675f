"""Contract tests of the state port: parked references, their leases, and recovery after a loss. Subclasses provide
`rig`."""

from dataclasses import replace

import pytest

from relay.domain.errors import PartitionLost, StateRecovering
from relay.domain.identity import DeliveryId, MessageId
from relay.log.port import Coordinate, TopicPartition
from relay.state.attempts import AmbiguousAttempt, CallKind, Change, Go, Wait
from relay.state.port import Counts, Gap, IntakeRequest, Lane, Restored
from relay.state.replies import answered, of
from relay.state.rows import TAGS, Arrival, Due, DueRequest, Mark, Parked, ParkedLife, Row, Stage, callback_row, tag_of
from tests.contract.state_contract import (
    ANSWER,
    LANE,
    LIMITS,
    WINDOW_S,
    Rig,
    ask,
    begun,
    doubt_of,
    outcome,
    peeked,
    row,
)

QUEUE = bytes(range(12))
TAG = tag_of("r:ci")


def parked(number: int, *, due_in_s: float = 0.0, queue: bytes | None = None, receiver: str = "ci") -> Parked:
    at = Coordinate("parked_messages", 3, 1000 + number)
    return Parked(row(number, receiver), 0, at, due_in_s, queue, order=number)


def due(one: Parked) -> Due:
    return Due(one.row, one.generation, one.at)


async def taken(rig: Rig, limit: int = 100, lane: Lane = LANE, *, token: bytes = b"") -> list[Due]:
    (found,) = await answered(rig.state.take_due(of(lane, [DueRequest(TAG, limit, token)]), lease_s=30))
    return found


class ParkingContract:
    async def test_references_come_when_due_earliest_first_and_leased(self, rig: Rig) -> None:
        late, soon, sooner = (parked(number, due_in_s=due_in_s) for number, due_in_s in ((1, 100), (2, 20), (3, 10)))
        await answered(rig.state.park(of(LANE, [late, soon, sooner])))
        assert await taken(rig) == []
        assert await answered(rig.state.next_due(of(LANE, [TAG, TAG - 1]))) == [10.0, None]
        await rig.elapse(20)
        assert await taken(rig, limit=1) == [due(sooner)]
        assert await taken(rig) == [due(soon)]
        assert await taken(rig) == []
        await rig.elapse(30)
        assert await taken(rig) == [due(sooner), due(soon)]

    async def test_a_take_whose_reply_was_lost_gives_the_same_again(self, rig: Rig) -> None:
        first, second, later = parked(1), parked(2, due_in_s=0.5), parked(3, due_in_s=2)
        await answered(rig.state.park(of(LANE, [first, second, later])))
        await rig.elapse(1)
        assert await taken(rig, 1, token=b"take-1") == [due(first)]
        assert await taken(rig, 9, token=b"take-1") == [due(second), due(first)]
        await rig.elapse(1)
        assert await taken(rig, 9, token=b"take-2") == [due(later)]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(later.row, 0)])))
        assert await taken(rig, 9, token=b"take-2") == []
        assert await taken(rig, 9, token=b"take-1") == [], "there was another since: its reply has come"

    async def test_another_take_gives_what_was_taken_only_when_its_lease_is_over(self, rig: Rig) -> None:
        await answered(rig.state.park(of(LANE, [parked(1)])))
        assert await taken(rig) == [due(parked(1))]
        assert await taken(rig) == []
        assert await taken(rig, token=b"take-1") == []
        await rig.elapse(30)
        assert await taken(rig, token=b"take-2") == [due(parked(1))]

    async def test_a_newer_owner_need_not_wait_for_the_leases_of_the_former(self, rig: Rig) -> None:
        newer = LANE._replace(epoch=LANE.epoch + 1)
        in_hand, put_back, over, later = (parked(number) for number in (1, 2, 3, 4))
        await answered(rig.state.park(of(LANE, [in_hand, put_back, over, replace(later, due_in_s=50)])))
        assert len(await taken(rig)) == 3
        await answered(rig.state.park(of(LANE, [replace(put_back, due_in_s=40)])))
        await answered(rig.state.unpark(of(LANE, [ParkedLife(over.row, 0)])))
        assert await answered(rig.state.next_due(of(LANE, [TAG]))) == [30.0]
        assert await answered(rig.state.next_due(of(newer, [TAG]))) == [0.0]
        assert await taken(rig, 9, newer) == [due(in_hand)]
        assert await answered(rig.state.next_due(of(newer, [TAG]))) == [30.0]
        assert await answered(rig.state.next_due(of(LANE, [TAG]))) == [
            30.0
        ]  # the former owner changes nothing any more

    async def test_a_newer_owner_takes_up_leases_also_without_having_looked(self, rig: Rig) -> None:
        newer = LANE._replace(epoch=LANE.epoch + 1)
        await answered(rig.state.park(of(LANE, [parked(1, queue=QUEUE), parked(2, queue=QUEUE)])))
        assert await taken(rig) == [due(parked(1))]
        assert await taken(rig, 9, newer) == [due(parked(1))]
        assert await taken(rig, 9, newer) == []

    async def test_park_renews_and_unpark_removes(self, rig: Rig) -> None:
        one = parked(1)
        await answered(rig.state.park(of(LANE, [one])))
        await answered(rig.state.park(of(LANE, [replace(one, due_in_s=50)])))
        assert await answered(rig.state.next_due(of(LANE, [TAG]))) == [50.0]
        assert await answered(rig.state.unpark(of(LANE, [ParkedLife(one.row, 0)]))) == [False]
        assert await answered(rig.state.unpark(of(LANE, [ParkedLife(one.row, 0)]))) == [False]
        assert await answered(rig.state.next_due(of(LANE, [TAG]))) == [None]

    async def test_only_the_head_of_a_queue_is_due(self, rig: Rig) -> None:
        first, second, third = (parked(number, due_in_s=40, queue=QUEUE) for number in (1, 2, 3))
        await answered(rig.state.park(of(LANE, [second, replace(third, due_in_s=0), first])))
        assert await answered(rig.state.next_due(of(LANE, [TAG]))) == [40.0]
        assert await answered(rig.state.unpark(of(LANE, [ParkedLife(second.row, 0, QUEUE)]))) == [False]
        await rig.elapse(40)
        assert await taken(rig) == [due(first)]
        assert await answered(rig.state.unpark(of(LANE, [ParkedLife(first.row, 0, QUEUE)]))) == [True]
        assert await taken(rig) == [due(third)]
        assert await answered(rig.state.unpark(of(LANE, [ParkedLife(third.row, 0, QUEUE)]))) == [False]

    async def test_queues_and_lanes_do_not_hinder_each_other(self, rig: Rig) -> None:
        other = replace(parked(2, due_in_s=5, queue=b"other-queue-"), order=0)
        await answered(rig.state.park(of(LANE, [parked(1, due_in_s=50, queue=QUEUE), other])))
        await answered(rig.state.park(of(LANE._replace(partition=1), [parked(3)])))
        await rig.elapse(5)
        assert await taken(rig) == [due(other)]

    async def test_intake_tells_who_is_parked_and_who_has_to_queue(self, rig: Rig) -> None:
        await answered(rig.state.park(of(LANE, [parked(1, due_in_s=50, queue=QUEUE)])))
        asks = [
            IntakeRequest(row(1), 0, QUEUE),
            IntakeRequest(row(2), 0, QUEUE),
            IntakeRequest(row(3), 0, b"another-key-"),
        ]
        assert await answered(rig.state.intake(of(LANE, asks))) == [Row(kept=True, behind=1), Row(behind=1), Row()]
        assert await answered(rig.state.intake(of(LANE._replace(partition=1), asks))) == [Row(), Row(), Row()]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(row(1), 0, QUEUE)])))
        assert await answered(rig.state.intake(of(LANE, asks))) == [Row(), Row(), Row()]

    async def test_the_intent_to_park_outlives_marks_until_unpark(self, rig: Rig) -> None:
        await answered(rig.state.intend_to_park(of(LANE, [row()])))
        assert await peeked(rig.state, row()) == Row(park_intent=True)
        await begun(rig.state, row())
        await answered(rig.state.mark([Mark(row(), 0, Stage.DONE)]))
        assert await peeked(rig.state, row()) == Row(Stage.DONE, attempts=1, park_intent=True)
        assert await answered(rig.state.intake(of(LANE, [IntakeRequest(row(), 1, None)]))) == [Row(park_intent=True)]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(row(), 0)])))
        assert await peeked(rig.state, row()) == Row(Stage.DONE, attempts=1)

    async def test_parked_references_are_counted_per_owner(self, rig: Rig) -> None:
        poll = replace(parked(2), poll=True)
        await answered(rig.state.park(of(LANE, [parked(1), poll, parked(3, receiver="other")])))
        await answered(rig.state.park(of(LANE, [parked(1, due_in_s=9)])))
        assert await answered(rig.state.parked(["r:ci", "r:other", "r:none"])) == [
            Counts(1, 1),
            Counts(1, 0),
            Counts(0, 0),
        ]
        assert await rig.state.parked_total() == Counts(2, 1)
        await answered(rig.state.unpark(of(LANE, [ParkedLife(row(number), 0) for number in (1, 1, 2)])))
        assert await answered(rig.state.parked(["r:ci"])) == [Counts(0, 0)]
        assert await rig.state.parked_total() == Counts(1, 0)

    async def test_parked_results_are_counted_apart(self, rig: Rig) -> None:
        results = [replace(parked(n), row=callback_row(DeliveryId("ci", "a", f"{n}"), 0)) for n in (2, 3)]
        await answered(rig.state.park(of(LANE, [parked(1), replace(parked(4), poll=True), *results])))
        assert await rig.state.parked_total() == Counts(3, 1)
        assert await rig.state.parked_results() == 2
        await answered(rig.state.unpark(of(LANE, [ParkedLife(one.row, 0) for one in results])))
        assert await rig.state.parked_results() == 0

    async def test_an_answer_frees_what_is_parked_of_it(self, rig: Rig) -> None:
        """It is due at once, even before its turn, and frees its place. It stays parked until it is unparked."""
        waits, poll = parked(1, due_in_s=900), replace(parked(2, due_in_s=900), poll=True)
        behind = parked(4, queue=QUEUE)
        await answered(rig.state.intend_to_park(of(LANE, [one.row for one in (waits, poll, behind)])))
        assert (
            await answered(rig.state.park(of(LANE, [waits, poll, parked(3, due_in_s=70, queue=QUEUE), behind])))
            == [True] * 4
        )
        await answered(
            rig.state.settle([outcome(one.row, Change.RESULT, b"", result=ANSWER) for one in (waits, poll, behind)])
        )
        assert await answered(rig.state.parked(["r:ci"])) == [Counts(1, 0)]
        assert await rig.state.parked_total() == Counts(1, 0)
        assert await taken(rig) == [due(waits), due(poll)]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(one.row, 0, one.queue) for one in (waits, poll, behind)])))
        assert await answered(rig.state.parked(["r:ci"])) == [Counts(1, 0)]
        await rig.elapse(70)
        assert await taken(rig) == [due(parked(3))]

    async def test_what_has_its_outcome_already_is_not_parked_any_more(self, rig: Rig) -> None:
        retry, poll, later = parked(1), replace(parked(2), poll=True), replace(parked(3), generation=1)
        await answered(rig.state.intend_to_park(of(LANE, [one.row for one in (retry, poll)])))
        for one in (retry, poll, later):
            await answered(rig.state.settle([outcome(one.row, Change.ACCEPTED, b"", result=ANSWER)]))
        assert await answered(rig.state.park(of(LANE, [retry, poll, later]))) == [False, True, True]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(poll.row, 0)])))
        await answered(rig.state.settle([outcome(poll.row, Change.RESULT, b"", result=ANSWER)]))
        assert await answered(rig.state.park(of(LANE, [poll]))) == [False]
        assert await answered(rig.state.parked(["r:ci"])) == [Counts(1, 0)]
        assert (await peeked(rig.state, retry.row)).park_intent, "its copy is there, and owed a tombstone"

    @pytest.mark.parametrize("first", ["to_receiver", "pending"])
    async def test_each_lane_has_an_intent_of_its_own(self, rig: Rig, first: str) -> None:
        """A delivery moves between lanes, and a next owner of the former one may have it at the same time: neither lane
        decides about the copy in the other."""
        pending, poll = LANE._replace(topic="pending"), replace(parked(1, due_in_s=900), poll=True)
        for lane in (LANE, pending) if first == "to_receiver" else (pending, LANE):
            await answered(rig.state.intend_to_park(of(lane, [row(1)])))
        assert await answered(rig.state.park(of(pending, [poll]))) == [True]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(row(1), 0)])))
        assert await peeked(rig.state, row(1)) == Row(park_intent=True)
        await answered(rig.state.settle([outcome(row(1), Change.RESULT, b"", result=ANSWER)]))
        assert await rig.state.parked_total() == Counts(0, 0)
        assert await answered(rig.state.next_due([(pending, tag_of("r:ci"))])) == [0.0]
        await answered(rig.state.unpark(of(pending, [ParkedLife(row(1), 0)])))
        assert await peeked(rig.state, row(1)) == Row(Stage.RESULT, result=ANSWER)

    async def test_what_is_parked_of_a_later_life_is_not_removed_or_replaced_for_an_earlier_one(self, rig: Rig) -> None:
        first = parked(1, due_in_s=50, queue=QUEUE)
        later = replace(first, generation=1, at=first.at._replace(offset=2000), due_in_s=0.0, order=7)
        await answered(rig.state.intend_to_park(of(LANE, [first.row])))
        assert await answered(rig.state.park(of(LANE, [first, later, first]))) == [True, True, False]
        assert await answered(rig.state.unpark(of(LANE, [ParkedLife(first.row, 0, QUEUE)]))) == [False]
        assert await rig.state.restore(LANE, [first, later]) == [Restored.THERE] * 2
        assert await rig.state.parked_total() == Counts(1, 0)
        assert (await peeked(rig.state, first.row)).park_intent
        assert await taken(rig) == [due(later)]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(first.row, 2, QUEUE)])))
        assert await rig.state.parked_total() == Counts(0, 0)
        assert await peeked(rig.state, first.row) == Row()

    async def test_a_later_life_is_not_parked_where_an_earlier_one_is(self, rig: Rig) -> None:
        """The later life would count as ended when the earlier one ends."""
        await answered(rig.state.park(of(LANE, [parked(1)])))
        asks = [IntakeRequest(row(1), generation, None) for generation in (0, 1)]
        assert await answered(rig.state.intake(of(LANE, asks))) == [Row(kept=True), Row()]
        assert await rig.state.restore(LANE, [replace(parked(1), generation=1)]) == [Restored.PUT_BACK]
        assert await answered(rig.state.intake(of(LANE, asks))) == [Row(park_intent=True, kept=True)] * 2

    async def test_what_a_later_life_has_outlived_is_not_put_back(self, rig: Rig) -> None:
        await begun(rig.state, row(1), generation=1)
        assert await rig.state.restore(LANE, [parked(1), replace(parked(1), generation=1)]) == [
            Restored.FINISHED,
            Restored.PUT_BACK,
        ]

    async def test_a_newer_owner_fences_parking(self, rig: Rig) -> None:
        await answered(rig.state.park(of(LANE._replace(epoch=8), [parked(1)])))
        with pytest.raises(PartitionLost):
            await answered(rig.state.park(of(LANE, [parked(2)])))
        with pytest.raises(PartitionLost):
            await answered(rig.state.intend_to_park(of(LANE, [row(2)])))
        with pytest.raises(PartitionLost):
            await answered(rig.state.unpark(of(LANE, [ParkedLife(row(1), 0)])))
        with pytest.raises(PartitionLost):
            await taken(rig)
        assert await rig.state.parked_total() == Counts(1, 0)

    async def test_references_outlive_the_dedup_window(self, rig: Rig) -> None:
        await answered(rig.state.intend_to_park(of(LANE, [row(1)])))
        await answered(rig.state.park(of(LANE, [parked(1, queue=QUEUE)])))
        await rig.elapse(3 * WINDOW_S)
        assert await answered(rig.state.intake(of(LANE, [IntakeRequest(row(1), 0, QUEUE)]))) == [
            Row(park_intent=True, kept=True, behind=1)
        ]
        assert await taken(rig) == [due(parked(1))]


class LifeContract:
    async def recover(self, rig: Rig, in_doubt_s: float = 500) -> None:
        await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=in_doubt_s)

    async def test_after_a_loss_nothing_is_done_until_ready(self, rig: Rig) -> None:
        await answered(rig.state.mark([Mark(row(), 0, Stage.DONE)]))
        assert await rig.state.lost() == frozenset()
        await rig.lose()
        with pytest.raises(StateRecovering) as error:
            await answered(rig.state.begin(of(LANE, [ask(row())])))
        assert error.value.tags == {TAG}
        with pytest.raises(StateRecovering):
            await answered(rig.state.arrive([Arrival(MessageId("github", "m"), b"digest", 0, 0)]))
        assert await rig.state.lost() == frozenset(range(TAGS))
        with pytest.raises(StateRecovering):
            await answered(rig.state.park(of(LANE, [parked(1)])))
        await rig.state.ready([TAG], in_doubt_s=0)
        assert await rig.state.lost() == frozenset(range(TAGS)) - {TAG}
        assert await peeked(rig.state, row()) == Row()

    async def test_memory_of_an_older_edition_is_lost(self, rig: Rig) -> None:
        await answered(rig.state.park(of(LANE, [parked(1)])))
        await answered(rig.state.mark([Mark(row(1), 0, Stage.DONE)]))
        await rig.state.set_edition(7)
        await rig.state.set_edition(5)
        assert await rig.state.lost() == await rig.state.lost(7) == frozenset()
        assert not rig.state.outdated()
        assert (await rig.state.lost(8), rig.state.outdated()) == (frozenset(range(TAGS)), True)
        assert (await rig.state.lost(8), rig.state.outdated()) == (frozenset(range(TAGS)), False)
        assert rig.state.forgotten() == frozenset(range(TAGS))
        with pytest.raises(StateRecovering):
            await answered(rig.state.begin(of(LANE, [ask(row())])))
        await rig.state.set_edition(8)
        await rig.state.ready(range(TAGS), in_doubt_s=500)
        assert await rig.state.lost(8) == frozenset()
        assert await rig.state.restore(LANE, [parked(1)]) == [Restored.THERE]
        await rig.elapse(LIMITS.settle_s)
        assert isinstance(await begun(rig.state, row(2), ask_first=True), AmbiguousAttempt)

    async def test_what_was_recorded_since_a_loss_is_in_doubt_while_there_are_gaps_only(self, rig: Rig) -> None:
        await rig.lose()
        lost = await rig.state.lost()
        ends = {TAG: {TopicPartition(LANE.topic, LANE.partition): 5}}
        await rig.state.ready(sorted(lost), in_doubt_s=500, ends=ends)
        await rig.elapse(LIMITS.settle_s)
        verdicts = [await begun(rig.state, row(n), ask_first=True, offset=offset) for n, offset in enumerate((4, 5))]
        assert [isinstance(one, AmbiguousAttempt) and one.newer_than_loss for one in verdicts] == [False, True]
        await rig.state.close_gaps(await rig.state.gaps([TAG]))
        assert isinstance(await begun(rig.state, row(0), ask_first=True, offset=4), AmbiguousAttempt)
        assert await begun(rig.state, row(1), ask_first=True, offset=5) == Go(1, 0.0)
        assert isinstance(await begun(rig.state, row(2), ask_first=True), AmbiguousAttempt)
        other = LANE._replace(partition=1)
        assert await answered(rig.state.begin(of(other, [ask(row(3), ask_first=True, offset=0)]))) == [Go(1, 0.0)]

    async def test_a_loss_is_told_apart_from_what_is_ready(self, rig: Rig) -> None:
        await rig.state.lost()
        assert rig.state.forgotten() == frozenset()
        await rig.lose()
        await rig.state.lost()
        assert rig.state.forgotten() == frozenset(range(TAGS))
        await rig.state.ready([TAG], in_doubt_s=0)
        await rig.state.lost()
        assert rig.state.forgotten() == frozenset(range(TAGS)) - {TAG}

    async def test_ready_without_a_pass_since_the_loss_is_refused(self, rig: Rig) -> None:
        await rig.lose()
        await rig.state.lost()
        await rig.lose()
        with pytest.raises(StateRecovering):
            await rig.state.ready([TAG], in_doubt_s=0)

    async def test_a_pass_of_another_process_ends_with_the_next_loss(self, rig: Rig) -> None:
        """It has not read what was parked since."""
        await rig.lose()
        await rig.other.start()
        await rig.other.lost()
        await rig.lose()
        await rig.state.lost()
        with pytest.raises(StateRecovering):
            await rig.other.restore(LANE, [parked(1)])
        with pytest.raises(StateRecovering):
            await rig.other.ready([TAG], in_doubt_s=0)
        await rig.other.lost()
        await rig.other.ready([TAG], in_doubt_s=0)
        await rig.state.ready(range(TAGS), in_doubt_s=0)
        assert await rig.state.lost() == frozenset()

    async def test_restore_puts_back_what_is_not_finished(self, rig: Rig) -> None:
        await rig.lose()
        await rig.state.lost()
        entries = [parked(2, due_in_s=60, queue=QUEUE), parked(1, due_in_s=60, queue=QUEUE), parked(3)]
        assert await rig.state.restore(LANE._replace(epoch=0), entries) == [Restored.PUT_BACK] * 3
        assert await rig.state.restore(LANE._replace(epoch=0), entries) == [Restored.THERE] * 3
        await self.recover(rig)
        assert await taken(rig) == [due(parked(3))]
        await rig.elapse(60)
        assert due(parked(1)) in await taken(rig)
        assert (await peeked(rig.state, row(2))).park_intent
        await answered(rig.state.mark([Mark(row(1), 0, Stage.DONE)]))
        await answered(rig.state.unpark(of(LANE, [ParkedLife(row(1), 0, QUEUE)])))
        assert await rig.state.restore(LANE, [parked(1, queue=QUEUE)]) == [Restored.FINISHED]
        assert await answered(rig.state.parked(["r:ci"])) == [Counts(2, 0)]

    async def test_in_doubt_a_missing_row_may_hide_an_attempt(self, rig: Rig) -> None:
        await rig.lose()
        await self.recover(rig)
        assert await begun(rig.state, row(1), ask_first=True, attempts=2) == Wait(25.0, "settling")
        await rig.elapse(25)
        doubt = await doubt_of(rig.state, row(1), ask_first=True, attempts=2)
        assert await begun(rig.state, row(1), ask_first=True, attempts=2) == AmbiguousAttempt(2, doubt)
        assert await begun(rig.state, row(1), b"p", ask_first=True, kind=CallKind.POLL) == Go(1, 0.0)
        assert await begun(rig.state, row(1), ask_first=True, attempts=2, resolved=doubt) == Go(3, 0.0)
        assert await begun(rig.state, row(2)) == Go(1, 0.0)
        await rig.elapse(475)
        assert await begun(rig.state, row(3), ask_first=True) == Go(1, 0.0)

    async def test_at_most_once_a_missing_row_is_in_doubt_before_the_loss_and_in_the_gap(self, rig: Rig) -> None:
        await rig.lose()
        await self.recover(rig)
        lost_ms = round((await rig.state.gaps(range(TAGS)))[TAG].since * 1000)
        before, since = lost_ms - 1, lost_ms + 1
        assert await begun(rig.state, row(1), recorded_ms=since) == Wait(25.0, "settling")
        await rig.elapse(25)
        for recorded_ms in (before, since):
            assert isinstance(await begun(rig.state, row(1), recorded_ms=recorded_ms), AmbiguousAttempt)
        await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
        assert isinstance(await begun(rig.state, row(1), recorded_ms=before), AmbiguousAttempt)
        assert await begun(rig.state, row(1), recorded_ms=since) == Go(1, 0.0)
        await rig.elapse(475)
        assert await begun(rig.state, row(2), recorded_ms=before) == Go(1, 0.0)

    async def test_a_loss_leaves_a_gap_until_it_is_closed(self, rig: Rig) -> None:
        assert await rig.state.gaps(range(TAGS)) == {}
        await rig.lose()
        with pytest.raises(StateRecovering):
            await rig.state.gaps(range(TAGS))
        await self.recover(rig)
        first = await rig.state.gaps(range(TAGS))
        assert first == dict.fromkeys(range(TAGS), Gap(first[TAG].since, 0.0))
        await rig.elapse(5)
        await rig.lose()
        await self.recover(rig)
        await rig.state.close_gaps(first)
        second = await rig.state.gaps(range(TAGS))
        assert second[TAG].since == first[TAG].since + 5, "that one was noticed later"
        await rig.state.close_gaps({TAG: second[TAG]})
        assert await rig.state.gaps(range(TAGS)) == {tag: gap for tag, gap in second.items() if tag != TAG}

    async def test_a_new_installation_has_no_gap(self, rig: Rig) -> None:
        await rig.lose()
        await self.recover(rig, in_doubt_s=0)
        assert await rig.state.gaps(range(TAGS)) == {}

    async def test_what_the_log_proves_is_remembered_where_nothing_is_known(self, rig: Rig) -> None:
        finished = Mark(row(1), 0, Stage.DONE, (3, 70_000), 9)
        await rig.state.remember([finished, Mark(row(2), 0, Stage.FAILED, (4, 5), 7), Mark(row(3), 0, Stage.AWAITING)])
        told = await answered(rig.state.peek([row(1), row(2), row(3)]))
        assert [(each.stage, each.at, each.code) for each in told] == [
            (Stage.DONE, (3, 70_000), 9),
            (Stage.FAILED, (4, 5), 7),
            (Stage.AWAITING, None, 0),
        ]
        await rig.state.remember([Mark(row(1), 0, Stage.FAILED, (1, 1), 1), Mark(row(1), 1, Stage.DONE, (5, 6), 0)])
        assert (await peeked(rig.state, row(1))).generation == 1
        await rig.state.remember([finished])
        assert (await peeked(rig.state, row(1))).at == (5, 6), "a later life is known"

    @pytest.mark.parametrize("said", ["remember", "mark"])
    async def test_what_ends_without_a_stored_outcome_waits_no_longer(self, rig: Rig, said: str) -> None:
        """A copy is put back with the due time that it had, which for one that waits for a callback is its deadline."""
        by_callback, unanswered, again = (parked(number, due_in_s=900) for number in (1, 2, 3))
        poll, replay = replace(by_callback, poll=True), replace(again, generation=1)
        assert await rig.state.restore(LANE, [poll, unanswered, replay]) == [Restored.PUT_BACK] * 3
        ends = [(poll, Stage.PUBLISHED), (unanswered, Stage.AWAITING), (replay, Stage.DONE)]
        marks = [Mark(one.row, 0, stage) for one, stage in ends]
        if said == "remember":
            await rig.state.remember(marks)
        else:
            await answered(rig.state.mark(marks))
        assert await taken(rig) == [due(poll)]
        assert await rig.state.parked_total() == Counts(2, 0)

    async def test_what_has_its_outcome_is_put_back_as_due(self, rig: Rig) -> None:
        over, waits = (replace(parked(number, due_in_s=900), poll=True) for number in (1, 2))
        await rig.state.remember([Mark(over.row, 0, Stage.PUBLISHED), Mark(waits.row, 0, Stage.AWAITING)])
        assert await rig.state.restore(LANE, [over, waits]) == [Restored.PUT_BACK] * 2
        assert await taken(rig) == [due(over)]

    async def test_what_is_under_way_is_left_alone(self, rig: Rig) -> None:
        """The process that works on it will record how it ends."""
        await begun(rig.state, row(1))
        await begun(rig.state, row(2))
        await answered(rig.state.settle([outcome(row(2), Change.RETRY, due_in_s=60)]))
        await begun(rig.state, row(3))
        await answered(rig.state.settle([outcome(row(3), Change.RESULT, result=ANSWER)]))
        before = await answered(rig.state.peek([row(1), row(2), row(3)]))
        await rig.state.remember([Mark(row(number), 0, Stage.DONE, (0, 1)) for number in (1, 2, 3)])
        assert await answered(rig.state.peek([row(1), row(2), row(3)])) == before
        await answered(rig.state.mark([Mark(row(3), 0, Stage.PUBLISHED, (0, 9))]))
        await rig.state.remember([Mark(row(3), 0, Stage.DONE, (0, 9))])
        assert (await peeked(rig.state, row(3))).stage is Stage.DONE

    async def test_what_was_in_flight_before_a_loss_is_over_if_the_log_proves_it(self, rig: Rig) -> None:
        """The replica has it as it was when it fell behind. What began after that is in flight."""
        for number in (1, 2, 3):
            await begun(rig.state, row(number))
        await answered(rig.state.settle([outcome(row(2), Change.RETRY, due_in_s=60)]))
        await answered(rig.state.settle([outcome(row(3), Change.ACCEPTED, result=ANSWER)]))
        await rig.elapse(1)
        await rig.fail_over()
        await self.recover(rig)
        await begun(rig.state, row(4))
        await rig.state.remember([Mark(row(number), 0, Stage.DONE, (0, 1)) for number in (1, 2, 3, 4)])
        found = await answered(rig.state.peek([row(1), row(2), row(3), row(4)]))
        assert [one.stage for one in found] == [Stage.DONE, Stage.DONE, Stage.DONE, Stage.SENDING]

    async def test_making_ready_what_is_ready_brings_no_doubt(self, rig: Rig) -> None:
        await rig.state.ready(range(TAGS), in_doubt_s=500)
        assert await begun(rig.state, row(), ask_first=True) == Go(1, 0.0)

    async def test_a_lease_has_one_owner_also_while_recovering(self, rig: Rig) -> None:
        await rig.lose()
        assert await rig.state.lease("recovery", "a", 60)
        assert not await rig.state.lease("recovery", "b", 60)
        await rig.elapse(40)
        assert await rig.state.lease("recovery", "a", 60)
        await rig.elapse(40)
        await rig.state.release("recovery", "b")
        assert not await rig.state.lease("recovery", "b", 60)
        await rig.elapse(20)
        assert await rig.state.lease("recovery", "b", 60)
        await rig.state.release("recovery", "b")
        assert await rig.state.lease("recovery", "a", 60)
        await rig.state.release("recovery", None)
        assert await rig.state.lease("recovery", "b", 60)
