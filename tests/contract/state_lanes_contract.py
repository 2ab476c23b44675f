"""Contract tests of the state port: calls for many lanes at once, none of which affects the others. Subclasses provide
`rig`."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from relay.domain.errors import StateRecovering
from relay.domain.identity import MessageId
from relay.state.attempts import Change, Go
from relay.state.port import Counts, IntakeRequest, Lane
from relay.state.replies import Fenced, Refusal, answered, of
from relay.state.rows import TAGS, Arrival, DueRequest, Mark, ParkedLife, Row, Stage, tag_of
from tests.contract.state_contract import ANSWER, LANE, LIMITS, Rig, ask, outcome, peeked, row
from tests.contract.state_parking_contract import TAG, due, parked

FORMER = LANE._replace(epoch=LANE.epoch - 1)
ELSEWHERE = Lane("to_receiver_other", 3, 1)
OTHER = next(f"other-{n}" for n in range(1000) if tag_of(f"r:other-{n}") != TAG)
OTHER_TAG = tag_of(f"r:{OTHER}")
GO = Go(1, 0.0)


class LanesContract:
    async def test_replies_come_in_the_order_asked(self, rig: Rig) -> None:
        lanes = [Lane("topic", n % 3, n % 3) for n in range(30)]
        keys = [row(n, f"receiver-{n % 5}") for n in range(30)]
        await answered(rig.state.mark([Mark(key, 0, Stage.DONE, (0, n)) for n, key in enumerate(keys) if n % 2]))
        asks = [(lane, IntakeRequest(key, 0, None)) for lane, key in zip(lanes, keys, strict=True)]
        places = [found.at for found in await answered(rig.state.intake(asks))]
        assert places == [(0, n) if n % 2 else None for n in range(30)]

    async def test_a_fenced_lane_spoils_it_for_no_other(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(LANE, [ask(row(1))])))
        both = [(FORMER, row(2)), (ELSEWHERE, row(3)), (FORMER, row(4, OTHER))]
        verdicts = await rig.state.begin([(lane, ask(key)) for lane, key in both])
        assert verdicts == [Fenced(), GO, GO], "another tag has not heard of the new owner"
        assert await peeked(rig.state, row(2)) == Row()
        assert await rig.state.intend_to_park([(FORMER, row(5)), (ELSEWHERE, row(6))]) == [Fenced(), None]
        assert await rig.state.park([(ELSEWHERE, parked(6)), (FORMER, parked(5))]) == [True, Fenced()]
        taken = await rig.state.take_due([(FORMER, DueRequest(TAG, 9)), (ELSEWHERE, DueRequest(TAG, 9))], lease_s=30)
        assert taken == [Fenced(), [due(parked(6))]]

    async def test_lanes_of_one_endpoint_share_its_rate(self, rig: Rig) -> None:
        limits = replace(LIMITS, interval_s=0.4)
        lanes = (LANE, ELSEWHERE, LANE, ELSEWHERE)
        verdicts = await answered(
            rig.state.begin([(lane, ask(row(n), b"t%d" % n, limits=limits)) for n, lane in enumerate(lanes)])
        )
        slots = [round(each.start_in_s, 1) if isinstance(each, Go) else "waits" for each in verdicts]
        assert sorted(map(str, slots)) == ["0.0", "0.4", "0.8", "waits"]

    async def test_due_times_are_told_by_lane_and_tag(self, rig: Rig) -> None:
        mine, theirs = parked(1, due_in_s=40), parked(2, due_in_s=7, receiver=OTHER)
        await answered(rig.state.park([(LANE, mine), (ELSEWHERE, theirs)]))
        asked = [(LANE, TAG), (LANE, OTHER_TAG), (ELSEWHERE, TAG), (ELSEWHERE, OTHER_TAG)]
        assert await rig.state.next_due(asked) == [40.0, None, None, 7.0]
        await rig.elapse(40)
        taken = await rig.state.take_due([(lane, DueRequest(tag, 1)) for lane, tag in asked], lease_s=5)
        assert taken == [[due(mine)], [], [], [due(theirs)]]
        rows = [(ELSEWHERE, ParkedLife(theirs.row, 0)), (LANE, ParkedLife(mine.row, 0))]
        assert await rig.state.unpark(rows) == [False, False]
        assert await rig.state.next_due(asked) == [None] * 4

    async def test_what_is_parked_cannot_be_counted_where_no_tag_is_ready(self, rig: Rig) -> None:
        await rig.lose()
        with pytest.raises(StateRecovering):
            await rig.state.parked_total()

    async def test_a_tag_that_is_not_ready_spoils_it_for_no_other(self, rig: Rig) -> None:
        await rig.lose()
        await rig.state.lost()
        await rig.state.ready([TAG], in_doubt_s=0)
        state, keys = rig.state, [row(1, OTHER), row(1)]
        references = [parked(1, receiver=OTHER), parked(1)]
        sources = [next(f"s-{n}" for n in range(1000) if tag_of(f"s:s-{n}") == tag) for tag in (OTHER_TAG, TAG)]
        arrivals = [Arrival(MessageId(source, "m"), b"digest", 0, 0) for source in sources]

        def second_only(replies: Sequence[object | Refusal], expected: object) -> None:
            refused, told = replies
            assert isinstance(refused, StateRecovering)
            assert refused.tags == {OTHER_TAG}
            assert told == expected

        second_only(await state.arrive(arrivals), None)
        second_only(await state.enqueued(arrivals), None)
        second_only(await state.intake(of(LANE, [IntakeRequest(key, 0, None) for key in keys])), Row())
        second_only(await state.peek(keys), Row())
        second_only(await state.begin(of(LANE, map(ask, keys))), GO)
        second_only(await state.settle([outcome(key, Change.RETRY) for key in keys]), None)
        second_only(await state.intend_to_park(of(LANE, keys)), None)
        second_only(await state.park(of(LANE, references)), True)
        second_only(await state.parked([key.owner for key in keys]), Counts(1, 0))
        assert await state.parked_total() == Counts(1, 0)
        second_only(await state.next_due(of(LANE, (OTHER_TAG, TAG))), 0.0)
        second_only(
            await state.take_due(of(LANE, [DueRequest(tag, 9) for tag in (OTHER_TAG, TAG)]), lease_s=30),
            [due(references[1])],
        )
        second_only(await state.unpark(of(LANE, [ParkedLife(key, 0) for key in keys])), False)
        second_only(
            await state.settle([outcome(key, Change.RESULT, b"", result=ANSWER) for key in keys]),
            await peeked(state, keys[1]),
        )
        second_only(await state.mark([Mark(key, 0, Stage.DONE) for key in keys]), None)
        second_only(await state.forget(keys), None)
        await state.ready(range(TAGS), in_doubt_s=0)
        assert await peeked(state, keys[0]) == Row()
