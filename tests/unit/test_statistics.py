"""Attempts are counted in memory, and stored every few seconds: bounded, and none twice."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from relay.domain.errors import LogUnavailable, StateUnavailable
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.identity import DeliveryId
from relay.domain.outcome import Delivered, classify
from relay.domain.receiver import CodeClasses, Endpoint, Life, Receiver
from relay.domain.statistics import BOUNDS_S, NUMBERS, OUTCOMES, Counted, count_in, sum_of
from relay.state.read_model import LastAttempt, Tally
from relay.telemetry.metrics import Metrics
from relay.watch import statistics as counting
from relay.watch.statistics import AT_ONCE, MetricsMeter, StatisticsWriter, Tallies
from tests.fakes.state import MemoryState
from tests.fakes.steps import StandingClock

CODES: CodeClasses = {}


FINE = Response(204, {}, b"")


def attempts(*told: tuple[Exchange, float]) -> Counted:
    numbers = [0] * NUMBERS
    for exchange, seconds in told:
        count_in(numbers, exchange, classify(exchange, codes=CODES, now=0), seconds)
    return Counted(tuple(numbers))


def response(status: int) -> Response:
    return Response(status, {}, b"")


@pytest.mark.parametrize(
    ("exchange", "outcome"),
    [
        (response(202), "accepted"),
        (response(204), "delivered"),
        (Response(200, {}, b"{}"), "delivered"),
        (response(429), "not_now"),
        (response(500), "ambiguous"),
        (NoResponse("timeout", "", sent=True), "ambiguous"),
        (NoResponse("refused", "", sent=False), "not_processed"),
        (response(422), "rejected"),
        (response(410), "gone"),
    ],
)
def test_an_attempt_counts_by_what_it_came_to(exchange: Exchange, outcome: str) -> None:
    counted = attempts((exchange, 0.3))
    assert dict(zip(OUTCOMES, counted.outcomes, strict=True)) == dict.fromkeys(OUTCOMES, 0) | {outcome: 1}
    assert counted.success_rate == (1.0 if outcome in ("accepted", "delivered") else 0.0)
    assert counted.quantiles_ms(0.5) == [500 if isinstance(exchange, Response) else None]


def test_where_nothing_was_tried_there_is_no_rate() -> None:
    nothing = sum_of([])
    assert (nothing.attempts, nothing.success_rate, nothing.quantiles_ms(0.99)) == (0, None, [None])


@given(st.lists(st.floats(0, 200), min_size=1, max_size=200), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_quantile_is_the_end_of_the_bucket_that_the_true_one_is_in(seconds: list[float], share: float) -> None:
    [found] = sum_of(attempts((response(204), each)) for each in seconds).quantiles_ms(share)
    true = sorted(seconds)[max(0, -int(-share * len(seconds) // 1) - 1)]
    assert found == next((bound * 1000 for bound in BOUNDS_S if true <= bound), None)


def count(
    tallies: Tallies, receiver: str, exchange: Exchange = FINE, seconds: float = 0.1, now: float = 0.0, life: str = ""
) -> None:
    tallies.count(f"r:{receiver}", exchange, classify(exchange, codes=CODES, now=0), seconds, now, life)


def test_what_was_counted_is_taken_once() -> None:
    tallies = Tallies()
    count(tallies, "ci", now=5.0)
    count(tallies, "ci", NoResponse("refused", "", sent=False), 0.2, now=6.0)
    last = LastAttempt(6.0, None, "refused", 0.2)
    both = attempts((response(204), 0.1), (NoResponse("refused", "", sent=False), 0.2))
    assert tallies.of(tallies.take()) == [Tally("r:ci", both, last)]
    assert tallies.of(tallies.take()) == []


def test_counts_of_a_former_owner_of_the_name_are_dropped() -> None:
    lives = {"ci": "1", "cd": "1"}
    tallies = Tallies(life_of=lambda receiver: lives.get(receiver, ""))
    for name in ("ci", "cd", "file"):
        count(tallies, name, life=lives.get(name, ""))
    lives["ci"] = "2"  # the record that announces the new owner was read
    assert [each.owner for each in tallies.of(tallies.take())] == ["r:cd", "r:file"]
    count(tallies, "ci", life="2")
    assert [each.owner for each in tallies.of(tallies.take())] == ["r:ci"]


def test_an_attempt_at_a_former_owners_endpoint_that_ends_late_is_not_counted_for_the_next_one() -> None:
    tallies = Tallies(lambda _receiver: Endpoint("https://bob.example/"), lambda _receiver: "2")
    meter, said = MetricsMeter(Metrics("1"), tallies), Response(200, {}, b"alices")
    alices, bobs = (Receiver("ci", Endpoint("https://a.example/"), life=Life(id)) for id in ("1", "2"))
    for receivers in ([alices], [bobs, alices], [alices, bobs]):
        for each in receivers:
            meter.posted(each, said if each is alices else FINE, Delivered(200), 60.0, 7.0)
        found = tallies.of(tallies.take())
        assert [each.counted.attempts for each in found] == [1] * (bobs in receivers)
        assert all(each.response is not None and each.response.body == "" for each in found)


async def test_while_the_lives_of_names_are_unknown_counts_stay_and_no_attempt_fails() -> None:
    """The index of receivers is being built again, say, as the disk was full."""
    is_known = True

    def life_of(_receiver: str) -> str:
        if not is_known:
            raise LogUnavailable("the index of receivers failed")
        return "1"

    state, tallies = MemoryState(), Tallies(life_of=life_of)
    writer = StatisticsWriter(tallies, state, StandingClock(), writer="p")
    count(tallies, "ci", life="1")
    is_known = False
    count(tallies, "ci", life="2")
    with pytest.raises(LogUnavailable):
        await writer.write()
    is_known = True
    await writer.write()
    assert await attempts_of(state, "ci") == 1


async def test_counts_are_written_if_they_cannot_be_weighed() -> None:
    def took(_sent: Mapping[str, int]) -> None:
        raise LogUnavailable("the index of receivers failed")

    state, tallies = MemoryState(), Tallies()
    writer = StatisticsWriter(tallies, state, StandingClock(), writer="p", took=took)
    count(tallies, "ci")
    with pytest.raises(LogUnavailable):
        await writer.write()
    await writer.write()
    assert await attempts_of(state, "ci") == 1


def test_attempts_at_a_callback_are_counted_for_its_source_and_are_no_traffic_of_a_receiver() -> None:
    tallies = Tallies(lambda _receiver: pytest.fail("a callback has no last response"))
    meter = MetricsMeter(Metrics("1"), tallies)
    meter.called_back("ci", FINE, Delivered(204), 0.1, 6.0)
    [tally] = tallies.of(tallies.take())
    assert (tally.owner, tally.counted.attempts, tally.response) == ("s:ci", 1, None)


def test_an_answer_that_cannot_be_polled_is_logged_once_a_minute_for_a_receiver() -> None:
    meter = MetricsMeter(Metrics("1"), Tallies())
    with capture_logs() as lines:
        for receiver in ("ci", "ci", "cd"):
            meter.unpolled(DeliveryId(receiver, "shop", "m-1"), "{response.id} would be 'a/b'")
    assert [(line["event"], line["receiver"], line["message_id"], line["detail"]) for line in lines] == [
        ("answer_not_polled", "ci", "m-1", "{response.id} would be 'a/b'"),
        ("answer_not_polled", "cd", "m-1", "{response.id} would be 'a/b'"),
    ]


async def test_receivers_alone_are_weighed_for_their_series() -> None:
    tallies, weighed = Tallies(), list[Any]()
    count(tallies, "ci")
    tallies.count("s:shop", FINE, Delivered(204), 0.1, 6.0)
    await StatisticsWriter(tallies, MemoryState(), StandingClock(), writer="p", took=weighed.append).write()
    assert weighed == [{"ci": 1}]


def test_no_response_is_kept_for_its_body() -> None:
    response, tallies = Response(200, {}, b"x" * 100_000), Tallies()
    before = sys.getrefcount(response)
    count(tallies, "ci", response)
    assert sys.getrefcount(response) == before


def test_memory_is_bounded_with_many_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST", 3)
    tallies = Tallies()
    for number in range(5):
        count(tallies, f"r-{number}")
    count(tallies, "r-0")
    assert [(tally.owner, tally.counted.attempts) for tally in tallies.of(tallies.take())] == [
        ("r:r-0", 2),
        ("r:r-1", 1),
        ("r:r-2", 1),
    ]
    count(tallies, "r-4")
    assert [tally.owner for tally in tallies.of(tallies.take())] == ["r:r-4"]


class Shaky(MemoryState):
    """Every storing call takes effect, and its reply is lost while `away`."""

    away = False

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def tally(self, teller: str, number: int, tallies: object) -> None:
        await super().tally(teller, number, tallies)  # type: ignore[arg-type]
        self.sizes.append(len(tallies))  # type: ignore[arg-type]
        if self.away:
            raise StateUnavailable("the reply was lost")


async def attempts_of(state: MemoryState, receiver: str) -> int:
    (found,) = await state.statistics([f"r:{receiver}"])
    return sum_of(found.hours.values()).attempts


async def test_what_was_not_taken_is_told_again_and_counts_once() -> None:
    state, tallies = Shaky(), Tallies()
    writer = StatisticsWriter(tallies, state, StandingClock(), writer="p")
    state.away = True
    count(tallies, "ci")
    for _ in range(3):
        with pytest.raises(StateUnavailable):
            await writer.write()
        count(tallies, "ci")
    state.away = False
    await writer.end()
    assert await attempts_of(state, "ci") == 4
    assert state.sizes == [1] * 5


async def test_many_receivers_are_told_in_few_calls() -> None:
    state, tallies = Shaky(), Tallies()
    for number in range(2 * AT_ONCE + 1):
        count(tallies, f"r-{number}")
    await StatisticsWriter(tallies, state, StandingClock(), writer="p").write()
    assert state.sizes == [AT_ONCE, AT_ONCE, 1]


async def test_many_receivers_do_not_stop_the_event_loop() -> None:
    """A response takes some time to mask: 10,000 of them at once took half a second."""
    masked = list[str]()

    def endpoint_of(receiver: str) -> Endpoint:
        masked.append(receiver)
        return Endpoint("https://ci.example/")

    class Counting(Shaky):
        async def tally(self, teller: str, number: int, tallies: object) -> None:
            await super().tally(teller, number, tallies)
            assert len(masked) == sum(self.sizes)

    tallies = Tallies(endpoint_of, lambda _receiver: "")
    for number in range(2 * AT_ONCE):
        count(tallies, f"r-{number}")
    await StatisticsWriter(tallies, Counting(), StandingClock(), writer="p").write()
    assert len(masked) == 2 * AT_ONCE


async def test_it_goes_on_when_the_state_is_back() -> None:
    state, tallies = Shaky(), Tallies()
    state.away = True

    class Clock(StandingClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            state.away = len(state.sizes) < 3
            if len(state.sizes) == 4:
                raise asyncio.CancelledError

    writer = StatisticsWriter(tallies, state, Clock(), writer="p")
    count(tallies, "ci")
    with pytest.raises(asyncio.CancelledError):
        await writer.run()
    assert await attempts_of(state, "ci") == 1
