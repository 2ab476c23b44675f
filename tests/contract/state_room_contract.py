"""Contract tests of the state port: the limit of an endpoint's answers and retries that are waited for."""

import pytest

from relay.log.port import Coordinate
from relay.state.attempts import Change, Go, Wait
from relay.state.replies import answered, of
from relay.state.rows import Mark, Parked, Stage
from tests.contract.state_contract import ANSWER, LANE, Rig, ask, begun, doubt_of, outcome, peeked, row

AT = Coordinate("parked_messages", 0, 1)


class RoomContract:
    """At most `room` answers may be waited for, and at most `room_to_retry` retries."""

    async def begin(self, rig: Rig, *numbers: int, room: int = 3, **changes: object) -> list[object]:
        asks = [ask(row(number), b"t-%d" % number, room=room, **changes) for number in numbers]
        return list(await answered(rig.state.begin(of(LANE, asks))))

    async def settle(self, rig: Rig, change: Change, *numbers: int) -> None:
        await answered(
            rig.state.settle([outcome(row(number), change, b"t-%d" % number, result=ANSWER) for number in numbers])
        )

    FRESH = Wait(1.0, "backlog", fresh=True)

    @pytest.mark.parametrize("room", [3, 5_000])
    async def test_room_is_kept_from_begin_until_there_is_an_answer(self, rig: Rig, room: int) -> None:
        numbers = list(range(room))
        for first in range(0, room, 500):
            assert await self.begin(rig, *numbers[first : first + 500], room=room) == [Go(1, 0.0)] * min(500, room)
        if room < 1_000:  # with more room, attempts that begin while none waits need not be counted
            assert await self.begin(rig, 9_000, room=room) == [self.FRESH]
        await self.settle(rig, Change.ACCEPTED, *numbers)
        assert await self.begin(rig, 9_000, room=room) == [self.FRESH]
        await answered(rig.state.mark([Mark(row(number), 0, Stage.AWAITING) for number in numbers]))
        assert await self.begin(rig, 9_000, room=room) == [self.FRESH]
        await answered(rig.state.settle([outcome(row(0), Change.RESULT, b"", result=ANSWER)]))
        assert await self.begin(rig, 9_000, 9_001, room=room) == [Go(1, 0.0), self.FRESH]
        assert await begun(rig.state, row(9_002)) == Go(1, 0.0), "who does not ask need not wait"

    async def test_room_goes_over_to_what_is_parked(self, rig: Rig) -> None:
        await self.begin(rig, 1, 2, 3)
        await self.settle(rig, Change.ACCEPTED, 1, 2, 3)
        await answered(rig.state.intend_to_park(of(LANE, [row(number) for number in (1, 2, 3)])))
        polls = [Parked(row(number), 0, AT, 900, None, number, poll=True) for number in (1, 2, 3)]
        assert await answered(rig.state.park(of(LANE, polls))) == [True] * 3
        assert await self.begin(rig, 4) == [self.FRESH]
        await answered(rig.state.settle([outcome(row(2), Change.RESULT, b"", result=ANSWER)]))
        assert await self.begin(rig, 4, 5) == [Go(1, 0.0), self.FRESH]

    @pytest.mark.parametrize("change", [Change.RELEASED, Change.RETRY, Change.RESULT])
    async def test_what_will_not_wait_gives_its_room_back(self, rig: Rig, change: Change) -> None:
        await self.begin(rig, 1, 2, 3)
        await self.settle(rig, Change.ACCEPTED, 1)
        await self.settle(rig, change, 2)
        assert await self.begin(rig, 4, 5) == [Go(1, 0.0), self.FRESH]

    @pytest.mark.parametrize("stage", [Stage.PUBLISHED, Stage.DONE, Stage.FAILED])
    async def test_what_is_over_keeps_none_whoever_says_so(self, rig: Rig, stage: Stage) -> None:
        await self.begin(rig, 1, 2, 3)
        await answered(rig.state.mark([Mark(row(1), 0, stage), Mark(row(9, "other"), 0, stage)]))
        assert await self.begin(rig, 4, 5) == [Go(1, 0.0), self.FRESH]
        await self.settle(rig, Change.ACCEPTED, 2)
        await answered(rig.state.mark([Mark(row(2), 0, Stage.AWAITING)]))
        assert await self.begin(rig, 5) == [self.FRESH]
        await rig.state.remember([Mark(row(2), 0, stage)])
        assert await self.begin(rig, 5, 6) == [Go(1, 0.0), self.FRESH]

    async def test_an_endpoint_that_is_no_more_keeps_none(self, rig: Rig) -> None:
        await self.begin(rig, 1, 2, 3)
        await rig.state.forget_endpoint("r:ci")
        assert await self.begin(rig, 4) == [Go(1, 0.0)]

    async def test_what_is_in_doubt_keeps_it_and_begins_again_on_it(self, rig: Rig) -> None:
        await self.begin(rig, 1, 2, 3)
        await self.settle(rig, Change.DOUBT, 1, 2, 3)
        await rig.elapse(25)
        assert await self.begin(rig, 4) == [self.FRESH]
        doubt = await doubt_of(rig.state, row(1))
        again = ask(row(1), b"again", room=3, resolved=doubt)
        assert await answered(rig.state.begin(of(LANE, [again]))) == [Go(2, 0.0)]

    async def test_what_was_tried_before_is_told_apart(self, rig: Rig) -> None:
        await self.begin(rig, 1)
        await self.settle(rig, Change.RETRY, 1)
        await self.begin(rig, 2, 3, 4)
        assert await self.begin(rig, 5, attempts=1) == [Wait(1.0, "backlog")]
        assert await answered(rig.state.begin(of(LANE, [ask(row(1), b"again", room=3)]))) == [Wait(1.0, "backlog")]
        assert (await peeked(rig.state, row(1))).attempts == 1

    async def test_a_first_attempt_wants_room_for_its_retry_too(self, rig: Rig) -> None:
        await self.begin(rig, 1)
        await self.settle(rig, Change.RETRY, 1)
        await answered(rig.state.park(of(LANE, [Parked(row(1), 0, AT, 900, None, 1)])))
        assert await self.begin(rig, 2, room_to_retry=1) == [self.FRESH]
        assert await self.begin(rig, 3, room_to_retry=2) == [Go(1, 0.0)]
        assert await answered(rig.state.begin(of(LANE, [ask(row(1), b"again", room=3, room_to_retry=1)]))) == [
            Go(2, 0.0)
        ]

    async def test_what_is_parked_has_room_for_its_retry_also_after_a_loss(self, rig: Rig) -> None:
        await rig.lose_and_recover(in_doubt_s=100)
        await answered(rig.state.park(of(LANE, [Parked(row(1), 0, AT, 900, None, 1)])))
        assert await self.begin(rig, 1, 2, room_to_retry=1) == [Go(1, 0.0), Wait(1.0, "backlog")]

    async def test_after_a_loss_those_behind_a_delivery_do_not_take_its_room(self, rig: Rig) -> None:
        """It may have been tried, and they wait for it."""
        key = b"q" * 12
        behind = Parked(row(2), 0, AT, 900, key, 2)
        await answered(rig.state.park(of(LANE, [behind])))
        assert await self.begin(rig, 1, room_to_retry=1, queue=key) == [self.FRESH]
        await rig.lose_and_recover(in_doubt_s=100)
        await answered(rig.state.park(of(LANE, [behind])))
        assert await self.begin(rig, 3, room_to_retry=1) == [Wait(1.0, "backlog")]
        assert await self.begin(rig, 1, room_to_retry=1, queue=key) == [Go(1, 0.0)]

    async def test_owners_have_room_of_their_own(self, rig: Rig) -> None:
        await self.begin(rig, 1, 2, 3)
        assert await answered(rig.state.begin(of(LANE, [ask(row(1, "other"), room=3)]))) == [Go(1, 0.0)]

    async def test_after_a_loss_nobody_knows_what_was_tried(self, rig: Rig) -> None:
        await rig.lose_and_recover(in_doubt_s=100)
        await self.begin(rig, 1, 2, 3)
        assert await self.begin(rig, 4) == [Wait(1.0, "backlog")]
        await rig.elapse(100)
        assert await self.begin(rig, 4) == [self.FRESH]
