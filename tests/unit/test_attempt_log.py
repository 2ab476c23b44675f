"""Logging of attempts: in batches, bounded, and without delaying deliveries."""

import asyncio
from collections.abc import Sequence

import pytest

from relay.domain.attempt import Attempt, decode_attempt, is_sampled
from relay.domain.errors import LogUnavailable, PartlyAppended, RecordTooLarge
from relay.domain.exchange import Request, Response
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Endpoint
from relay.engine.decision import Decision, Done, Later
from relay.log.port import Coordinate, NewRecord
from relay.telemetry.metrics import Metrics
from relay.watch.attempt_log import AT_ONCE, AWAY_S, EVERY_S, LAST_S, MOST, TOGETHER, AttemptLog
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.steps import TOPICS
from tests.fakes.virtual_time import UNIX_START, LoopClock, virtually
from workers.journal import EndedRequest, RequestPurpose, attempt_of

ENDPOINT = Endpoint("https://ci.example/hooks")
REQUEST = Request("POST", ENDPOINT.url, (("ce-id", "m"),), b"{}")
OK = Response(200, {}, b"built")
FAILED = Later(5.0, "status")


class _Log(MemoryLog):
    """`error`: what it answers with, in place of taking anything. `hangs`: it does not answer."""

    error: Exception | None = None
    hangs = False
    calls: list[int]

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        self.calls.append(len(records))
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return await super().append(records)


class Rig:
    def __init__(self, share: float = 1.0) -> None:
        self.broker = MemoryBroker()
        self.log, self.metrics, self.clock = _Log(self.broker), Metrics("0"), LoopClock()
        self.log.calls = []
        self.attempts = AttemptLog(self.log, TOPICS, self.clock, self.metrics, share=share)

    async def __aenter__(self) -> "Rig":
        await self.log.start()
        await self.log.create(TOPICS.fixed(), {})
        self._task = asyncio.create_task(self.attempts.run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def tell(self, first: int = 0, count: int = 1, decision: Decision | None = None) -> None:
        for number in range(first, first + count):
            about = RequestPurpose("post", "r:ci", ENDPOINT, DeliveryId("ci", "github", f"m-{number}"))
            self.attempts.record(about, REQUEST, OK, decision or Done(), 0.5)

    def ping(self) -> None:
        self.attempts.record(
            RequestPurpose("ping", "r:ci", ENDPOINT), REQUEST, OK, Later(0.0, "answered", healthy=True), 0.5
        )

    def told(self) -> list[Attempt]:
        return [decode_attempt(record.value) for record in self.broker.records(TOPICS.delivery_attempts)]

    def ids(self) -> set[str | None]:
        return {attempt.message_id for attempt in self.told()}

    def untold(self, why: str) -> float | None:
        return self.metrics.registry.get_sample_value("relay_attempts_untold_total", {"why": why})


@virtually
async def test_they_are_told_together_and_soon() -> None:
    async with Rig() as rig:
        rig.tell(count=3)
        await asyncio.sleep(EVERY_S + 0.1)
        assert rig.log.calls == [3]
        assert rig.ids() == {"m-0", "m-1", "m-2"}
        [one, *_] = rig.told()
        assert (one.started_at, one.duration_ms) == (UNIX_START - 0.5, 500.0)
        rig.tell(first=3)
        await asyncio.sleep(EVERY_S + 0.1)
        assert rig.log.calls == [3, 1]
        assert rig.metrics.registry.get_sample_value("relay_attempts_told_total") == 4


@virtually
async def test_each_append_is_bounded() -> None:
    async with Rig() as rig:
        rig.tell(count=2 * TOGETHER + 1)
        await asyncio.sleep(EVERY_S + 0.1)
        assert rig.log.calls == [TOGETHER, TOGETHER, 1]


@virtually
async def test_what_is_too_much_is_dropped_and_counted() -> None:
    async with Rig() as rig:
        rig.tell(count=MOST + 7)
        assert rig.untold("full") == 7
        await asyncio.sleep(EVERY_S + 0.1)
        assert len(rig.told()) == MOST


@virtually
async def test_other_tasks_run_while_they_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = turns = most = 0

    def counted(made: EndedRequest) -> Attempt:
        nonlocal encoded
        encoded += 1
        return attempt_of(made)

    async def turn() -> None:
        nonlocal encoded, most, turns
        while True:
            most, encoded = max(most, encoded), 0
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr("relay.watch.attempt_log.attempt_of", counted)
    async with Rig() as rig:
        rig.tell(count=TOGETHER)
        ended = asyncio.create_task(rig.attempts.end())
        turning = asyncio.create_task(turn())
        await ended
        turning.cancel()
    assert most == AT_ONCE
    assert turns > TOGETHER / AT_ONCE


ERRORS = pytest.mark.parametrize("error", [LogUnavailable("no such topic"), RecordTooLarge("too large", [0])])


@ERRORS
@virtually
async def test_while_the_log_takes_none_it_is_left_alone(error: Exception) -> None:
    async with Rig() as rig:
        rig.log.error = error
        rig.tell(count=2 * AT_ONCE)
        await asyncio.sleep(EVERY_S + 0.1)
        assert (rig.log.calls, rig.untold("log")) == ([2 * AT_ONCE], None)
        await asyncio.sleep(AWAY_S)
        assert (rig.log.calls[1:], rig.untold("log")) == ([AT_ONCE], AT_ONCE)
        rig.log.error = None
        rig.tell(first=1_000, count=AT_ONCE)
        await asyncio.sleep(AWAY_S)
        assert rig.log.calls[2:] == [AT_ONCE, AT_ONCE]
        assert len(rig.told()) == 2 * AT_ONCE
        assert "m-1000" in rig.ids()
        rig.tell(first=2_000, count=2 * AT_ONCE)
        await asyncio.sleep(EVERY_S + 0.1)
        assert rig.log.calls[4:] == [2 * AT_ONCE]


@ERRORS
@virtually
async def test_a_short_failure_of_many_costs_none(error: Exception) -> None:
    async with Rig() as rig:
        rig.log.error = error
        rig.tell(count=TOGETHER)
        await asyncio.sleep(EVERY_S + 0.1)
        rig.log.error = None
        await asyncio.sleep(AWAY_S)
        assert len(rig.told()) == len(rig.ids()) == TOGETHER
        assert rig.metrics.registry.get_sample_value("relay_attempts_told_total") == TOGETHER


@pytest.mark.parametrize("count", [AT_ONCE, TOGETHER])
@virtually
async def test_what_the_log_took_before_it_failed_is_not_appended_again(count: int) -> None:
    async with Rig() as rig:
        places = {index: Coordinate(TOPICS.delivery_attempts, 0, index) for index in range(count - 3)}
        rig.log.error = PartlyAppended("one broker is away", places)
        rig.tell(count=count)
        await asyncio.sleep(EVERY_S + 0.1)
        rig.log.error = None
        await asyncio.sleep(AWAY_S)
        again = [] if count == AT_ONCE else [3]
        assert (rig.log.calls, len(rig.told())) == ([count, *again], sum(again))
        assert rig.untold("log") == (None if again else 3)
        assert rig.metrics.registry.get_sample_value("relay_attempts_told_total") == count - 3 + sum(again)


@virtually
async def test_a_bug_costs_that_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(made: EndedRequest) -> Attempt:
        assert made.about.delivery is not None
        assert made.about.delivery.message_id != "m-1"
        return attempt_of(made)

    monkeypatch.setattr("relay.watch.attempt_log.attempt_of", wrong)
    async with Rig() as rig:
        rig.tell(count=3)
        await asyncio.sleep(EVERY_S + 0.1)
        assert rig.ids() == {"m-0", "m-2"}
        assert rig.untold("bug") == 1


@virtually
async def test_at_the_end_the_rest_is_told() -> None:
    async with Rig() as rig:
        rig.tell(count=AT_ONCE + 1)
        began = rig.clock.monotonic()
        await rig.attempts.end()
        assert rig.clock.monotonic() == began
        assert len(rig.told()) == AT_ONCE + 1
        await rig.attempts.end()


@virtually
async def test_the_end_waits_for_what_is_under_way_and_not_for_long() -> None:
    async with Rig() as rig:
        rig.log.hangs = True
        rig.tell(count=AT_ONCE + 1)
        await asyncio.sleep(EVERY_S + 0.1)
        began = rig.clock.monotonic()
        await rig.attempts.end()
        assert rig.clock.monotonic() - began == pytest.approx(LAST_S)
        assert rig.untold("end") == AT_ONCE + 1


@virtually
async def test_the_end_comes_at_once_where_the_log_was_left_alone() -> None:
    async with Rig() as rig:
        rig.log.error = LogUnavailable("away")
        rig.tell()
        await asyncio.sleep(EVERY_S + 0.1)
        rig.log.error = None
        rig.tell(first=1)
        await rig.attempts.end()
        assert rig.ids() == {"m-1"}


@virtually
async def test_of_a_sample_all_is_told_and_of_the_others_what_failed() -> None:
    async with Rig(share=0.1) as rig:
        rig.tell(count=1_000)
        rig.tell(first=5_000, count=20, decision=FAILED)
        about = RequestPurpose("status", "r:ci", ENDPOINT, DeliveryId("ci", "github", "m-6000"))
        assert not is_sampled("github", "m-6000", 0.1)
        rig.attempts.record(about, REQUEST, OK, Later(5.0, "still working"), 0.5)
        rig.ping()
        await asyncio.sleep(EVERY_S + 0.1)
        done = [each for each in rig.told() if not each.failed]
        assert 60 < len(done) < 140
        assert "m-6000" not in rig.ids()
        assert rig.ids() >= {f"m-{number}" for number in range(5_000, 5_020)}
        assert [each.kind for each in rig.told() if each.message_id is None] == ["ping"]


def test_where_none_is_wanted_nobody_is_told() -> None:
    assert Rig(share=0.0).attempts.journal is None
    rig = Rig(share=0.5)
    assert rig.attempts.journal is rig.attempts
