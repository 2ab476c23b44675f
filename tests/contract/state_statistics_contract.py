"""Contract tests of the state port: statistics of attempts, reported by processes and kept for a day."""

from relay.domain.statistics import HOURS, NUMBERS, Counted
from relay.state.port import State
from relay.state.read_model import LastAttempt, LastResponse, Statistics, Tally
from tests.contract.state_contract import Rig

HOUR_S = 3600
LAST = LastAttempt(1_700_000_000.25, 204, None, 0.012)
LATER = LastAttempt(1_700_000_007.5, None, "connect_timeout", 5.0)


def counted(*numbers: int) -> Counted:
    return Counted((*numbers, *[0] * (NUMBERS - len(numbers))))


def tally(*numbers: int, owner: str = "r:ci", last: LastAttempt = LAST) -> Tally:
    return Tally(owner, counted(*numbers), last)


async def of(state: State, owner: str = "r:ci") -> Statistics:
    (found,) = await state.statistics([owner])
    return found


class StatisticsContract:
    async def test_of_what_nobody_told_nothing_is_known(self, rig: Rig) -> None:
        assert await rig.state.statistics(["r:ci", "r:cd"]) == [Statistics({}, None)] * 2

    async def test_what_processes_tell_is_added_up(self, rig: Rig) -> None:
        await rig.state.tally("one", 1, [tally(1, 2), tally(7, owner="r:cd", last=LATER)])
        await rig.state.tally("another", 1, [tally(70_000, 0, 5)])
        await rig.state.tally("one", 2, [tally(0, 1)])
        found, other = await rig.state.statistics(["r:ci", "r:cd"])
        (hour,) = found.hours
        assert found == Statistics({hour: counted(70_001, 3, 5)}, LAST)
        assert other == Statistics({hour: counted(7)}, LATER)

    async def test_what_is_told_again_adds_nothing(self, rig: Rig) -> None:
        whole = [tally(1), *(tally(2, owner=f"r:cd-{number}") for number in range(100))]
        for _ in range(3):
            await rig.state.tally("one", 1, whole)
        for owner, numbers in (("r:ci", counted(1)), ("r:cd-0", counted(2)), ("r:cd-99", counted(2))):
            assert list((await of(rig.state, owner)).hours.values()) == [numbers]

    async def test_the_latest_attempt_is_the_last_one_whoever_tells_first(self, rig: Rig) -> None:
        await rig.state.tally("one", 1, [tally(1, last=LATER)])
        await rig.state.tally("another", 1, [tally(1, last=LAST)])
        assert (await of(rig.state)).last == LATER

    async def test_each_hour_of_the_day_is_counted_apart_and_then_forgotten(self, rig: Rig) -> None:
        for number in range(HOURS + 3):
            await rig.state.tally("one", number, [tally(number)])
            await rig.elapse(HOUR_S)
        hours = (await of(rig.state)).hours
        assert [numbers.numbers[0] for numbers in hours.values()] == list(range(4, HOURS + 3))
        assert list(hours) == list(range(min(hours), max(hours) + 1))
        await rig.elapse((HOURS - 2) * HOUR_S)
        assert len((await of(rig.state)).hours) == 1
        await rig.elapse(2 * HOUR_S)
        assert await of(rig.state) == Statistics({}, None)

    async def test_expired_statistics_do_not_return_when_the_clock_is_set_back(self, rig: Rig) -> None:
        await rig.state.tally("one", 1, [tally(1)])
        await rig.elapse((HOURS + 1) * HOUR_S)
        assert await of(rig.state) == Statistics({}, None)
        await rig.elapse(-HOUR_S)
        assert await of(rig.state) == Statistics({}, None)

    async def test_an_endpoint_that_is_no_more_has_none(self, rig: Rig) -> None:
        await rig.state.tally("one", 1, [tally(1)])
        await rig.state.forget_endpoint("r:ci")
        assert await of(rig.state) == Statistics({}, None)

    async def test_statistics_are_kept_while_the_state_is_not_ready_and_lost_with_it(self, rig: Rig) -> None:
        await rig.state.tally("one", 1, [tally(1)])
        await rig.lose()
        assert await of(rig.state) == Statistics({}, None)
        await rig.state.tally("one", 1, [tally(3)])
        assert list((await of(rig.state)).hours.values()) == [counted(3)]

    async def test_the_last_response_is_kept_for_a_day_and_forgotten_with_its_receiver(self, rig: Rig) -> None:
        assert await rig.state.last_response("r:ci") is None
        first = LastResponse(1.5, 201, {"location": "/1"}, "körper\u0000" * 50, False)
        await rig.state.tally("one", 1, [tally(1)._replace(response=first), tally(1, owner="r:cd")])
        assert await rig.state.last_response("r:ci") == first
        assert await rig.state.last_response("r:cd") is None

        await rig.state.tally("one", 2, [tally(1)])  # a timeout leaves the response before it
        assert await rig.state.last_response("r:ci") == first
        second = LastResponse(2.5, 500, {}, "", True)
        for _ in range(2):
            await rig.state.tally("one", 3, [tally(1)._replace(response=second)])
        assert await rig.state.last_response("r:ci") == second

        await rig.elapse((HOURS + 1) * HOUR_S)
        assert await rig.state.last_response("r:ci") is None
        await rig.state.tally("one", 4, [tally(1)._replace(response=first)])
        await rig.state.forget_endpoint("r:ci")
        assert await rig.state.last_response("r:ci") is None
