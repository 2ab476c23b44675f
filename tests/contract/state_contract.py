"""Contract tests of the state port: messages, rows, attempts, outcomes. Subclasses provide `rig`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest
from msgspec import structs

from relay.domain.errors import PartitionLost
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.receiver import BreakerPolicy
from relay.state.attempts import (
    AlreadySettled,
    AmbiguousAttempt,
    BeginRequest,
    CallKind,
    Change,
    Go,
    Limits,
    LookedUp,
    Settlement,
    Stale,
    Wait,
)
from relay.state.port import IntakeRequest, Lane, State
from relay.state.replies import answered, of
from relay.state.rows import (
    TAGS,
    Arrival,
    Mark,
    MessageRow,
    MessageStage,
    Result,
    Row,
    RowKey,
    Stage,
    callback_row,
    delivery_row,
)
from tests.expecting import present

WINDOW_S = 1000.0
LANE = Lane("to_receiver_ci", 0, 7)
BREAKER = BreakerPolicy(failures=3, window=60, open_for=30)
LIMITS = Limits(interval_s=0, settle_s=25, breaker=BREAKER, probe_s=20)
ANSWER = Result("answered", 200, "text/plain", b"\xff\x00" * 200, detail="d", ask_after_s=1.5)


@dataclass(frozen=True)
class Rig:
    """A ready state with dedup window WINDOW_S; `elapse` ages it, or sets its clock back; `lose` takes its memory.
    `fail_over`: its memory is now that of a replica, which may lack the last writes. `other`: the same memory, as
    another process has it."""

    state: State
    other: State
    elapse: Callable[[float], Awaitable[None]]
    lose: Callable[[], Awaitable[None]]
    fail_over: Callable[[], Awaitable[None]]

    async def lose_and_recover(self, *, in_doubt_s: float) -> None:
        await self.lose()
        await self.state.ready(sorted(await self.state.lost()), in_doubt_s=in_doubt_s)


def row(number: int = 1, receiver: str = "ci") -> RowKey:
    return delivery_row(DeliveryId(receiver, "github", f"m-{number}"))


def ask(key: RowKey, token: bytes = b"t1", **changes: object) -> BeginRequest:
    return structs.replace(BeginRequest(key, 0, token, LIMITS), **changes)


def outcome(key: RowKey, change: Change, token: bytes = b"t1", **changes: object) -> Settlement:
    return structs.replace(Settlement(key, 0, token, change, breaker=BREAKER), **changes)


async def begun(state: State, key: RowKey, token: bytes = b"t1", **changes: object) -> object:
    (verdict,) = await answered(state.begin(of(LANE, [ask(key, token, **changes)])))
    return verdict


async def taken_over(state: State, key: RowKey, token: bytes, **changes: object) -> object:
    """The verdict for an attempt after the one in doubt, which is said to be resolved."""
    return await begun(state, key, token, resolved=await doubt_of(state, key, **changes), **changes)


async def doubt_of(state: State, key: RowKey, **changes: object) -> int:
    verdict = await begun(state, key, b"asks", **changes)
    assert isinstance(verdict, AmbiguousAttempt)
    return verdict.doubt


async def settled(state: State, key: RowKey, change: Change, token: bytes = b"t1", **changes: object) -> Row:
    """The row after the settlement, whether or not the reply contains it."""
    (reply,) = await answered(state.settle([outcome(key, change, token, **changes)]))
    now = await peeked(state, key)
    assert reply in (None, now)
    return now


async def peeked(state: State, key: RowKey) -> Row:
    (now,) = await answered(state.peek([key]))
    return now


class TimeContract:
    async def test_time_goes_on(self, rig: Rig) -> None:
        before = await rig.state.time()
        await rig.elapse(3600)
        assert await rig.state.time() - before == 3600

    async def test_what_time_it_is_can_be_asked_in_recovery(self, rig: Rig) -> None:
        before = await rig.state.time()
        await rig.lose()
        assert await rig.state.lost()
        assert await rig.state.time() == before


class MessagesContract:
    ID = MessageId("github", "m-1")
    FIRST = Arrival(ID, b"digest", 3, 70_000_000_000)

    async def test_an_unknown_message_is_remembered_with_its_first_arrival(self, rig: Rig) -> None:
        again = structs.replace(self.FIRST, digest=b"other.", partition=300, offset=9)
        known = MessageRow(MessageStage.ARRIVED, b"digest", 3, 70_000_000_000)
        assert await answered(rig.state.arrive([self.FIRST, again])) == [None, known]
        assert await rig.state.messages([self.ID, MessageId("github", "m-2")]) == [known, None]

    async def test_stages_of_a_message_only_rise(self, rig: Rig) -> None:
        await answered(rig.state.arrive([structs.replace(self.FIRST, stage=MessageStage.ACCEPTED)]))
        (before,) = await answered(rig.state.arrive([self.FIRST]))
        assert before is not None
        assert before.stage is MessageStage.ACCEPTED
        (before,) = await answered(rig.state.arrive([structs.replace(self.FIRST, stage=MessageStage.ACCEPTED)]))
        assert present(before).stage is MessageStage.ARRIVED

    async def test_the_record_that_is_read_first_is_the_first(self, rig: Rig) -> None:
        """One that was accepted before may have been deleted unread."""
        accepted, read = (
            structs.replace(self.FIRST, stage=stage) for stage in (MessageStage.ACCEPTED, MessageStage.ARRIVED)
        )
        other = structs.replace(read, digest=b"other.", offset=8)
        later = structs.replace(read, partition=300, offset=9)
        await answered(rig.state.arrive([accepted]))
        first = MessageRow(MessageStage.ACCEPTED, b"digest", 3, 70_000_000_000)
        second = MessageRow(MessageStage.ARRIVED, b"digest", 300, 9)
        again = structs.replace(later, offset=10)
        assert await answered(rig.state.arrive([later, again])) == [first, second]
        assert await rig.state.messages([self.ID]) == [second]
        await answered(rig.state.arrive([structs.replace(accepted, id=MessageId("github", "m-3"))]))
        await answered(rig.state.arrive([structs.replace(other, id=MessageId("github", "m-3"))]))
        assert await rig.state.messages([MessageId("github", "m-3")]) == [
            structs.replace(first, stage=MessageStage.ARRIVED)
        ]

    async def test_enqueued_keeps_the_first_arrival_and_is_repeatable(self, rig: Rig) -> None:
        await answered(rig.state.arrive([self.FIRST]))
        await answered(rig.state.enqueued([structs.replace(self.FIRST, offset=1)]))
        await answered(rig.state.enqueued([structs.replace(self.FIRST, offset=2)]))
        done = MessageRow(MessageStage.ENQUEUED, b"digest", 3, 70_000_000_000)
        assert await answered(rig.state.arrive([structs.replace(self.FIRST, offset=3)])) == [done]

    async def test_enqueued_says_nothing_of_another_message_with_the_same_id(self, rig: Rig) -> None:
        other = structs.replace(self.FIRST, digest=b"other.", offset=9)
        await answered(rig.state.arrive([other]))
        await answered(rig.state.enqueued([self.FIRST]))
        arrived = MessageRow(MessageStage.ARRIVED, b"other.", other.partition, other.offset)
        assert await rig.state.messages([self.ID]) == [arrived]
        await answered(rig.state.enqueued([structs.replace(other, digest=b"newer.")]))
        (row,) = await rig.state.messages([self.ID])
        assert row is not None
        assert (row.stage, row.digest) == (MessageStage.ENQUEUED, b"other.")

    async def test_enqueued_needs_no_row(self, rig: Rig) -> None:
        wide = structs.replace(self.FIRST, partition=1000, offset=2**52)
        await answered(rig.state.enqueued([wide]))
        assert await rig.state.messages([self.ID]) == [
            MessageRow(MessageStage.ENQUEUED, b"digest", wide.partition, wide.offset)
        ]

    @pytest.mark.parametrize("partition", [3, 300])
    async def test_a_message_without_a_receiver_is_remembered_as_such(self, rig: Rig, partition: int) -> None:
        first = structs.replace(self.FIRST, partition=partition)
        done = MessageRow(MessageStage.ENQUEUED, b"digest", partition, first.offset, excluded=True)
        await answered(rig.state.arrive([first]))
        for digest in (b"newer.", b"digest", b"digest"):
            await answered(rig.state.enqueued([structs.replace(first, digest=digest, excluded=True)]))
            assert await rig.state.messages([self.ID]) == [done]
        assert await answered(rig.state.arrive([first])) == [done]
        other = structs.replace(first, id=MessageId("github", "m-2"), excluded=True)
        await answered(rig.state.enqueued([other]))
        assert await rig.state.messages([other.id, self.ID]) == [done, done]

    async def test_a_finished_message_is_forgotten_between_1_and_1_5_windows(self, rig: Rig) -> None:
        await answered(rig.state.enqueued([self.FIRST]))
        await rig.elapse(WINDOW_S - 1)
        assert await rig.state.messages([self.ID]) != [None]
        await rig.elapse(WINDOW_S / 2 + 1)
        assert await rig.state.messages([self.ID]) == [None]

    async def test_a_message_that_arrives_again_is_remembered_from_then_on(self, rig: Rig) -> None:
        await answered(rig.state.arrive([self.FIRST]))
        await rig.elapse(WINDOW_S - 1)
        (known,) = await answered(rig.state.arrive([self.FIRST]))
        await rig.elapse(WINDOW_S - 1)
        assert await answered(rig.state.arrive([self.FIRST])) == [present(known)]

    async def test_batches_may_be_empty(self, rig: Rig) -> None:
        assert await answered(rig.state.arrive([])) == []
        assert await answered(rig.state.peek([])) == []
        assert await answered(rig.state.begin(of(LANE, []))) == []
        await answered(rig.state.mark([]))


class RowsContract:
    async def test_an_unknown_row_is_none(self, rig: Rig) -> None:
        assert await answered(rig.state.peek([row()])) == [Row()]
        assert await answered(rig.state.intake(of(LANE, [IntakeRequest(row(), 0, b"q" * 12)]))) == [Row()]

    async def test_a_delivery_from_intent_to_done(self, rig: Rig) -> None:
        key = row()
        assert await begun(rig.state, key) == Go(1, 0.0)
        assert (await peeked(rig.state, key)).stage is Stage.SENDING
        now = await settled(rig.state, key, Change.RESULT, last_status=200, result=ANSWER)
        assert (now.stage, now.attempts, now.last_status, now.result) == (Stage.RESULT, 1, 200, ANSWER)
        assert await answered(rig.state.intake(of(LANE, [IntakeRequest(key, 0, None)]))) == [now]
        await answered(rig.state.mark([Mark(key, 0, Stage.PUBLISHED, (3, 2**40))]))
        now = await peeked(rig.state, key)
        assert (now.stage, now.at, now.result) == (Stage.PUBLISHED, (3, 2**40), None)
        await answered(rig.state.mark([Mark(key, 0, Stage.DONE, None, 9)]))
        done = Row(Stage.DONE, attempts=1, last_status=200, at=(3, 2**40), code=9)
        assert await peeked(rig.state, key) == done
        assert await begun(rig.state, key, b"t2") == AlreadySettled(done)

    async def test_a_finished_row_keeps_what_it_has_room_for(self, rig: Rig) -> None:
        keys = [row(number) for number in range(4)]
        marks = [
            Mark(keys[0], 0, Stage.DONE),
            Mark(keys[1], 3, Stage.FAILED, (299, 0), 255),
            Mark(keys[2], 0, Stage.DONE, (0, 255), 1),
            Mark(keys[3], 60_000, Stage.DONE, (255, 2**53 - 1)),
        ]
        await answered(rig.state.mark(marks))
        assert await answered(rig.state.peek(keys)) == [
            Row(Stage.DONE),
            Row(Stage.FAILED, generation=3, at=(299, 0), code=255),
            Row(Stage.DONE, at=(0, 255), code=1),
            Row(Stage.DONE, generation=60_000, at=(255, 2**53 - 1)),
        ]

    async def test_the_same_token_gets_the_same_verdict(self, rig: Rig) -> None:
        assert await answered(rig.state.begin(of(LANE, [ask(row()), ask(row())]))) == [Go(1, 0.0), Go(1, 0.0)]
        assert (await peeked(rig.state, row())).attempts == 1

    async def test_a_late_repeat_of_a_settled_attempt_starts_nothing(self, rig: Rig) -> None:
        for change in (Change.RETRY, Change.RELEASED, Change.DOUBT):
            key = row(list(Change).index(change))
            await begun(rig.state, key)
            before = await settled(rig.state, key, change)
            assert isinstance(await begun(rig.state, key), Wait)
            assert await peeked(rig.state, key) == before

    async def test_an_end_for_what_was_never_sent_is_stored_only_then(self, rig: Rig) -> None:
        fresh, under_way, released, failed, again = map(row, range(1, 6))
        for key in (under_way, released, failed):
            await begun(rig.state, key)
        await settled(rig.state, released, Change.RELEASED)
        await settled(rig.state, failed, Change.RETRY, due_in_s=100)
        end = Result("dead", reason="cancelled", detail="d")
        rows = {
            key: await settled(rig.state, key, Change.RESULT, b"", result=end, unsent_ms=0)
            for key in (fresh, under_way, released, failed, again)
        }
        stages = [rows[key].stage for key in (fresh, under_way, released, failed, again)]
        assert stages == [Stage.RESULT, Stage.SENDING, Stage.RESULT, Stage.ENQUEUED, Stage.RESULT]
        assert rows[fresh].result == end
        assert await settled(rig.state, again, Change.RESULT, b"", result=end, unsent_ms=0) == rows[again]
        for key in (fresh, released, again):
            verdict = await begun(rig.state, key, b"t2", unseen=key is fresh)
            assert verdict == (LookedUp(rows[key]) if key is fresh else AlreadySettled(rows[key])), "it is never sent"
        assert (await settled(rig.state, under_way, Change.RESULT, result=ANSWER)).result == ANSWER

    async def test_a_life_that_has_not_begun_can_be_ended_after_a_former_one(self, rig: Rig) -> None:
        end = Result("dead", reason="discarded", detail="d")
        for number, generation in ((1, 1), (2, 0)):
            await answered(rig.state.mark([Mark(row(number), 0, Stage.FAILED, (3, 7))]))
            ended = await settled(
                rig.state, row(number), Change.RESULT, b"", generation=generation, result=end, unsent_ms=0
            )
            assert (ended.stage is Stage.RESULT) == (generation == 1)
        assert await begun(rig.state, row(1), generation=1) == AlreadySettled(await peeked(rig.state, row(1)))
        await answered(rig.state.mark([Mark(row(1), 1, Stage.FAILED, (4, 8))]))
        assert (await peeked(rig.state, row(1))).at == (4, 8)

    async def test_after_a_loss_a_missing_row_says_only_of_what_came_later_that_it_was_not_sent(self, rig: Rig) -> None:
        earlier_ms = round(await rig.state.time() * 1000)
        await rig.elapse(1)
        await begun(rig.state, row(1))
        await rig.lose_and_recover(in_doubt_s=100)
        await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
        await rig.elapse(1)
        now_ms = round(await rig.state.time() * 1000)
        end = Result("dead", reason="cancelled", detail="d")

        async def ended(key: RowKey, unsent_ms: int) -> bool:
            return (await settled(rig.state, key, Change.RESULT, b"", result=end, unsent_ms=unsent_ms)).result == end

        assert not await ended(row(1), earlier_ms), "it was sent"
        assert await ended(row(2), now_ms)
        await rig.elapse(100)
        assert await ended(row(3), earlier_ms), "what was sent before has ended since"

    async def test_a_failure_without_an_attempt_waits_until_lost_rows_are_back(self, rig: Rig) -> None:
        await begun(rig.state, row(1))
        await rig.lose_and_recover(in_doubt_s=100)
        await begun(rig.state, row(2))
        dead = Result("dead", reason="expired", detail="d")

        async def ended(key: RowKey, token: bytes = b"", result: Result = dead) -> bool:
            stored = await settled(rig.state, key, Change.RESULT, token, result=result, reason=result.reason)
            return stored.result == result

        assert not await ended(row(1))
        assert await peeked(rig.state, row(1)) == Row()
        assert await ended(row(2), b"t1"), "its response says so"
        assert await ended(row(3), result=ANSWER)
        await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
        assert await ended(row(1))

    async def test_a_failure_waits_while_an_attempt_may_still_arrive(self, rig: Rig) -> None:
        dead = Result("dead", reason="expired")

        async def ends_in(key: RowKey, token: bytes = b"", **changes: object) -> float:
            how: dict[str, object] = {"result": dead, "reason": "expired", "settle_s": 25.0, **changes}
            now = await settled(rig.state, key, Change.RESULT, token, **how)
            assert now.result == dead
            return now.due_in_s

        keys = under_way, doubtful, unheard, between, refused, released, silent, answered_ = [row(n) for n in range(8)]
        for key in keys:
            await begun(rig.state, key)
        await settled(rig.state, doubtful, Change.DOUBT)
        await settled(rig.state, unheard, Change.RETRY, may_arrive=True)
        await settled(rig.state, between, Change.RETRY, may_arrive=True)
        await settled(rig.state, refused, Change.RETRY)
        await settled(rig.state, released, Change.RELEASED)
        await rig.elapse(10)
        await begun(rig.state, between, b"t2")
        assert [await ends_in(key) for key in (under_way, doubtful, unheard, refused, released)] == [15, 15, 15, 0, 0]
        assert await ends_in(between, b"t2") == 15, "of the one before"
        assert await ends_in(silent, b"t1", may_arrive=True) == 15
        assert await ends_in(answered_, b"t1") == 0
        assert await ends_in(row(8)) == 0, "it was never sent"
        await rig.elapse(10)
        assert await ends_in(silent, b"t1", may_arrive=True) == 5, "a repeat changes nothing"
        await rig.elapse(5)
        assert [(await peeked(rig.state, key)).due_in_s for key in keys] == [0] * 8

    async def test_after_a_loss_a_failure_waits_for_attempts_that_were_lost(self, rig: Rig) -> None:
        await rig.lose_and_recover(in_doubt_s=100)
        await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
        dead: dict[str, object] = {"result": Result("dead", reason="expired"), "reason": "expired", "settle_s": 25.0}
        assert 0 < (await settled(rig.state, row(1), Change.RESULT, b"", **dead)).due_in_s <= 25
        await rig.elapse(25)
        assert (await settled(rig.state, row(2), Change.RESULT, b"", **dead)).due_in_s == 0

    async def test_an_attempt_of_another_settles_and_is_then_ambiguous(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await rig.elapse(10)
        assert await begun(rig.state, row(), b"t2") == Wait(15.0, "settling")
        await rig.elapse(15)
        doubt = await doubt_of(rig.state, row())
        assert await begun(rig.state, row(), b"t2") == AmbiguousAttempt(1, doubt)
        assert await begun(rig.state, row(), b"t2", resolved=doubt) == Go(2, 0.0)

    async def test_a_resolution_is_about_one_attempt_and_holds_until_the_next(self, rig: Rig) -> None:
        limits = replace(LIMITS, interval_s=100.0)
        await begun(rig.state, row())
        await rig.elapse(25)
        doubt = await doubt_of(rig.state, row())
        await begun(rig.state, row(2), limits=limits)
        assert await begun(rig.state, row(), b"t2", resolved=doubt, limits=limits) == Wait(99.0, "rate")
        await rig.elapse(200)
        assert await begun(rig.state, row(), b"t2", resolved=doubt, limits=limits) == Go(2, 0.0)
        assert await begun(rig.state, row(), b"t3", resolved=doubt) == Wait(25.0, "settling")
        await settled(rig.state, row(), Change.DOUBT, b"t2")
        await rig.elapse(25)
        later = await doubt_of(rig.state, row())
        assert await begun(rig.state, row(), b"t3", resolved=doubt) == AmbiguousAttempt(2, later)
        assert later == doubt + 225_000

    async def test_doubt_stays_until_somebody_takes_over(self, rig: Rig) -> None:
        await begun(rig.state, row())
        now = await settled(rig.state, row(), Change.DOUBT, due_in_s=5, last_status=504, reason="gateway")
        assert now == Row(Stage.SENDING, attempts=1, due_in_s=5.0, last_status=504, reason="gateway")
        assert await begun(rig.state, row(), b"t2") == Wait(25.0, "settling")
        await rig.elapse(25)
        await doubt_of(rig.state, row())

    async def test_a_released_takeover_leaves_the_earlier_attempt_in_doubt(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await rig.elapse(25)
        doubt = await doubt_of(rig.state, row())
        await taken_over(rig.state, row(), b"t2")
        assert (await settled(rig.state, row(), Change.RELEASED, b"t2")).stage is Stage.SENDING
        assert await begun(rig.state, row(), b"t3") == AmbiguousAttempt(1, doubt)
        assert await begun(rig.state, row(), b"t3", resolved=doubt) == Go(2, 0.0)

    async def test_retry_waits_but_may_be_asked_earlier(self, rig: Rig) -> None:
        await begun(rig.state, row())
        now = await settled(rig.state, row(), Change.RETRY, due_in_s=40, last_status=500, reason="r")
        assert now == Row(Stage.ENQUEUED, attempts=1, due_in_s=40.0, last_status=500, reason="r")
        await rig.elapse(15)
        assert (await peeked(rig.state, row())).due_in_s == pytest.approx(25)
        assert await begun(rig.state, row(), b"t2") == Go(2, 0.0)

    async def test_what_never_started_or_was_not_counted_is_no_attempt(self, rig: Rig) -> None:
        await begun(rig.state, row())
        assert await settled(rig.state, row(), Change.RELEASED) == Row()
        assert await begun(rig.state, row(), b"t2") == Go(1, 0.0)
        assert (await settled(rig.state, row(), Change.RETRY, b"t2", counted=False)).attempts == 0
        assert await begun(rig.state, row(), b"t3") == Go(1, 0.0)

    async def test_an_attempt_that_its_owner_released_later_is_not_counted_by_the_next_owner(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await settled(rig.state, row(), Change.RELEASED)
        assert await begun(rig.state, row(), b"t2", attempts=1) == Go(1, 0.0)
        await settled(rig.state, row(), Change.RETRY, b"t2")
        await begun(rig.state, row(), b"t3", attempts=1)
        await settled(rig.state, row(), Change.RELEASED, b"t3")
        assert await begun(rig.state, row(), b"t4", attempts=2) == Go(2, 0.0)

    async def test_after_a_loss_the_greater_count_of_attempts_counts(self, rig: Rig) -> None:
        await rig.lose_and_recover(in_doubt_s=100)
        assert await begun(rig.state, row()) == Go(1, 0.0)
        await settled(rig.state, row(), Change.RETRY)
        assert await begun(rig.state, row(), b"t2", attempts=3) == Go(4, 0.0)

    async def test_the_records_own_count_of_attempts_counts(self, rig: Rig) -> None:
        assert await begun(rig.state, row(), attempts=4) == Go(5, 0.0)
        await settled(rig.state, row(), Change.RETRY)
        assert await begun(rig.state, row(), b"t2", attempts=2) == Go(6, 0.0)

    async def test_only_the_current_attempt_may_retry_release_or_doubt(self, rig: Rig) -> None:
        await begun(rig.state, row(), b"old")
        await rig.elapse(25)
        await taken_over(rig.state, row(), b"new")
        before = await peeked(rig.state, row())
        for change in (Change.RETRY, Change.RELEASED, Change.DOUBT):
            for token in (b"old", b"", b"unknown"):
                assert await settled(rig.state, row(), change, token) == before

    async def test_an_answer_counts_from_a_former_owner_too(self, rig: Rig) -> None:
        await begun(rig.state, row(), b"old")
        await rig.elapse(25)
        await taken_over(rig.state, row(), b"new")
        now = await settled(rig.state, row(), Change.ACCEPTED, b"old", result=Result("accepted"))
        assert (now.stage, now.attempts, now.result) == (Stage.ACCEPTED, 2, Result("accepted"))
        assert await settled(rig.state, row(), Change.RETRY, b"new") == now
        assert (await settled(rig.state, row(), Change.RESULT, b"new", result=ANSWER)).result == ANSWER
        assert (await settled(rig.state, row(), Change.RESULT, b"", result=Result("delivered"))).result == ANSWER

    async def test_the_attempt_under_way_is_told_only_what_it_cannot_know(self, rig: Rig) -> None:
        for number, change in enumerate(set(Change) - {Change.STEP}):
            key = row(number)
            await begun(rig.state, key)
            told = outcome(key, change, last_status=500, reason="r", result=ANSWER)
            assert await answered(rig.state.settle([told])) == [None]
            assert await answered(rig.state.settle([told])) == [await peeked(rig.state, key)]

    async def test_who_is_not_the_attempt_under_way_is_told_the_row(self, rig: Rig) -> None:
        await begun(rig.state, row(), b"old")
        await rig.elapse(25)
        await taken_over(rig.state, row(), b"new")
        for token in (b"old", b""):
            (told,) = await answered(rig.state.settle([outcome(row(), Change.ACCEPTED, token, result=ANSWER)]))
            assert told is not None
            assert (told.stage, told.attempts, told.result) == (Stage.ACCEPTED, 2, ANSWER)
        assert await answered(rig.state.settle([outcome(row(2), Change.RETRY)])) == [Row()]

    async def test_an_intent_to_park_is_always_told(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await answered(rig.state.intend_to_park(of(LANE, [row()])))
        (told,) = await answered(rig.state.settle([outcome(row(), Change.RESULT, result=ANSWER)]))
        assert present(told).park_intent

    async def test_an_answer_counts_without_a_row(self, rig: Rig) -> None:
        now = await settled(rig.state, row(), Change.RESULT, b"", result=ANSWER)
        assert (now.stage, now.result) == (Stage.RESULT, ANSWER)

    @pytest.mark.parametrize("lower", [Stage.AWAITING, Stage.PUBLISHED, Stage.DONE])
    async def test_stages_never_fall(self, rig: Rig, lower: Stage) -> None:
        await answered(rig.state.mark([Mark(row(), 0, Stage.FAILED, (1, 2), 3)]))
        before = await peeked(rig.state, row())
        await answered(rig.state.mark([Mark(row(), 0, lower, (4, 5), 6)]))
        await settled(rig.state, row(), Change.RESULT, b"", result=ANSWER)
        assert await peeked(rig.state, row()) == before
        assert await begun(rig.state, row()) == AlreadySettled(before)

    async def test_a_higher_generation_is_a_new_life_and_a_lower_one_stale(self, rig: Rig) -> None:
        await answered(rig.state.mark([Mark(row(), 0, Stage.DONE, (1, 1))]))
        assert await answered(rig.state.intake(of(LANE, [IntakeRequest(row(), 1, None)]))) == [Row()]
        assert await begun(rig.state, row(), generation=1) == Go(1, 0.0)
        assert await begun(rig.state, row(), b"t2") == Stale(1)
        now = await peeked(rig.state, row())
        assert (now.stage, now.generation) == (Stage.SENDING, 1)
        await answered(rig.state.mark([Mark(row(), 0, Stage.FAILED)]))
        assert await settled(rig.state, row(), Change.RESULT, result=ANSWER) == now
        assert await answered(rig.state.intake(of(LANE, [IntakeRequest(row(), 0, None)]))) == [now]
        await answered(rig.state.mark([Mark(row(), 1, Stage.DONE, (2, 2))]))
        assert await peeked(rig.state, row()) == Row(Stage.DONE, generation=1, attempts=1, at=(2, 2))

    async def test_polls_count_apart_and_end_with_the_result(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await settled(rig.state, row(), Change.ACCEPTED, result=Result("accepted"))
        await answered(rig.state.mark([Mark(row(), 0, Stage.AWAITING)]))
        assert await begun(rig.state, row(), b"p1", kind=CallKind.POLL) == Go(1, 0.0)
        assert await begun(rig.state, row(), b"p1", kind=CallKind.POLL) == Go(1, 0.0)
        assert await begun(rig.state, row(), b"p2", kind=CallKind.POLL) == Go(2, 0.0)
        assert await peeked(rig.state, row()) == Row(Stage.AWAITING, attempts=1, polls=2)
        now = await settled(rig.state, row(), Change.RESULT, b"", result=ANSWER)
        assert await begun(rig.state, row(), b"p3", kind=CallKind.POLL) == AlreadySettled(now)

    async def test_an_awaiting_row_knows_the_step_that_is_asked(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await settled(rig.state, row(), Change.STEP, b"", reason="step 2 of 2")
        assert (await peeked(rig.state, row())).reason is None
        await settled(rig.state, row(), Change.ACCEPTED, result=Result("accepted"))
        await answered(rig.state.mark([Mark(row(), 0, Stage.AWAITING)]))
        await begun(rig.state, row(), b"p1", kind=CallKind.POLL)
        await settled(rig.state, row(), Change.STEP, b"", reason="step 2 of 2")
        assert await peeked(rig.state, row()) == Row(Stage.AWAITING, attempts=1, polls=1, reason="step 2 of 2")
        await begun(rig.state, row(), b"p2", kind=CallKind.POLL)
        assert await peeked(rig.state, row()) == Row(Stage.AWAITING, attempts=1, polls=2, reason="step 2 of 2")
        await settled(rig.state, row(), Change.RESULT, b"", result=ANSWER)
        assert (await peeked(rig.state, row())).reason is None

    async def test_a_row_outlives_the_window_from_its_last_change(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await rig.elapse(WINDOW_S - 1)
        await settled(rig.state, row(), Change.RETRY)
        await rig.elapse(WINDOW_S - 1)
        assert (await peeked(rig.state, row())).attempts == 1
        await answered(rig.state.mark([Mark(row(), 0, Stage.DONE)]))
        await rig.elapse(WINDOW_S)
        assert (await peeked(rig.state, row())).stage is Stage.DONE
        await rig.elapse(WINDOW_S / 2)
        assert await peeked(rig.state, row()) == Row()

    async def test_forget_drops_the_unfinished_only(self, rig: Rig) -> None:
        keys = [callback_row(DeliveryId("ci", "github", "m"), 0, failed=failed) for failed in (False, True)]
        await answered(rig.state.begin(of(LANE, [ask(keys[0])])))
        await answered(rig.state.mark([Mark(keys[1], 0, Stage.DONE)]))
        await answered(rig.state.forget(keys))
        assert [now.stage for now in await answered(rig.state.peek(keys))] == [Stage.NONE, Stage.DONE]

    async def test_a_newer_owner_fences_begin_and_the_highest_epoch_stays(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(LANE._replace(epoch=8), [ask(row())])))
        for epoch in (7, 1):
            with pytest.raises(PartitionLost):
                await answered(rig.state.begin(of(LANE._replace(epoch=epoch), [ask(row(2))])))
        assert await peeked(rig.state, row(2)) == Row()
        await answered(rig.state.begin(of(LANE._replace(partition=1, epoch=1), [ask(row(3))])))

    async def test_a_batch_over_many_tags_keeps_its_order(self, rig: Rig) -> None:
        keys = [row(number, f"receiver-{number}") for number in range(200)]
        await answered(rig.state.mark([Mark(key, 0, Stage.DONE, (0, number)) for number, key in enumerate(keys)]))
        assert [now.at for now in await answered(rig.state.peek(keys))] == [(0, number) for number in range(200)]

    async def test_of_many_concurrent_callers_one_begins(self, rig: Rig) -> None:
        verdicts = await asyncio.gather(*(begun(rig.state, row(), b"t%d" % number) for number in range(50)))
        assert sum(isinstance(verdict, Go) for verdict in verdicts) == 1
        assert verdicts.count(Wait(25.0, "settling")) == 49
