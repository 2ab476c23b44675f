"""Contract tests of the state port: begin requests for deliveries that were not looked up before. Subclasses provide
`rig`."""

from dataclasses import replace

import pytest

from relay.domain.hold import Hold
from relay.state.attempts import CallKind, Change, Go, LookedUp, PingDue, Verdict, Wait
from relay.state.port import IntakeRequest
from relay.state.replies import Fenced, answered, of
from relay.state.rows import TAGS, Mark, ParkedLife, Row, RowKey, Stage
from tests.contract.state_contract import ANSWER, LANE, LIMITS, Rig, ask, begun, outcome, peeked, row, settled
from tests.contract.state_parking_contract import QUEUE, TAG, parked

OTHER_QUEUE = b"other-queue-"


async def unseen(
    rig: Rig, *keys: RowKey, queue: bytes | None = QUEUE, token: bytes = b"u", **changes: object
) -> list[Verdict]:
    asks = [ask(key, token + key.digest, unseen=True, queue=queue, **changes) for key in keys]
    return await answered(rig.state.begin(of(LANE, asks)))


async def looked_up(rig: Rig, key: RowKey, generation: int = 0) -> LookedUp:
    """The expected verdict, with the reply of intake."""
    (found,) = await answered(rig.state.intake(of(LANE, [IntakeRequest(key, generation, QUEUE)])))
    return LookedUp(found)


class UnseenContract:
    async def test_what_nothing_is_known_of_is_begun(self, rig: Rig) -> None:
        assert await unseen(rig, row(1), row(2)) == [Go(1, 0.0)] * 2
        assert (await peeked(rig.state, row(1))).stage is Stage.SENDING
        assert await unseen(rig, row(3), attempts=4) == [Go(5, 0.0)]

    async def test_what_nothing_was_known_of_gets_the_same_verdict_by_the_same_token(self, rig: Rig) -> None:
        for _ in range(2):
            assert await unseen(rig, row(1), row(2)) == [Go(1, 0.0)] * 2
            assert await unseen(rig, row(3), kind=CallKind.POLL) == [Go(1, 0.0)]
        assert (await peeked(rig.state, row(1))).attempts == 1

    async def test_the_lost_reply_of_an_attempt_is_told_again_whatever_came_since(self, rig: Rig) -> None:
        assert await unseen(rig, row(1)) == [Go(1, 0.0)]
        await answered(rig.state.park(of(LANE, [parked(2, queue=QUEUE)])))
        await answered(rig.state.intend_to_park(of(LANE, [row(1)])))
        assert await unseen(rig, row(1)) == [Go(1, 0.0)]

    @pytest.mark.parametrize("stage", [Stage.AWAITING, Stage.PUBLISHED, Stage.DONE, Stage.FAILED])
    async def test_what_is_marked_is_only_looked_up(self, rig: Rig, stage: Stage) -> None:
        await answered(rig.state.mark([Mark(row(), 0, stage, (1, 2))]))
        assert await unseen(rig, row()) == [await looked_up(rig, row())]
        assert (await peeked(rig.state, row())).stage is stage

    @pytest.mark.parametrize("change", list(Change))
    async def test_what_was_tried_is_only_looked_up(self, rig: Rig, change: Change) -> None:
        await begun(rig.state, row())
        await settled(rig.state, row(), change, due_in_s=9, last_status=500, reason="r", result=ANSWER)
        assert await unseen(rig, row()) == [await looked_up(rig, row())]

    async def test_what_is_under_way_is_only_looked_up(self, rig: Rig) -> None:
        await begun(rig.state, row(), b"another")
        assert await unseen(rig, row()) == [LookedUp(Row(Stage.SENDING, attempts=1))]

    async def test_a_later_life_is_looked_up_and_an_earlier_one_is_nothing(self, rig: Rig) -> None:
        await answered(rig.state.mark([Mark(row(), 1, Stage.DONE)]))
        assert await unseen(rig, row()) == [await looked_up(rig, row())]
        assert await unseen(rig, row(), generation=2) == [Go(1, 0.0)]

    async def test_an_intent_to_park_is_looked_up(self, rig: Rig) -> None:
        await answered(rig.state.intend_to_park(of(LANE._replace(topic="another"), [row()])))
        assert await unseen(rig, row(), row(2)) == [LookedUp(Row(park_intent=True)), LookedUp(Row())]
        assert await unseen(rig, row(3)) == [Go(1, 0.0)]

    async def test_what_is_kept_and_what_comes_behind_it_are_looked_up(self, rig: Rig) -> None:
        await answered(rig.state.park(of(LANE, [parked(1, queue=QUEUE)])))
        assert await unseen(rig, row(1), row(2)) == [LookedUp(Row(kept=True, behind=1)), LookedUp(Row(behind=1))]
        assert await unseen(rig, row(3), queue=OTHER_QUEUE) == [Go(1, 0.0)]
        assert await unseen(rig, row(4), queue=None) == [Go(1, 0.0)]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(row(1), 0, QUEUE)])))
        assert await unseen(rig, row(2)) == [Go(1, 0.0)]

    async def test_what_another_lane_has_parked_does_not_matter(self, rig: Rig) -> None:
        await answered(rig.state.park(of(LANE._replace(partition=1), [parked(1, queue=QUEUE)])))
        assert await unseen(rig, row(1), row(2)) == [Go(1, 0.0)] * 2

    async def test_behind_one_that_was_not_begun_nothing_of_its_order_key_is(self, rig: Rig) -> None:
        await answered(rig.state.mark([Mark(row(2), 0, Stage.DONE)]))
        keys = [(1, QUEUE), (2, QUEUE), (3, OTHER_QUEUE), (4, QUEUE), (5, None)]
        asks = [ask(row(n), b"u-%d" % n, unseen=True, queue=queue) for n, queue in keys]
        verdicts = await answered(rig.state.begin(of(LANE, asks)))
        go = Go(1, 0.0)
        assert verdicts == [go, LookedUp(Row(Stage.DONE)), go, LookedUp(Row()), go]
        assert await answered(rig.state.begin(of(LANE, asks))) == verdicts
        assert await peeked(rig.state, row(4)) == Row()

    async def test_the_verdict_of_one_that_was_looked_up_before_counts_for_those_behind_it(self, rig: Rig) -> None:
        await begun(rig.state, row(1), b"another")
        asks = [ask(row(1), b"a", queue=QUEUE), ask(row(2), b"b", unseen=True, queue=QUEUE)]
        assert await answered(rig.state.begin(of(LANE, asks))) == [Wait(25.0, "settling"), LookedUp(Row())]

    async def test_what_may_not_go_yet_is_told_so_and_those_behind_it_are_looked_up(self, rig: Rig) -> None:
        await rig.state.hold("r:ci", Hold("paused", 0.0, ""))
        first, second = await unseen(rig, row(1), row(2))
        assert (isinstance(first, Wait) and first.why, second) == ("pause", LookedUp(Row()))
        assert await peeked(rig.state, row(1)) == Row()

    async def test_it_keeps_to_the_rate_and_what_is_looked_up_takes_no_slot(self, rig: Rig) -> None:
        limits = replace(LIMITS, interval_s=0.6)
        await answered(rig.state.mark([Mark(row(n), 0, Stage.DONE) for n in (1, 2, 3)]))
        verdicts = await unseen(rig, *map(row, range(1, 7)), queue=None, limits=limits)
        assert verdicts[:3] == [LookedUp(Row(Stage.DONE))] * 3
        assert [pytest.approx(each.start_in_s) for each in verdicts[3:5] if isinstance(each, Go)] == [0, 0.6]
        assert isinstance(verdicts[5], Wait)
        assert verdicts[5].why == "rate"

    async def test_what_is_looked_up_takes_no_room(self, rig: Rig) -> None:
        await answered(rig.state.mark([Mark(row(1), 0, Stage.DONE)]))
        verdicts = await unseen(rig, row(1), row(2), row(3), queue=None, room=1)
        assert verdicts == [LookedUp(Row(Stage.DONE)), Go(1, 0.0), Wait(1.0, "backlog", fresh=True)]

    async def test_it_may_be_the_probe_or_the_ping_that_what_is_looked_up_is_not(self, rig: Rig) -> None:
        for n in (11, 12, 13):
            await begun(rig.state, row(n))
        await answered(
            rig.state.settle([outcome(row(n), Change.RETRY, healthy=False, last_status=500) for n in (11, 12, 13)])
        )
        await rig.elapse(LIMITS.breaker.open_for)
        verdicts = await unseen(rig, row(11), row(1), row(2), queue=None)
        assert isinstance(verdicts[0], LookedUp)
        assert verdicts[1:] == [Go(1, 0.0), Wait(1.0, "breaker")]
        await settled(rig.state, row(1), Change.RETRY, b"u" + row(1).digest, healthy=False)
        await rig.elapse(LIMITS.breaker.offline.after)
        for _ in range(2):
            (verdict,) = await unseen(rig, row(3), queue=None)
            assert isinstance(verdict, PingDue)

    async def test_a_former_owner_begins_nothing(self, rig: Rig) -> None:
        await begun(rig.state, row(1))
        former = LANE._replace(epoch=LANE.epoch - 1)
        assert await rig.state.begin(of(former, [ask(row(2), unseen=True)])) == [Fenced()]
        assert await peeked(rig.state, row(2)) == Row()

    async def test_in_doubt_after_a_loss_and_while_there_is_a_gap_it_is_looked_up(self, rig: Rig) -> None:
        await rig.lose_and_recover(in_doubt_s=500)
        assert await unseen(rig, row(1)) == [LookedUp(Row())]
        assert await begun(rig.state, row(2)) == Go(1, 0.0), "who has looked it up may"
        await rig.state.close_gaps(await rig.state.gaps([TAG]))
        assert await unseen(rig, row(1)) == [LookedUp(Row())]
        await rig.elapse(500)
        assert await unseen(rig, row(1)) == [Go(1, 0.0)]

    async def test_a_gap_alone_is_enough(self, rig: Rig) -> None:
        await rig.lose_and_recover(in_doubt_s=5)
        await rig.elapse(5)
        assert await unseen(rig, row(1)) == [LookedUp(Row())]
        await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
        assert await unseen(rig, row(1)) == [Go(1, 0.0)]

    async def test_a_poll_of_what_waits_for_its_answer_is_looked_up(self, rig: Rig) -> None:
        await answered(rig.state.mark([Mark(row(1), 0, Stage.AWAITING)]))
        assert await unseen(rig, row(1), kind=CallKind.POLL) == [LookedUp(Row(Stage.AWAITING))]
        assert (await peeked(rig.state, row(1))).polls == 0

    async def test_one_call_takes_as_many_as_there_are(self, rig: Rig) -> None:
        keys = [row(n) for n in range(2_000)]
        assert await unseen(rig, *keys, queue=None) == [Go(1, 0.0)] * len(keys)
        assert {each.stage for each in await answered(rig.state.peek(keys))} == {Stage.SENDING}
