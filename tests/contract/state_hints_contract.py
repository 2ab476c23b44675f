"""What every state has to tell those who wait for a delivery's end. Subclasses give `rig`."""

import asyncio

from relay.state.replies import answered
from relay.state.rows import Mark, Stage
from tests.contract.state_contract import Rig, row


class HintsContract:
    async def test_whoever_listens_is_told_of_what_is_awaited_and_of_nothing_else(self, rig: Rig) -> None:
        async with rig.state.hints() as mine, rig.state.hints() as others, asyncio.timeout(20):
            marks = [Mark(row(1), 0, Stage.PUBLISHED, (0, 1)), Mark(row(2), 0, Stage.PUBLISHED, (0, 2), awaited=True)]
            await answered(rig.state.mark(marks))
            await answered(rig.state.mark([Mark(row(3), 0, Stage.FAILED, (0, 3), awaited=True)]))
            for heard in (mine, others):
                assert {await anext(heard), await anext(heard)} == {row(2).digest, row(3).digest}

    async def test_what_is_told_can_be_seen(self, rig: Rig) -> None:
        async with rig.state.hints() as heard, asyncio.timeout(20):
            await answered(rig.state.mark([Mark(row(1), 0, Stage.DONE, (3, 7), awaited=True)]))
            assert await anext(heard) == row(1).digest
            (seen,) = await rig.state.watch([row(1)])
        assert (seen.row.stage, seen.row.at) == (Stage.DONE, (3, 7))

    async def test_who_listens_later_is_told_of_later_ends(self, rig: Rig) -> None:
        async with rig.state.hints() as heard, asyncio.timeout(20):
            await answered(rig.state.mark([Mark(row(1), 0, Stage.DONE, awaited=True)]))
            assert await anext(heard) == row(1).digest
            async with rig.state.hints() as later:
                await answered(rig.state.mark([Mark(row(2), 0, Stage.DONE, awaited=True)]))
                told = await anext(later)
                if told == row(1).digest:  # it was still on its way to another node of a cluster
                    told = await anext(later)
                assert told == row(2).digest
