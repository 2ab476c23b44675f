"""Contract tests of the state port: owners of lanes, who is fenced, and how epochs start again."""

import pytest

from relay.domain.errors import PartitionLost, StateRecovering
from relay.state.attempts import Go
from relay.state.replies import Fenced, answered, of
from relay.state.rows import TAGS, DueRequest, tag_of
from tests.contract.state_contract import LANE, WINDOW_S, Rig, ask, row
from tests.contract.state_parking_contract import TAG, due, parked, taken

OLD, ANEW = LANE._replace(epoch=29), LANE._replace(epoch=2)


class OwnersContract:
    async def test_the_highest_epoch_seen_can_be_asked_for(self, rig: Rig) -> None:
        assert await rig.state.epochs(LANE, range(TAGS)) == {}
        await answered(rig.state.begin(of(OLD, [ask(row())])))
        assert await rig.state.epochs(ANEW, range(TAGS)) == {TAG: 29}
        assert await rig.state.epochs(OLD._replace(partition=1), [TAG]) == {}

    async def test_a_lane_begins_anew_from_the_epoch_that_was_seen(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(OLD, [ask(row())])))
        with pytest.raises(PartitionLost):
            await answered(rig.state.begin(of(ANEW, [ask(row(2))])))
        assert await rig.state.begin_anew(ANEW, {TAG: 29})
        assert await answered(rig.state.begin(of(ANEW, [ask(row(2))]))) == [Go(1, 0.0)]
        assert await rig.state.epochs(ANEW, [TAG]) == {TAG: 2}
        assert await answered(rig.state.begin(of(ANEW._replace(epoch=3), [ask(row(3))]))) == [Go(1, 0.0)]
        with pytest.raises(PartitionLost):
            await answered(rig.state.begin(of(ANEW, [ask(row(4))])))

    async def test_an_older_confirmation_does_not_begin_anew_a_second_time(self, rig: Rig) -> None:
        """Both have read epoch 29 before they queried their group; the younger one was faster."""
        older, younger = ANEW, ANEW._replace(epoch=3)
        await answered(rig.state.begin(of(OLD, [ask(row())])))
        assert await rig.state.begin_anew(younger, {TAG: 29})
        assert not await rig.state.begin_anew(older, {TAG: 29})
        assert await rig.state.epochs(LANE, [TAG]) == {TAG: 3}
        with pytest.raises(PartitionLost):
            await answered(rig.state.begin(of(older, [ask(row(2))])))

    async def test_it_is_safe_to_repeat(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(OLD, [ask(row())])))
        assert await rig.state.begin_anew(ANEW, {TAG: 29})
        assert await rig.state.begin_anew(ANEW, {TAG: 29})
        assert await rig.state.epochs(LANE, [TAG]) == {TAG: 2}

    async def test_a_tag_that_has_seen_another_since_stays_as_it_is(self, rig: Rig) -> None:
        """Each tag stores its own epoch: tags are fenced, and start again, one by one."""
        other = next(f"r-{n}" for n in range(1000) if tag_of(f"r:r-{n}") != TAG)
        key = row(1, other)
        await answered(rig.state.begin(of(OLD, [ask(row())])))
        await answered(rig.state.begin(of(OLD._replace(epoch=30), [ask(key)])))
        assert not await rig.state.begin_anew(ANEW, {TAG: 29, tag_of(key.owner): 29})
        assert await rig.state.epochs(LANE, range(TAGS)) == {TAG: 2, tag_of(key.owner): 30}

    async def test_what_the_former_owner_had_in_hand_is_due(self, rig: Rig) -> None:
        await answered(rig.state.park(of(OLD, [parked(1), parked(2, due_in_s=50)])))
        assert await taken(rig, 9, OLD) == [due(parked(1))]
        assert await rig.state.begin_anew(ANEW, {TAG: 29})
        assert await taken(rig, 9, ANEW) == [due(parked(1))]

    async def test_an_owner_of_before_does_not_pass_however_high_its_epoch(self, rig: Rig) -> None:
        """The owner was frozen, and does not know that the group's generations started again meanwhile."""
        former = OLD._replace(epoch=28)
        await answered(rig.state.park(of(OLD, [parked(1)])))
        assert await rig.state.begin_anew(ANEW, {TAG: 29})
        for late in (OLD, former):
            assert await rig.state.begin(of(late, [ask(row(2))])) == [Fenced()]
            assert await rig.state.take_due(of(late, [DueRequest(TAG, 9)]), lease_s=30) == [Fenced()]
            assert await rig.state.park(of(late, [parked(3)])) == [Fenced()]
            assert not await rig.state.begin_anew(late, {TAG: 2})
        assert await rig.state.epochs(ANEW, [TAG]) == {TAG: 2}
        assert await answered(rig.state.begin(of(ANEW, [ask(row(2))]))) == [Go(1, 0.0)]

    async def test_the_new_count_passes_that_of_before_step_by_step_and_beyond_it_at_once(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(OLD, [ask(row(0))])))
        assert await rig.state.begin_anew(ANEW, {TAG: 29})
        for epoch in (*range(3, 32), 500):
            lane = ANEW._replace(epoch=epoch)
            assert await answered(rig.state.begin(of(lane, [ask(row(epoch))]))) == [Go(1, 0.0)]

    async def test_one_of_now_that_looks_like_one_of_before_begins_anew_as_well(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(OLD, [ask(row(0))])))
        assert await rig.state.begin_anew(ANEW, {TAG: 29})
        leap, older = ANEW._replace(epoch=25), ANEW._replace(epoch=24)
        assert await rig.state.begin(of(leap, [ask(row(1))])) == [Fenced()]
        assert await rig.state.epochs(leap, [TAG]) == {TAG: 29}
        assert await rig.state.begin_anew(leap, {TAG: 29})
        assert not await rig.state.begin_anew(older, {TAG: 29}), "its confirmation is an older one"
        assert await answered(rig.state.begin(of(leap, [ask(row(1))]))) == [Go(1, 0.0)]
        assert await rig.state.begin(of(ANEW, [ask(row(2))])) == [Fenced()]

    async def test_in_the_end_the_count_of_before_is_forgotten(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(OLD, [ask(row(0))])))
        assert await rig.state.begin_anew(ANEW, {TAG: 29})
        await rig.elapse(WINDOW_S)
        assert await answered(rig.state.begin(of(OLD, [ask(row(1))]))) == [Go(1, 0.0)]

    async def test_nothing_begins_anew_while_the_memory_is_not_ready(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(OLD, [ask(row())])))
        await rig.lose()
        with pytest.raises(StateRecovering):
            await rig.state.epochs(ANEW, [TAG])
        with pytest.raises(StateRecovering):
            await rig.state.begin_anew(ANEW, {TAG: 29})
