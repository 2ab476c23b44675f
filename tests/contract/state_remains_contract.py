"""Contract tests of the state port: reserved offsets and marks of a lane are returned to its next owner, unless the
former owner left properly."""

from relay.state.port import Lane, UnreleasedReservation
from tests.contract.state_contract import Rig

FIRST, SECOND, THIRD = (Lane("to_receiver_ci", 3, epoch) for epoch in (7, 8, 9))
FAR = 2**50


class RemainsContract:
    async def test_a_new_lane_finds_nothing(self, rig: Rig) -> None:
        assert await rig.state.reserve(FIRST, 500) is None
        assert await rig.state.reserve(FIRST, 1_000) is None

    async def test_the_next_owner_finds_what_one_left_behind_that_died(self, rig: Rig) -> None:
        await rig.state.reserve(FIRST, 500)
        await rig.state.reserve(FIRST, FAR)
        await rig.state.suspect(FIRST, FAR - 1, 2)
        await rig.state.suspect(FIRST, 3, 1)
        await rig.state.suspect(FIRST, 4, 1)
        await rig.state.suspect(FIRST, 4, 0)
        assert await rig.state.reserve(Lane("to_receiver_ci", 2, 8), 5) is None
        assert await rig.state.reserve(SECOND, 700) == UnreleasedReservation(FAR, {3: 1, FAR - 1: 2})
        assert await rig.state.reserve(SECOND, 900) is None

    async def test_what_was_left_behind_is_there_until_somebody_leaves(self, rig: Rig) -> None:
        await rig.state.reserve(FIRST, 500)
        await rig.state.suspect(FIRST, 3, 1)
        await rig.state.reserve(SECOND, 100)
        assert await rig.state.reserve(THIRD, 100) == UnreleasedReservation(500, {3: 1})
        await rig.state.leave(THIRD)
        assert await rig.state.reserve(FIRST, 100) is None

    async def test_an_epoch_that_is_lower_is_another_owner_too(self, rig: Rig) -> None:
        """The generations of a consumer group may start again at 1."""
        await rig.state.reserve(THIRD, 500)
        assert await rig.state.reserve(FIRST, 100) == UnreleasedReservation(500, {})

    async def test_a_former_owner_takes_nothing_away(self, rig: Rig) -> None:
        await rig.state.reserve(FIRST, 500)
        await rig.state.reserve(SECOND, 600)
        await rig.state.leave(FIRST)
        assert await rig.state.reserve(THIRD, 1) == UnreleasedReservation(600, {})

    async def test_each_call_may_be_repeated(self, rig: Rig) -> None:
        await rig.state.reserve(FIRST, 500)
        for _ in range(3):
            await rig.state.suspect(FIRST, 3, 1)
        for _ in range(2):
            assert await rig.state.reserve(SECOND, 1) == UnreleasedReservation(500, {3: 1})
        assert await rig.state.reserve(SECOND, 501) is None
        for _ in range(2):
            await rig.state.leave(SECOND)
        assert await rig.state.reserve(THIRD, 1) is None

    async def test_it_works_while_nothing_is_ready_and_is_lost_with_the_rest(self, rig: Rig) -> None:
        await rig.state.reserve(FIRST, 500)
        await rig.lose()
        assert await rig.state.reserve(SECOND, 100) is None
        await rig.state.suspect(SECOND, 3, 1)
        assert await rig.state.reserve(THIRD, 1) == UnreleasedReservation(100, {3: 1})
