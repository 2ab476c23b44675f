"""Contract tests of the state port: after its server's clock is set back, nothing waits longer than before. Subclasses
provide `rig`."""

from dataclasses import replace

import pytest

from relay.domain.receiver import Quota
from relay.log.port import Coordinate
from relay.state.attempts import AmbiguousAttempt, Change, Go, Wait
from relay.state.port import Charge
from relay.state.replies import answered, of
from relay.state.rows import DueRequest, Mark, Parked, Stage, tag_of
from tests.contract.state_contract import BREAKER, LANE, LIMITS, Rig, begun, peeked, row, settled

HOUR_S = 3600.0
TAG = tag_of("r:ci")


class ClockContract:
    """Each test starts a wait, sets the clock back by an hour, and lets the rest of the wait pass."""

    async def waits(self, rig: Rig, number: int, why: str, **changes: object) -> float:
        verdict = await begun(rig.state, row(number), b"later", **changes)
        assert isinstance(verdict, Wait)
        assert verdict.why == why
        return verdict.seconds

    async def test_the_rate(self, rig: Rig) -> None:
        limits = replace(LIMITS, interval_s=5.0)
        assert await begun(rig.state, row(1), limits=limits) == Go(1, 0.0)
        await rig.elapse(-HOUR_S)
        assert await self.waits(rig, 2, "rate", limits=limits) <= 5
        await rig.elapse(5)
        assert await begun(rig.state, row(2), limits=limits) == Go(1, 0.0)

    async def test_a_pause(self, rig: Rig) -> None:
        await begun(rig.state, row(1))
        await settled(rig.state, row(1), Change.RETRY, pause_s=30.0)
        await rig.elapse(-HOUR_S)
        assert await self.waits(rig, 2, "pause") <= 30
        await rig.elapse(30)
        assert await begun(rig.state, row(2)) == Go(1, 0.0)

    async def test_an_open_breaker_and_a_probe(self, rig: Rig) -> None:
        for number in range(BREAKER.failures):
            await begun(rig.state, row(number))
            await settled(rig.state, row(number), Change.RETRY, healthy=False)
        await rig.elapse(-HOUR_S)
        assert await self.waits(rig, 9, "breaker") <= BREAKER.open_for
        await rig.elapse(BREAKER.open_for)
        assert await begun(rig.state, row(9)) == Go(1, 0.0)
        await rig.elapse(-HOUR_S)
        await self.waits(rig, 8, "breaker")
        await rig.elapse(LIMITS.probe_s)
        assert await begun(rig.state, row(8), b"next probe") == Go(1, 0.0)

    async def test_settling(self, rig: Rig) -> None:
        assert await begun(rig.state, row(1)) == Go(1, 0.0)
        await rig.elapse(-HOUR_S)
        assert await self.waits(rig, 1, "settling") <= LIMITS.settle_s
        await rig.elapse(LIMITS.settle_s)
        assert isinstance(await begun(rig.state, row(1), b"later"), AmbiguousAttempt)

    async def test_settling_after_a_loss(self, rig: Rig) -> None:
        await rig.lose_and_recover(in_doubt_s=HOUR_S)
        await rig.elapse(-HOUR_S)
        assert await self.waits(rig, 1, "settling", ask_first=True) <= LIMITS.settle_s
        await rig.elapse(LIMITS.settle_s)
        assert isinstance(await begun(rig.state, row(1), b"later", ask_first=True), AmbiguousAttempt)

    async def test_a_retry(self, rig: Rig) -> None:
        await begun(rig.state, row(1))
        await settled(rig.state, row(1), Change.RETRY, due_in_s=30.0)
        await rig.elapse(-HOUR_S)
        assert (await peeked(rig.state, row(1))).due_in_s <= 30

    async def test_what_is_parked_or_lent(self, rig: Rig) -> None:
        one = Parked(row(1), 0, Coordinate("parked_messages", 0, 1), 30.0, None, 1)
        await answered(rig.state.park(of(LANE, [one])))
        await rig.elapse(-HOUR_S)
        (first,) = await answered(rig.state.next_due(of(LANE, [TAG])))
        assert first is not None
        assert first <= 30
        await rig.elapse(30)
        for _ in range(2):
            (taken,) = await answered(rig.state.take_due(of(LANE, [DueRequest(TAG, 9)]), lease_s=60))
            assert [due.row for due in taken] == [row(1)]
            await rig.elapse(-HOUR_S)
            assert await answered(rig.state.next_due(of(LANE, [TAG]))) == [60]
            await rig.elapse(60)

    async def test_a_quota(self, rig: Rig) -> None:
        (before,) = await rig.state.charge([Charge("s:github", 5, Quota(5, 60))])
        await rig.elapse(-HOUR_S)
        (after,) = await rig.state.charge([Charge("s:github", 1, Quota(5, 60))])
        assert (before.granted, after.granted) == (True, False)
        assert after.ends_in_s <= 60

    async def test_by_how_much_is_told_and_rows_stay(self, rig: Rig) -> None:
        assert await rig.state.attend([TAG]) == 0
        await answered(rig.state.mark([Mark(row(1), 0, Stage.DONE)]))
        await rig.elapse(-HOUR_S)
        assert await rig.state.attend([TAG]) == pytest.approx(HOUR_S, abs=1.0)
        assert (await peeked(rig.state, row(1))).stage is Stage.DONE
        await rig.elapse(HOUR_S)
        assert await rig.state.attend([TAG]) == pytest.approx(HOUR_S, abs=1.0)
