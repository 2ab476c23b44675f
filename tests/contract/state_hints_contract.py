"""Contract tests of the state port: hints to requests that wait for a delivery's end, and to lanes that wait for an
endpoint. Subclasses provide `rig`."""

import asyncio
from contextlib import suppress

from relay.state.attempts import Change, PingDue
from relay.state.replies import answered
from relay.state.rows import Mark, Stage
from tests.contract.state_contract import Rig, begun, row, settled


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
            (seen,) = await rig.state.row_details([row(1)])
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

    async def test_an_endpoint_that_may_be_asked_before_its_time_is_published_each_time(self, rig: Rig) -> None:
        async def fail(number: int, token: bytes = b"") -> None:
            await settled(rig.state, row(number), Change.RELEASED, token, healthy=False)

        async def answer_a_get() -> None:
            await settled(rig.state, row(20), Change.RETRY, b"", up=True)

        async with rig.state.hints("endpoints") as heard, rig.state.hints() as ends, asyncio.timeout(20):
            for number in range(3):
                await fail(number)
            await rig.elapse(600)
            assert isinstance(await begun(rig.state, row(9), b"ping-1"), PingDue)
            await answer_a_get()  # while a ping is in flight
            await fail(9, b"ping-1")
            await answer_a_get()
            assert await anext(heard) == b"r:ci"
            await answer_a_get()  # it may be asked already
            assert isinstance(await begun(rig.state, row(9), b"ping-2"), PingDue)
            await fail(9, b"ping-2")
            await answer_a_get()  # a second time within `ping_every`
            await rig.state.probe_soon(["r:ci", "r:fine"])
            assert await anext(heard) == b"r:ci"
            assert isinstance(await begun(rig.state, row(9), b"ping-3"), PingDue)
            await settled(rig.state, row(9), Change.RELEASED, b"ping-3", healthy=True)
            assert await anext(heard) == b"r:ci"
            await settled(rig.state, row(21), Change.RESULT, b"", healthy=True, up=True)
            await answered(rig.state.mark([Mark(row(1), 0, Stage.DONE, awaited=True)]))
            assert await anext(ends) == row(1).digest
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    raise AssertionError(await anext(heard))
