"""Contract tests of the state port: the limit of POSTs in flight, shared by all lanes of an endpoint in turn."""

from dataclasses import replace

from relay.state.attempts import AlreadySettled, CallKind, Change, Go, Wait
from relay.state.port import Lane
from relay.state.replies import answered, of
from tests.contract.state_contract import ANSWER, LANE, LIMITS, Rig, ask, begun, outcome, row

TWO = replace(LIMITS, max_in_flight=2)
OTHER = Lane("to_receiver_ci", 1, 7)
THIRD = Lane("to_receiver_ci", 2, 7)
FULL = Wait(0.1, "max_in_flight")
GO = Go(1, 0.0)


class InFlightContract:
    """The limit is two in most tests."""

    async def begin_some(self, rig: Rig, *numbers: int, lane: Lane = LANE, **changes: object) -> list[object]:
        asks = [ask(row(number), b"t-%d" % number, **{"limits": TWO} | changes) for number in numbers]
        return list(await answered(rig.state.begin(of(lane, asks))))

    async def settle_some(self, rig: Rig, *numbers: int, change: Change = Change.RESULT) -> None:
        await answered(
            rig.state.settle([outcome(row(number), change, b"t-%d" % number, result=ANSWER) for number in numbers])
        )

    async def test_all_lanes_of_an_endpoint_share_its_places(self, rig: Rig) -> None:
        assert await self.begin_some(rig, 1) == [GO]
        assert await self.begin_some(rig, 2, 3, lane=OTHER) == [GO, FULL]
        assert await self.begin_some(rig, 4) == [FULL]
        assert await begun(rig.state, row(5, "another"), limits=TWO) == GO
        assert await begun(rig.state, row(6), kind=CallKind.POLL, limits=TWO) == GO, "a GET takes no place"
        assert await begun(rig.state, row(7)) == GO, "where the number is not limited none is counted"

    async def test_each_outcome_gives_its_place_back_once(self, rig: Rig) -> None:
        for number, change in enumerate((Change.RELEASED, Change.RETRY, Change.DOUBT, Change.ACCEPTED, Change.RESULT)):
            assert await self.begin_some(rig, number, number + 100) == [GO, GO]
            await self.settle_some(rig, number, change=change)
            await self.settle_some(rig, number, change=change)
            assert await self.begin_some(rig, number + 200, number + 300) == [GO, FULL]
            await self.settle_some(rig, number + 100, number + 200)

    async def test_what_did_not_begin_takes_no_place(self, rig: Rig) -> None:
        paced = replace(TWO, interval_s=10)
        assert await self.begin_some(rig, 1, limits=paced) == [GO]
        assert await self.begin_some(rig, 2, 3, limits=paced) == [Wait(9.0, "rate")] * 2
        assert await self.begin_some(rig, 4) == [GO]

    async def test_who_has_no_place_takes_no_slot_of_the_rate(self, rig: Rig) -> None:
        paced = replace(TWO, interval_s=0.25)
        assert await self.begin_some(rig, 1, 2, 3, limits=paced) == [GO, Go(1, 0.25), FULL]
        await self.settle_some(rig, 1)
        assert await self.begin_some(rig, 3, limits=paced) == [Go(1, 0.5)]

    async def begin_together(self, rig: Rig, *numbers: int, **changes: object) -> list[object]:
        asks = [
            ask(row(number), b"t-%d" % number, **{"limits": TWO, "rides": number != numbers[0]} | changes)
            for number in numbers
        ]
        return list(await answered(rig.state.begin(of(LANE, asks))))

    async def test_deliveries_of_one_request_take_one_place(self, rig: Rig) -> None:
        assert await self.begin_together(rig, 1, 2, 3) == [GO] * 3
        assert await self.begin_together(rig, 4, 5, 6, unseen=True) == [GO] * 3
        assert await self.begin_together(rig, 7, 8) == [FULL] * 2
        await self.settle_some(rig, 2, 3)
        assert await self.begin_together(rig, 7, 8) == [FULL] * 2
        await self.settle_some(rig, 1)
        assert await self.begin_together(rig, 7, 8) == [GO] * 2

    async def test_the_place_is_of_the_first_that_has_begun(self, rig: Rig) -> None:
        await begun(rig.state, row(1), b"t-1")
        await self.settle_some(rig, 1)
        first, *others = await self.begin_together(rig, 1, 2, 3)
        assert isinstance(first, AlreadySettled)
        assert others == [GO] * 2
        assert await self.begin_some(rig, 4, 5) == [GO, FULL]

    async def test_a_request_takes_one_slot_of_the_rate_or_one_for_each(self, rig: Rig) -> None:
        paced = replace(LIMITS, interval_s=0.25)
        assert await self.begin_together(rig, 1, 2, 3, limits=paced) == [GO] * 3
        assert await self.begin_together(rig, 4, 5, limits=paced, paced=True) == [Go(1, 0.25)] * 2
        assert await self.begin_together(rig, 6, limits=paced) == [Go(1, 0.75)]
        slow = replace(LIMITS, interval_s=9)
        assert await self.begin_together(rig, 7, limits=slow) == [Go(1, 1.0)]
        assert await self.begin_together(rig, 8, 9, limits=slow) == [Wait(9.0, "rate")] * 2

    async def test_one_that_joins_a_request_only_when_the_call_is_repeated_starts_at_once(self, rig: Rig) -> None:
        assert await self.begin_together(rig, 3, room=2) == [GO]
        assert await self.begin_together(rig, 1, 2, room=2) == [GO, Wait(1.0, "backlog", fresh=True)]
        await self.settle_some(rig, 3)
        await rig.elapse(0.5)
        for _ in range(2):
            assert await self.begin_together(rig, 1, 2, room=2) == [GO, GO]

    async def test_one_that_does_so_has_a_slot_of_the_rate_behind_that_moment(self, rig: Rig) -> None:
        paced: dict[str, object] = {"room": 2, "paced": True, "limits": replace(LIMITS, interval_s=0.25)}
        assert await self.begin_together(rig, 3, room=2) == [GO]
        assert await self.begin_together(rig, 1, 2, **paced) == [GO, Wait(1.0, "backlog", fresh=True)]
        await self.settle_some(rig, 3)
        await rig.state.forget_endpoint("r:ci")
        await rig.elapse(0.5)
        assert await self.begin_together(rig, 1, 2, **paced) == [GO, GO]
        assert await self.begin_together(rig, 4, **paced | {"room": 9}) == [Go(1, 0.25)]

    async def test_none_begins_if_one_before_it_of_its_order_key_has_not(self, rig: Rig) -> None:
        await begun(rig.state, row(2), b"t-2")
        await self.settle_some(rig, 2)
        asks = [
            ask(row(1), b"t-1", queue=b"a" * 12),
            ask(row(2), b"t-2", queue=b"b" * 12, rides=True),
            ask(row(3), b"t-3", queue=b"b" * 12, rides=True),
            ask(row(4), b"t-4", queue=b"a" * 12, rides=True),
        ]
        first, had, behind, last = await answered(rig.state.begin(of(LANE, asks)))
        assert (first, last) == (GO, GO)
        assert isinstance(had, AlreadySettled)
        assert behind == Wait(0.0, "settling")

    async def test_a_lost_reply_takes_no_second_place(self, rig: Rig) -> None:
        assert await self.begin_some(rig, 1) == [GO]
        assert await self.begin_some(rig, 1, 2, 3) == [GO, GO, FULL]

    async def test_the_place_of_a_dead_process_is_free_when_its_request_cannot_be_under_way(self, rig: Rig) -> None:
        assert await self.begin_some(rig, 1, 2) == [GO, GO]
        await rig.elapse(TWO.probe_s - 0.1)
        assert await self.begin_some(rig, 3, lane=OTHER) == [FULL]
        await rig.elapse(0.1)
        assert await self.begin_some(rig, 3, 4, 5, lane=OTHER) == [GO, GO, FULL]

    async def test_an_outcome_of_a_former_attempt_frees_nothing_of_the_present_one(self, rig: Rig) -> None:
        assert await self.begin_some(rig, 1, 2) == [GO, GO]
        await rig.elapse(TWO.settle_s)
        assert await self.begin_some(rig, 3, 4) == [GO, GO]
        await self.settle_some(rig, 1, 2)
        assert await self.begin_some(rig, 5) == [FULL]

    async def test_a_lane_that_waits_has_the_next_place_and_a_turn(self, rig: Rig) -> None:
        one = replace(LIMITS, max_in_flight=1)
        assert await self.begin_some(rig, 1, limits=one) == [GO]
        assert await self.begin_some(rig, 11, lane=OTHER, limits=one) == [FULL]
        await rig.elapse(0.05)
        await self.settle_some(rig, 1)
        assert await self.begin_some(rig, 2, limits=one) == [FULL], "it is the other's, who asks again soon"
        assert await self.begin_some(rig, 11, lane=OTHER, limits=one) == [GO]
        for number in range(12, 16):
            await rig.elapse(0.24)
            await self.settle_some(rig, number - 1)
            assert await self.begin_some(rig, number, lane=OTHER, limits=one) == [GO], "in its turn"
            assert await self.begin_some(rig, 2, limits=one) == [FULL]
        await rig.elapse(0.04)
        await self.settle_some(rig, 15)
        assert await self.begin_some(rig, 16, lane=OTHER, limits=one) == [FULL]
        assert await self.begin_some(rig, 2, limits=one) == [GO]

    async def test_places_go_to_lanes_in_the_order_in_which_they_began_to_wait(self, rig: Rig) -> None:
        assert await self.begin_some(rig, 1, 2) == [GO, GO]
        assert await self.begin_some(rig, 11, lane=OTHER) == [FULL]
        await rig.elapse(0.05)
        assert await self.begin_some(rig, 21, lane=THIRD) == [FULL]
        await self.settle_some(rig, 1)
        assert await self.begin_some(rig, 21, lane=THIRD) == [FULL]
        await self.settle_some(rig, 2)
        assert await self.begin_some(rig, 21, lane=THIRD) == [GO], "there is one for each of them"
        assert await self.begin_some(rig, 11, lane=OTHER) == [GO]

    async def test_a_lane_that_asks_no_more_holds_up_none(self, rig: Rig) -> None:
        assert await self.begin_some(rig, 1, 2) == [GO, GO]
        assert await self.begin_some(rig, 11, lane=OTHER) == [FULL]
        await self.settle_some(rig, 1)
        await rig.elapse(0.31)
        assert await self.begin_some(rig, 3) == [GO]

    async def test_after_a_loss_only_a_lane_that_knows_what_it_has_in_flight_goes_on(self, rig: Rig) -> None:
        await self.begin_some(rig, 1, 2)
        await rig.lose_and_recover(in_doubt_s=100)
        await rig.elapse(4)
        wait = Wait(1.0, "max_in_flight")
        assert await self.begin_some(rig, 3, counted_s=4 + TWO.probe_s - 1) == [wait]
        assert await self.begin_some(rig, 3, counted_s=4 + TWO.probe_s) == [GO]
        await rig.elapse(TWO.probe_s - 4 - 0.5)
        assert await self.begin_some(rig, 4, counted_s=1) == [Wait(0.5, "max_in_flight")]
        await rig.elapse(0.5)
        assert await self.begin_some(rig, 4) == [GO]

    async def test_after_a_loss_the_first_slot_is_behind_all_that_were_taken_before(self, rig: Rig) -> None:
        paced = replace(LIMITS, interval_s=0.5)
        assert await self.begin_some(rig, 1, 2, 3, limits=paced) == [GO, Go(1, 0.5), Go(1, 1.0)]
        await rig.lose_and_recover(in_doubt_s=100)
        assert await self.begin_some(rig, 4, limits=paced) == [Wait(0.5, "rate")]
        await rig.elapse(0.5)
        assert await self.begin_some(rig, 4, 5, limits=paced) == [Go(1, 1.0), Wait(0.5, "rate")]
        await rig.elapse(9)
        assert await self.begin_some(rig, 6, 7, limits=paced) == [GO, Go(1, 0.5)]

    async def test_after_a_fail_over_it_is_behind_those_that_the_replica_does_not_know_too(self, rig: Rig) -> None:
        paced = replace(LIMITS, interval_s=0.5)
        assert await self.begin_some(rig, 1, limits=paced) == [GO]
        await rig.fail_over()
        await rig.state.ready(sorted(await rig.state.lost()), in_doubt_s=100)
        assert await self.begin_some(rig, 2, limits=paced) == [Wait(0.5, "rate")]
        await rig.elapse(9)
        assert await self.begin_some(rig, 2, limits=paced) == [GO]

    async def test_where_nothing_was_lost_none_waits(self, rig: Rig) -> None:
        await rig.lose_and_recover(in_doubt_s=0)
        assert await self.begin_some(rig, 1) == [GO]
