"""Contract tests of the state port: rate, pause, circuit breaker, room, and the index of dead letters. Subclasses
provide `rig`."""

import asyncio
from dataclasses import replace
from itertools import count
from math import inf
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from relay.domain.errors import PartitionLost
from relay.domain.hold import Hold
from relay.log.port import Coordinate
from relay.state.attempts import CallKind, Change, Go, PingDue, Wait
from relay.state.port import EndpointHealth, FailedEntry
from relay.state.replies import answered, of
from relay.state.rows import Row, tag_of
from tests.contract.state_contract import ANSWER, BREAKER, LANE, LIMITS, Rig, ask, begun, outcome, peeked, row, settled
from tests.expecting import expect

UNUSED = count()
"""A number for each example's receiver, because examples share a rig."""
AT = Coordinate("parked_messages", 0, 1)


class EndpointsContract:
    async def fail(self, rig: Rig, times: int, first: int = 0) -> None:
        for number in range(first, first + times):
            await begun(rig.state, row(number))
            await settled(rig.state, row(number), Change.RETRY, healthy=False)

    async def health(self, rig: Rig) -> EndpointHealth:
        (found,) = await rig.state.endpoints(["r:ci"])
        return found

    @settings(max_examples=25)
    @given(
        limit=st.integers(1, 20),
        steps=st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 8)), min_size=1, max_size=12),
    )
    async def test_starts_keep_to_the_rate_in_every_window(
        self, rig: Rig, limit: int, steps: list[tuple[int, int]]
    ) -> None:
        window_s, receiver = 1.0, f"r-{next(UNUSED)}"
        limits = replace(LIMITS, interval_s=window_s / limit)
        now, starts, number = 0.0, [], 0
        for pause_ms, asked in steps:
            await rig.elapse(pause_ms / 1000)
            now += pause_ms / 1000
            keys = [row(number + one, receiver) for one in range(asked)]
            number += asked
            for verdict in await answered(rig.state.begin(of(LANE, [ask(key, limits=limits) for key in keys]))):
                if isinstance(verdict, Go):
                    assert 0 <= verdict.start_in_s <= 1
                    starts.append(now + verdict.start_in_s)
                else:
                    assert isinstance(verdict, Wait)
                    assert verdict.why == "rate"
        for start in starts:
            assert sum(start <= other < start + window_s - 1e-5 for other in starts) <= limit

    async def test_an_endpoint_that_is_no_more_is_forgotten_and_its_rows_are_not(self, rig: Rig) -> None:
        assert await begun(rig.state, row(1)) == Go(1, 0.0)
        await settled(rig.state, row(1), Change.RETRY, healthy=False)
        await rig.state.hold("r:ci", Hold("paused", await rig.state.time()))
        before = await peeked(rig.state, row(1))
        await rig.state.forget_endpoint("r:ci")
        await rig.state.forget_endpoint("r:ci")
        assert await self.health(rig) == EndpointHealth("closed", 0.0, 0)
        assert await peeked(rig.state, row(1)) == before
        former = LANE._replace(epoch=LANE.epoch - 1)
        with pytest.raises(PartitionLost):
            await answered(rig.state.intend_to_park(of(former, [row(1)])))

    async def test_without_its_topic_the_fence_of_a_lane_is_forgotten(self, rig: Rig) -> None:
        assert await begun(rig.state, row(1)) == Go(1, 0.0)
        await rig.state.forget_endpoint("r:ci", [LANE])
        await answered(rig.state.intend_to_park(of(LANE._replace(epoch=LANE.epoch - 1), [row(1)])))

    async def test_a_rate_wait_records_nothing_and_ends_when_told(self, rig: Rig) -> None:
        limits = replace(LIMITS, interval_s=10)
        assert await begun(rig.state, row(1), limits=limits) == Go(1, 0.0)
        assert await begun(rig.state, row(2), limits=limits) == Wait(9.0, "rate")
        assert await peeked(rig.state, row(2)) == Row()
        await rig.elapse(9)
        second = expect(Go, await begun(rig.state, row(2), limits=limits))
        assert second.start_in_s == pytest.approx(1.0)

    async def test_a_faster_pace_takes_effect_before_the_next_slot_of_the_former_one(self, rig: Rig) -> None:
        slow, fast = replace(LIMITS, interval_s=100.0), replace(LIMITS, interval_s=4.0)
        assert await begun(rig.state, row(1), limits=slow) == Go(1, 0.0)
        assert await begun(rig.state, row(2), limits=fast) == Wait(4.0, "rate"), "it may have a slot up to 1 s ahead"
        await rig.elapse(1)
        assert await begun(rig.state, row(2), limits=fast) == Wait(3.0, "rate")
        await rig.elapse(3)
        second = expect(Go, await begun(rig.state, row(2), limits=fast))
        assert second.start_in_s == pytest.approx(1.0)
        assert await begun(rig.state, row(3), limits=fast) == Wait(4.0, "rate")

    async def test_a_pause_holds_the_endpoint(self, rig: Rig) -> None:
        await begun(rig.state, row(1))
        await settled(rig.state, row(1), Change.RETRY, pause_s=20)
        assert await begun(rig.state, row(2)) == Wait(20.0, "pause")
        assert await begun(rig.state, row(2), b"p", kind=CallKind.POLL) == Wait(20.0, "pause")
        assert await begun(rig.state, row(2, "other")) == Go(1, 0.0)
        await rig.state.resume("r:ci")
        assert await begun(rig.state, row(2)) == Go(1, 0.0)

    async def test_a_hold_lasts_until_it_is_resumed(self, rig: Rig) -> None:
        held = Hold("paused", await rig.state.time(), "moving house, \u00e9")
        await rig.state.hold("r:ci", held)
        assert await self.health(rig) == EndpointHealth("closed", inf, 0, hold=held)
        await rig.elapse(1e6)
        assert await begun(rig.state, row(2)) == Wait(inf, "pause")
        assert await begun(rig.state, row(3), b"p", kind=CallKind.POLL) == Wait(inf, "pause")
        assert await begun(rig.state, row(2, "other")) == Go(1, 0.0)
        await rig.state.resume("r:ci")
        assert await self.health(rig) == EndpointHealth("closed", 0.0, 0)
        assert await begun(rig.state, row(2)) == Go(1, 0.0)

    async def test_a_pause_that_was_asked_for_does_not_end_a_hold(self, rig: Rig) -> None:
        await begun(rig.state, row(1))
        held = Hold("gone", await rig.state.time())
        await rig.state.hold("r:ci", held)
        await settled(rig.state, row(1), Change.RETRY, pause_s=20)
        await rig.elapse(30)
        assert (await self.health(rig)).hold == held

    async def test_what_was_found_out_twice_is_so_since_the_first_time(self, rig: Rig) -> None:
        first = Hold("gone", round(await rig.state.time(), 3), "it said 410")
        await rig.state.hold("r:ci", first)
        await rig.elapse(3)
        later = round(await rig.state.time(), 3)
        await rig.state.hold("r:ci", Hold("gone", later, "said 410 to another one"))
        assert (await self.health(rig)).hold == first
        by_hand = Hold("paused", later, "by hand")
        await rig.state.hold("r:ci", by_hand)
        await rig.state.hold("r:ci", again := Hold("paused", later, "for another reason"))
        assert (await self.health(rig)).hold == again

    @pytest.mark.parametrize("reason", ["gone", "disabled"])
    async def test_a_request_from_before_a_resume_holds_nothing(
        self, rig: Rig, reason: Literal["gone", "disabled"]
    ) -> None:
        before = Hold(reason, round(await rig.state.time(), 3))
        await rig.elapse(1)
        await rig.state.resume("r:ci")
        await rig.elapse(1)
        assert not await rig.state.hold("r:ci", before)
        assert not await rig.state.hold("r:ci", before)
        assert (await self.health(rig)).hold is None
        assert await begun(rig.state, row(2)) == Go(1, 0.0)
        after = Hold(reason, round(await rig.state.time(), 3))
        assert await rig.state.hold("r:ci", after)
        assert await rig.state.hold("r:ci", before), "it is held, if not for that"
        assert (await self.health(rig)).hold == after

    async def test_an_operator_may_hold_after_any_resume(self, rig: Rig) -> None:
        before = Hold("paused", round(await rig.state.time(), 3))
        await rig.elapse(1)
        await rig.state.resume("r:ci")
        assert await rig.state.hold("r:ci", before)
        assert (await self.health(rig)).hold == before

    async def test_a_resume_from_before_the_clock_was_set_back_prevents_no_hold(self, rig: Rig) -> None:
        await rig.state.resume("r:ci")
        await rig.elapse(-3_600)
        assert await rig.state.hold("r:ci", Hold("gone", await rig.state.time()))

    async def test_what_is_read_again_counts_where_nothing_newer_is_known(self, rig: Rig) -> None:
        before = await rig.state.time()
        old = Hold("gone", round(before - 100, 3))
        await rig.state.hold_again({"r:ci": old, "s:github": old})
        assert [each.hold for each in await rig.state.endpoints(["r:ci", "s:github"])] == [old, old]
        await rig.elapse(1)
        await rig.state.resume("r:ci")
        assert await rig.state.hold_again({"r:ci": old, "s:github": old}) == ["r:ci"]
        assert (await self.health(rig)).hold is None
        await rig.elapse(1)
        new = Hold("paused", round(await rig.state.time(), 3))
        await rig.state.hold_again({"r:ci": new})
        assert (await self.health(rig)).hold == new
        assert await rig.state.hold_again({"r:ci": old}) == []
        assert (await self.health(rig)).hold == new

    async def test_a_hold_that_is_on_the_log_no_more_is_resumed(self, rig: Rig) -> None:
        """The state lost its last writes, and the end of the hold with them."""
        tags, begin = [tag_of("r:ci"), tag_of("r:cd")], await rig.state.time()
        held = Hold("paused", round(begin, 3))
        for owner in ("r:ci", "r:cd"):
            await rig.state.hold(owner, held)
        await rig.state.hold_again({}, tags=tags, before=begin)
        assert (await self.health(rig)).hold == held, "it was held since the log was read"
        await rig.elapse(2)
        await rig.state.hold_again({"r:cd": held}, tags=tags, before=begin + 1)
        assert [each.hold for each in await rig.state.endpoints(["r:ci", "r:cd"])] == [None, held]
        assert await begun(rig.state, row(2)) == Go(1, 0.0)

    async def test_a_pause_is_taken_once_per_token_and_never_shortened(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await settled(rig.state, row(), Change.RETRY, pause_s=20)
        await rig.elapse(15)
        await settled(rig.state, row(), Change.RETRY, pause_s=20)
        assert (await self.health(rig)).paused_for_s == pytest.approx(5)
        await settled(rig.state, row(), Change.RETRY, b"", pause_s=1)
        assert (await self.health(rig)).paused_for_s == pytest.approx(5)

    async def test_a_run_of_failures_opens_the_breaker_and_one_probe_decides(self, rig: Rig) -> None:
        await self.fail(rig, 3)
        assert await self.health(rig) == EndpointHealth("open", 0.0, 3, 0.0)
        await rig.elapse(10)
        assert await begun(rig.state, row(9)) == Wait(20.0, "breaker")
        await rig.elapse(20)
        assert (await self.health(rig)).breaker == "half_open"
        verdicts = await asyncio.gather(*(begun(rig.state, row(100 + number)) for number in range(50)))
        assert sum(verdict == Go(1, 0.0) for verdict in verdicts) == 1
        assert sum(isinstance(verdict, Wait) and verdict.why == "breaker" for verdict in verdicts) == 49

    async def test_a_successful_probe_closes_and_a_failed_one_opens_again(self, rig: Rig) -> None:
        await self.fail(rig, 3)
        await rig.elapse(30)
        await begun(rig.state, row(10), b"probe")
        await settled(rig.state, row(10), Change.RETRY, b"probe", healthy=False)
        assert await begun(rig.state, row(11), b"probe") == Wait(30.0, "breaker")
        await rig.elapse(30)
        await begun(rig.state, row(11), b"probe-2")
        await settled(rig.state, row(11), Change.RESULT, b"probe-2", healthy=True)
        assert await self.health(rig) == EndpointHealth("closed", 0.0, 0)

    @pytest.mark.parametrize("healthy", [True, False])
    async def test_an_attempt_that_began_before_it_opened_decides_nothing(self, rig: Rig, healthy: bool) -> None:
        for number in (50, 51):
            await begun(rig.state, row(number), b"%d" % number)
        await self.fail(rig, 3)
        await settled(rig.state, row(50), Change.RESULT, b"50", healthy=healthy)
        assert await self.health(rig) == EndpointHealth("open", 0.0, 3, 0.0)
        await rig.elapse(30)
        await begun(rig.state, row(10), b"probe")
        await settled(rig.state, row(51), Change.RESULT, b"51", healthy=healthy)
        assert await self.health(rig) == EndpointHealth("half_open", 0.0, 3, 30.0)

    async def test_a_probe_that_says_nothing_makes_room_for_the_next(self, rig: Rig) -> None:
        await self.fail(rig, 3)
        await rig.elapse(30)
        await begun(rig.state, row(10), b"probe")
        assert isinstance(await begun(rig.state, row(11)), Wait)
        await settled(rig.state, row(10), Change.RELEASED, b"probe")
        assert await begun(rig.state, row(11)) == Go(1, 0.0)
        await rig.elapse(20)  # its lease ends
        assert await begun(rig.state, row(12)) == Go(1, 0.0)

    async def test_health_counts_once_per_token_but_always_without_one(self, rig: Rig) -> None:
        await begun(rig.state, row())
        for _ in range(5):
            await settled(rig.state, row(), Change.RETRY, healthy=False)
        assert (await self.health(rig)).failures == 1
        await settled(rig.state, row(), Change.RETRY, b"", healthy=False)
        assert (await self.health(rig)).failures == 2

    async def test_success_ends_a_run_and_an_old_run_starts_anew(self, rig: Rig) -> None:
        await self.fail(rig, 2)
        await settled(rig.state, row(), Change.RESULT, b"", healthy=True)
        await self.fail(rig, 2, first=10)
        assert (await self.health(rig)).failures == 2
        await rig.elapse(61)
        await self.fail(rig, 1, first=20)
        found = await self.health(rig)
        assert (found.breaker, found.failures) == ("closed", 1)
        assert found.failing_for_s == pytest.approx(61), "nothing succeeded between"
        await rig.elapse(60)
        await self.fail(rig, 2, first=30)
        assert (await self.health(rig)).breaker == "open", "the window has not passed before its end"

    async def ping(self, rig: Rig, number: int, *, healthy: bool | None, pause_s: float = 0.0) -> None:
        """As the engine does it: begin an attempt, get the verdict to ping, and settle it as released."""
        token = b"ping-%d" % number
        assert isinstance(await begun(rig.state, row(number), token), PingDue)
        before = await peeked(rig.state, row(number))
        assert await settled(rig.state, row(number), Change.RELEASED, token, healthy=healthy, pause_s=pause_s) == before

    async def long_outage(self, rig: Rig) -> None:
        """Fail the endpoint, and let 600 s pass, after which a probe may be sent."""
        await self.fail(rig, 3)
        await rig.elapse(600)

    async def test_in_a_long_outage_one_is_told_to_ping_and_no_row_is_touched(self, rig: Rig) -> None:
        since = round(await rig.state.time(), 3)
        await self.long_outage(rig)
        limits = replace(LIMITS, interval_s=10)
        first = expect(PingDue, await begun(rig.state, row(9), b"p", limits=limits))
        assert first.down_for_s == 600.0
        assert first.since == pytest.approx(since, abs=5), "when it failed first"
        assert await begun(rig.state, row(9), b"p", limits=limits) == first, "the same verdict when repeated"
        assert await begun(rig.state, row(10), limits=limits) == Wait(1.0, "offline")
        assert await peeked(rig.state, row(9)) == Row()
        await rig.elapse(20)  # its lease ends
        assert await begun(rig.state, row(10), b"next", limits=limits) == PingDue(620.0, first.since)
        verdicts = await asyncio.gather(*(begun(rig.state, row(100 + number)) for number in range(50)))
        assert all(verdict == Wait(1.0, "offline") for verdict in verdicts)

    async def test_a_ping_answered_closes_it_for_messages_that_were_tried_before_too(self, rig: Rig) -> None:
        await self.long_outage(rig)
        await self.ping(rig, 1, healthy=True)
        assert await self.health(rig) == EndpointHealth("closed", 0.0, 0)
        assert await begun(rig.state, row(1), b"t2") == Go(2, 0.0)
        assert await begun(rig.state, row(9)) == Go(1, 0.0)

    async def test_a_ping_not_answered_keeps_it_offline_until_the_next(self, rig: Rig) -> None:
        await self.long_outage(rig)
        await self.ping(rig, 9, healthy=False)
        for number in (9, 10):
            assert await begun(rig.state, row(number), b"new") == Wait(60.0, "offline")
        await settled(
            rig.state, row(9), Change.RELEASED, b"ping-9", healthy=True
        )  # late: its failure is stored already
        found = await self.health(rig)
        assert (found.breaker, found.failing_for_s, found.failures) == ("open", 600.0, 3)
        await rig.elapse(60)
        found_again = expect(PingDue, await begun(rig.state, row(10), b"p2"))
        assert found_again.down_for_s == 660.0

    async def test_who_has_just_taken_its_lane_over_pings_it_at_once_and_then_as_the_others(self, rig: Rig) -> None:
        await self.long_outage(rig)
        await self.ping(rig, 9, healthy=False)
        assert await begun(rig.state, row(9), b"new") == Wait(60.0, "offline")
        await rig.elapse(10)
        assert await begun(rig.state, row(9), b"here", open_s=10.5) == Wait(50.0, "offline"), "it was there before"
        assert isinstance(await begun(rig.state, row(9), b"at once", open_s=5.0), PingDue)
        assert await begun(rig.state, row(9), b"another", open_s=5.0) == Wait(1.0, "offline"), "while one is under way"
        await settled(rig.state, row(9), Change.RELEASED, b"at once", healthy=False)
        for open_s in (5.0, 10.5):
            assert await begun(rig.state, row(9), b"later", open_s=open_s) == Wait(60.0, "offline")
        await rig.elapse(60)
        assert isinstance(await begun(rig.state, row(9), b"in time", open_s=70.0), PingDue)

    async def test_what_there_is_reason_to_ask_is_pinged_at_the_next_attempt_and_once(self, rig: Rig) -> None:
        await rig.state.probe_soon(["r:ci", "r:other"])
        assert await begun(rig.state, row(50), b"t0") == Go(1, 0.0), "which are well"
        await self.long_outage(rig)
        await self.ping(rig, 9, healthy=False)
        for _ in range(2):
            await rig.state.probe_soon(["r:ci"])
        assert isinstance(await begun(rig.state, row(9), b"soon"), PingDue)
        await rig.state.probe_soon(["r:ci"])
        assert await begun(rig.state, row(10), b"other") == Wait(1.0, "offline"), "while one is under way"
        await settled(rig.state, row(9), Change.RELEASED, b"soon", healthy=False)
        assert await begun(rig.state, row(9), b"later") == Wait(60.0, "offline")

    async def test_one_that_answers_when_it_is_asked_about_a_message_is_pinged_at_the_next_attempt(
        self, rig: Rig
    ) -> None:
        await self.long_outage(rig)
        await self.ping(rig, 9, healthy=False)
        await settled(rig.state, row(1), Change.RESULT, b"", healthy=True)
        assert (await self.health(rig)).breaker == "half_open"
        assert isinstance(await begun(rig.state, row(9), b"soon"), PingDue)

    async def test_one_that_is_up_otherwise_is_pinged_at_the_next_attempt_and_twice_as_often_at_most(
        self, rig: Rig
    ) -> None:
        await self.long_outage(rig)
        await self.ping(rig, 9, healthy=False)
        for change in (Change.RETRY, Change.RESULT):
            await settled(rig.state, row(1), change, b"", up=True)
            assert isinstance(await begun(rig.state, row(9), b"soon"), PingDue)
            await settled(rig.state, row(2), change, b"", up=True)
            assert await begun(rig.state, row(10), b"other") == Wait(1.0, "offline"), "while one is under way"
            await settled(rig.state, row(9), Change.RELEASED, b"soon", healthy=False)
            await settled(rig.state, row(3), change, b"", up=True)
            assert await begun(rig.state, row(9), b"later") == Wait(60.0, "offline")
            await rig.elapse(60)
            await self.ping(rig, 9, healthy=False)

    async def test_that_one_is_up_otherwise_is_no_success_of_a_post(self, rig: Rig) -> None:
        for number in range(3):
            await settled(rig.state, row(50), Change.RETRY, b"", up=True)
            await self.fail(rig, 1, first=number)
        await settled(rig.state, row(50), Change.RETRY, b"", up=True)
        found = await self.health(rig)
        assert (found.breaker, found.failures) == ("open", 3)
        assert await begun(rig.state, row(9), b"new") == Wait(30.0, "breaker"), "no message is spent as a probe"

    async def test_a_ping_that_was_not_sent_makes_room_for_the_next(self, rig: Rig) -> None:
        await self.long_outage(rig)
        await self.ping(rig, 9, healthy=None)
        await self.ping(rig, 10, healthy=True)

    async def test_a_ping_settled_late_still_counts_for_the_endpoint_alone(self, rig: Rig) -> None:
        await self.long_outage(rig)
        assert isinstance(await begun(rig.state, row(9), b"p"), PingDue)
        await answered(
            rig.state.settle([outcome(row(9), Change.RESULT, b"", result=ANSWER)])
        )  # the receiver's own callback
        before = await peeked(rig.state, row(9))
        assert await settled(rig.state, row(9), Change.RELEASED, b"p", healthy=True) == before
        assert (await self.health(rig)).breaker == "closed"

    async def test_so_many_failures_in_a_row_open_it_in_a_long_outage_however_slow_they_come(self, rig: Rig) -> None:
        await self.fail(rig, 1)
        await rig.elapse(550)
        await self.fail(rig, 1, first=1)
        assert (await self.health(rig)).breaker == "closed"
        await rig.elapse(70)
        await self.fail(rig, 1, first=2)
        found = await self.health(rig)
        assert (found.breaker, found.failures, found.failing_for_s) == ("open", 1, 620.0)
        assert await begun(rig.state, row(9)) == Wait(30.0, "offline")

    async def test_fewer_failures_leave_it_closed_also_in_a_long_outage(self, rig: Rig) -> None:
        await self.fail(rig, 1)
        await begun(rig.state, row(5))
        await settled(rig.state, row(5), Change.RETRY, healthy=None)
        await rig.elapse(620)
        await self.fail(rig, 1, first=1)
        found = await self.health(rig)
        assert (found.breaker, found.failures, found.failing_for_s) == ("closed", 1, 620.0)

    async def test_one_failure_opens_it_where_one_is_enough(self, rig: Rig) -> None:
        await begun(rig.state, row())
        await settled(rig.state, row(), Change.RETRY, healthy=False, breaker=replace(BREAKER, failures=1))
        assert (await self.health(rig)).breaker == "open"

    async def test_time_in_which_nobody_was_there_is_no_part_of_an_outage(self, rig: Rig) -> None:
        tags = [tag_of("r:ci")]

        async def attended(times: int) -> None:
            for _ in range(times):
                await rig.elapse(5)
                await rig.state.attend(tags)

        await rig.state.attend(tags)
        await self.fail(rig, 3)
        await attended(20)
        assert (await self.health(rig)).failing_for_s == pytest.approx(100)
        await rig.elapse(3600)
        assert (await self.health(rig)).failing_for_s == pytest.approx(100)
        assert await begun(rig.state, row(9)) == Go(1, 0.0), "a probe as after a short outage"
        await rig.state.attend(tags)
        await settled(rig.state, row(9), Change.RETRY, healthy=False)
        assert (await self.health(rig)).failing_for_s == pytest.approx(100)
        await attended(100)
        found = expect(PingDue, await begun(rig.state, row(10), b"p"))
        assert found.down_for_s == pytest.approx(600)

    async def test_an_outage_that_begins_before_somebody_is_there_again_counts_from_then(self, rig: Rig) -> None:
        tags = [tag_of("r:ci")]
        await rig.state.attend(tags)
        await rig.elapse(100)
        await self.fail(rig, 2)
        await rig.elapse(10)
        assert (await self.health(rig)).failing_for_s == 0
        await rig.state.attend(tags)
        await rig.elapse(5)
        assert (await self.health(rig)).failing_for_s == pytest.approx(5)

    async def test_a_failure_that_nothing_followed_for_a_day_is_no_part_of_the_outage(self, rig: Rig) -> None:
        await self.fail(rig, 3)
        await rig.elapse(86_400)
        assert (await self.health(rig)).failing_for_s == pytest.approx(86_400)
        await rig.elapse(1)
        assert (await self.health(rig)).failing_for_s == 0
        assert await begun(rig.state, row(9)) == Go(1, 0.0), "a probe as after a short outage"
        await settled(rig.state, row(9), Change.RETRY, healthy=False)
        assert await begun(rig.state, row(10)) == Wait(30.0, "breaker")

    async def test_one_that_is_held_for_its_outage_is_disabled_until_it_is_resumed(self, rig: Rig) -> None:
        await self.long_outage(rig)
        await self.ping(rig, 9, healthy=False)
        held = Hold("disabled", round(await rig.state.time(), 3), "it was down for 600 s")
        await rig.state.hold("r:ci", held)
        await rig.elapse(1e6)
        assert await self.health(rig) == EndpointHealth("half_open", inf, 3, 0.0, held)
        assert await begun(rig.state, row(9)) == Wait(inf, "disabled")
        await rig.state.resume("r:ci")
        assert await self.health(rig) == EndpointHealth("closed", 0.0, 0)
        assert await begun(rig.state, row(9)) == Go(1, 0.0)


class FailedContract:
    @staticmethod
    def entry(number: int, receiver: str = "ci") -> FailedEntry:
        at = Coordinate("failed_messages", 0, number)
        return FailedEntry(
            receiver, at, 1000.0 + number, "rejected", "github", f"m-{number}", life=f"{number}-1700000000"
        )

    async def test_newest_first_and_repeatable(self, rig: Rig) -> None:
        entries = [self.entry(number) for number in range(5)]
        await rig.state.index_failed(entries)
        await rig.state.index_failed([*entries, self.entry(0, "-")])
        assert await rig.state.failed("ci", limit=3) == [entries[4], entries[3], entries[2]]
        assert await rig.state.failed_receivers() == ["-", "ci"]

    async def test_those_behind_a_time(self, rig: Rig) -> None:
        entries = [
            structs.replace(self.entry(number), failed_at=1_795_947_677.034 + number // 2) for number in range(6)
        ]
        await rig.state.index_failed(entries)
        before = entries[2].failed_at
        assert await rig.state.failed("ci", limit=3, before=before) == [entries[3], entries[2], entries[1]]
        assert await rig.state.failed("ci", limit=9, before=before - 0.001) == [entries[1], entries[0]]
        assert await rig.state.failed("ci", limit=9, before=1.0) == []

    async def test_the_newest_10000_stay(self, rig: Rig) -> None:
        for start in range(0, 10_500, 1500):
            await rig.state.index_failed([self.entry(number) for number in range(start, start + 1500)])
        found = await rig.state.failed("ci", limit=20_000)
        assert [entry.at.offset for entry in found] == list(range(10_499, 499, -1))

    async def test_what_is_dropped_is_listed_no_more(self, rig: Rig) -> None:
        entries = [self.entry(number) for number in range(4)]
        await rig.state.index_failed([*entries, self.entry(1, "-")])
        await rig.state.drop_failed([entries[1], entries[3], self.entry(9), self.entry(9, "nobody")])
        await rig.state.drop_failed([entries[1]])
        assert await rig.state.failed("ci", limit=10) == [entries[2], entries[0]]
        assert await rig.state.failed("-", limit=10) == [self.entry(1, "-")]
        await rig.state.drop_failed([entries[0], entries[2]])
        assert await rig.state.failed_receivers() == ["-"]
