"""Contract tests of the state's read model. Subclasses provide `rig`."""

from dataclasses import replace

from relay.log.port import Coordinate, TopicPartition
from relay.state.attempts import Change, Go
from relay.state.port import State
from relay.state.read_model import (
    Heartbeat,
    LaneHeartbeat,
    LaneLoad,
    LineHead,
    Openings,
    ParkedHead,
    ParkedLine,
    RowDetails,
    Served,
    Waiting,
)
from relay.state.replies import answered, of
from relay.state.rows import Mark, Parked, ParkedLife, Row, RowKey, Stage
from tests.contract.state_contract import ANSWER, LANE, LIMITS, Rig, begun, outcome, peeked, row, settled

QUEUE = b"github------"
AT = TopicPartition(LANE.topic, LANE.partition)
HEAD = LineHead(QUEUE, row(1).digest, "git\u00e9", "m-1")


async def watched(state: State, key: RowKey) -> RowDetails:
    """What `row_details` returns for one row, which equals what `peek` returns."""
    (found,) = await state.row_details([key])
    assert found.row == await peeked(state, key)
    return found


class ReadModelContract:
    async def test_of_what_nobody_knows_nothing_is_told(self, rig: Rig) -> None:
        assert await watched(rig.state, row()) == RowDetails(Row())

    async def test_an_attempt_under_way_says_since_when(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await rig.elapse(5)
        found = await watched(rig.state, row())
        assert (found.since_s, found.under_way, found.starts_in_s) == (5.0, True, 0.0)

    async def test_one_that_waits_for_its_slot_says_when_it_starts(self, rig: Rig) -> None:
        limits = replace(LIMITS, interval_s=0.5)
        await begun(rig.state, row(1), limits=limits)
        assert await begun(rig.state, row(2), limits=limits) == Go(1, 0.5)
        assert (await watched(rig.state, row(2))).starts_in_s == 0.5
        await rig.elapse(2)
        assert (await watched(rig.state, row(2))).starts_in_s == 0.0

    async def test_after_a_failure_it_says_what_happened(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await rig.elapse(2)
        told = "connection refused\nby ci.example"
        await settled(rig.state, row(), Change.RETRY, due_in_s=60, reason="refused", detail=told)
        await rig.elapse(3)
        found = await watched(rig.state, row())
        assert (found.row.stage, found.row.reason, found.row.due_in_s) == (Stage.ENQUEUED, "refused", 57.0)
        assert (found.since_s, found.under_way, found.detail) == (5.0, False, told)
        await begun(rig.state, row(), b"t2")
        assert (await watched(rig.state, row())).detail == told  # what came of the one before

    async def test_a_reason_alone_has_no_detail(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await settled(rig.state, row(), Change.DOUBT, due_in_s=60, reason="timeout")
        found = await watched(rig.state, row())
        assert (found.row.reason, found.detail, found.since_s) == ("timeout", None, 0.0)

    async def test_an_answer_is_awaited_since_its_record_was_acknowledged(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await rig.elapse(2)
        await settled(rig.state, row(), Change.ACCEPTED, result=ANSWER)
        await answered(rig.state.mark([Mark(row(), 0, Stage.AWAITING)]))
        await rig.elapse(4)
        found = await watched(rig.state, row())
        assert (found.row.stage, found.since_s, found.under_way) == (Stage.AWAITING, 4.0, False)
        await answered(rig.state.settle([outcome(row(), Change.RESULT, b"", result=ANSWER)]))
        await answered(rig.state.mark([Mark(row(), 0, Stage.DONE, (3, 70_000), 5)]))
        assert (await watched(rig.state, row())).since_s is None

    async def test_what_is_parked_and_was_not_tried_says_when_it_is_due(self, rig: Rig) -> None:
        at = Coordinate("parked_messages", 3, 7)
        await answered(rig.state.intend_to_park(of(LANE, [row(1), row(2)])))
        await begun(rig.state, row(2))
        await settled(rig.state, row(2), Change.RETRY, due_in_s=60)
        await answered(
            rig.state.park(of(LANE, [Parked(row(1), 0, at, 600, None, 1), Parked(row(2), 0, at, 600, None, 2)]))
        )
        await rig.elapse(100)
        assert [(await watched(rig.state, row(number))).due_in_s for number in (1, 2, 3)] == [500.0, 0.0, 0.0]
        await rig.elapse(600)
        assert (await watched(rig.state, row(1))).due_in_s == 0.0

    async def test_when_the_next_start_fits_the_rate(self, rig: Rig) -> None:
        assert await rig.state.openings(["r:ci", "r:cd"]) == [Openings(0.0, 0.0)] * 2
        await begun(rig.state, row(1), limits=replace(LIMITS, interval_s=10))
        assert await rig.state.openings(["r:ci", "r:cd"]) == [Openings(10.0, 0.0), Openings(0.0, 0.0)]
        await rig.elapse(11)
        assert await rig.state.openings(["r:ci"]) == [Openings(0.0, 0.0)]

    async def test_when_an_open_breaker_lets_a_probe_through(self, rig: Rig) -> None:
        for number in range(3):
            await begun(rig.state, row(number))
            await settled(rig.state, row(number), Change.RETRY, healthy=False)
        assert await rig.state.openings(["r:ci"]) == [Openings(0.0, 30.0)]
        await rig.elapse(30)
        assert await begun(rig.state, row(9), b"probe") == Go(1, 0.0)
        assert await rig.state.openings(["r:ci"]) == [Openings(0.0, 20.0)]

    async def test_a_sign_of_life_is_told_with_its_age(self, rig: Rig) -> None:
        other = TopicPartition("to_sender", 300)
        assert await rig.state.heartbeats([AT, other]) == [None, None]
        lines = (HEAD, HEAD._replace(owner="r:ci", behind=3)), "host-1-a", 5, (ParkedLine("r:ci", QUEUE),)
        content = *lines, LaneLoad(700, (("ci", 0.75),)), (Waiting("s:git\u00e9", 1_700_000_000.25),)
        await rig.state.keep_heartbeats([LaneHeartbeat(*AT, Heartbeat(*content)), LaneHeartbeat(*other)])
        await rig.elapse(7)
        assert await rig.state.heartbeats([AT, other]) == [Served(*content, ago_s=7.0), Served(ago_s=7.0)]
        await rig.state.keep_heartbeats([LaneHeartbeat(*AT)])
        assert await rig.state.heartbeats([AT]) == [Served(ago_s=0.0)]

    async def test_an_expired_sign_does_not_return_when_the_clock_is_set_back(self, rig: Rig) -> None:
        await rig.state.keep_heartbeats([LaneHeartbeat(*AT)])
        await rig.elapse(7 * 86_400)
        assert await rig.state.heartbeats([AT]) == [None]
        await rig.elapse(-3_600)
        assert await rig.state.heartbeats([AT]) == [None]

    async def test_signs_are_given_while_the_state_recovers(self, rig: Rig) -> None:
        await rig.lose()
        await rig.state.lost()
        await rig.state.keep_heartbeats([LaneHeartbeat(*AT)])
        assert await rig.state.heartbeats([AT]) == [Served(ago_s=0.0)]

    async def test_the_head_of_what_is_parked(self, rig: Rig) -> None:
        asked = [("r:ci", QUEUE), ("r:cd", QUEUE), ("r:ci", b"other-------")]
        assert await rig.state.parked_heads(AT, asked) == [None, None, None]
        later, first = (Coordinate("parked_messages", 3, offset) for offset in (8, 7))
        await answered(
            rig.state.park(of(LANE, [Parked(row(2), 0, later, 60, QUEUE, 5), Parked(row(1), 0, first, 60, QUEUE, 4)]))
        )
        assert await rig.state.parked_heads(AT, asked) == [ParkedHead(row(1).digest, first, 1), None, None]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(row(1), 0, QUEUE)])))
        assert await rig.state.parked_heads(AT, asked[:1]) == [ParkedHead(row(2).digest, later)]

    async def test_of_what_needs_no_order_the_one_that_was_parked_first(self, rig: Rig) -> None:
        assert await rig.state.oldest_parked(9) == []
        places = [Coordinate("parked_messages", 3, offset) for offset in range(6)]
        alone = [Parked(row(n), 0, places[n], 900, None, 9 - n) for n in range(3)]
        await answered(rig.state.park(of(LANE, alone[:1])))
        await rig.elapse(5)
        cd = RowKey("r:cd", row(3).digest)
        others = [Parked(cd, 0, places[3], 60, None, 1), Parked(row(4), 0, places[4], 60, QUEUE, 1)]
        poll = Parked(RowKey("r:ce", row(5).digest), 0, places[5], 60, None, 1, poll=True)
        await answered(rig.state.park(of(LANE, [*alone[1:], *others, poll])))
        first = "r:ci", ParkedHead(row(0).digest, places[0])
        assert await rig.state.oldest_parked(9) == [first, ("r:cd", ParkedHead(cd.digest, places[3]))]
        assert await rig.state.oldest_parked(1) == [first]
        again = Coordinate("parked_messages", 3, 7)
        await answered(rig.state.park(of(LANE, [Parked(row(0), 0, again, 900, None, 9)])))  # after another attempt
        assert await rig.state.oldest_parked(1) == [("r:ci", ParkedHead(row(0).digest, again))]
        await answered(rig.state.unpark(of(LANE, [ParkedLife(row(n), 0, None) for n in range(3)])))
        await answered(rig.state.unpark(of(LANE, [ParkedLife(cd, 0, None)])))
        assert await rig.state.oldest_parked(9) == []
