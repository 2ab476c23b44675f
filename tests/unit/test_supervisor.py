"""Which failures of a service end the process, and after which a service is made anew while the others go on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.errors import ConsumerBroken, OffsetMissing, PartitionLost, RecordTooLarge, RelayError
from relay.engine.observer import Observer
from relay.engine.supervision import FIRST_PAUSE_S, LONG_LIFE_S, LONGEST_PAUSE_S, CallCancelled, next_pause
from relay.run.services import OpenService, Supervisor
from tests.fakes.virtual_time import LoopClock, virtually


class Lives(Observer):
    """Makes services; keeps the starts of their lives, and all reports."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.begun: dict[str, list[float]] = {}
        self.told: list[tuple[str, RelayError, float]] = []
        self.died: list[tuple[str, Exception, bool]] = []
        """Name, cause, and whether others had been stopped before the report."""
        self.stopped: list[str] = []

    def service_failed(self, name: str, error: RelayError, again_in_s: float) -> None:
        self.told.append((name, error, again_in_s))

    def service_died(self, name: str, error: Exception) -> None:
        self.died.append((name, error, bool(self.stopped)))

    def service(self, name: str, *failures: BaseException, lives_s: float = 5.0) -> OpenService:
        """Ends with each of `failures` in turn, `lives_s` after its start, and then runs well."""
        todo = list(failures)
        return lambda: _Served(self, name, todo.pop(0) if todo else None, lives_s)

    async def supervise(self, services: dict[str, OpenService], seconds: float) -> None:
        stop = asyncio.Event()
        supervisor = Supervisor(services, _once(), lambda: None, self.clock, self)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(supervisor.run(stop))
            await asyncio.wait([running], timeout=seconds)
            stop.set()


@dataclass
class _Served:
    lives: Lives
    name: str
    failure: BaseException | None
    lives_s: float

    async def run(self, stop: asyncio.Event) -> None:
        self.lives.begun.setdefault(self.name, []).append(self.lives.clock.monotonic())
        try:
            await self.lives.clock.wait(stop, self.lives_s if self.failure else None)
        except asyncio.CancelledError:
            self.lives.stopped.append(self.name)
            raise
        if self.failure and not stop.is_set():
            async with asyncio.TaskGroup():  # as a runner has one
                raise self.failure
        self.lives.stopped.append(self.name)


async def _once() -> AsyncIterator[int]:
    yield 0
    await asyncio.Event().wait()


@virtually
async def test_a_broken_consumer_is_replaced_while_the_others_go_on() -> None:
    lives, error = Lives(), ConsumerBroken("the fetch task is dead")
    await lives.supervise({"a": lives.service("a", error, error), "b": lives.service("b")}, 100)
    first, second, third = lives.begun["a"]
    assert second - first == pytest.approx(5 + FIRST_PAUSE_S)
    assert third - second == pytest.approx(5 + 2 * FIRST_PAUSE_S)
    assert len(lives.begun["b"]) == 1
    assert lives.told == [("a", error, FIRST_PAUSE_S), ("a", error, 2 * FIRST_PAUSE_S)]
    assert sorted(lives.stopped) == ["a", "b"]


@pytest.mark.parametrize("error", [OffsetMissing("g has no offset"), PartitionLost("the group counted anew")])
def test_missing_offsets_and_fences_restart_that_consumer_only(error: RelayError) -> None:
    @virtually
    async def run() -> None:
        lives = Lives()
        await lives.supervise({"a": lives.service("a", error, error), "b": lives.service("b")}, 100)
        assert len(lives.begun["a"]) == 3
        assert len(lives.begun["b"]) == 1
        assert lives.told == [("a", error, FIRST_PAUSE_S), ("a", error, 2 * FIRST_PAUSE_S)]
        assert lives.died == []

    run()


@pytest.mark.parametrize(
    "failure", [lambda: RuntimeError("a bug"), lambda: RecordTooLarge("a letter", [0]), lambda: RelayError("?")]
)
def test_anything_else_ends_the_process(failure: Callable[[], Exception]) -> None:
    @virtually
    async def run() -> None:
        lives, error = Lives(), failure()
        with pytest.raises(BaseExceptionGroup) as raised:
            await lives.supervise({"a": lives.service("a", error), "b": lives.service("b")}, 100)
        assert raised.value.subgroup(lambda each: each is error) is not None
        assert lives.told == []
        [(name, told, late)] = lives.died
        assert name == "a"
        assert isinstance(told, ExceptionGroup)
        assert told.exceptions == (error,)
        assert not late, "the others take their time to end"

    run()


@virtually
async def test_a_bug_beside_a_broken_consumer_ends_the_process_too() -> None:
    lives = Lives()
    both = BaseExceptionGroup("two", [ConsumerBroken("dead"), RuntimeError("a bug")])
    with pytest.raises(BaseExceptionGroup) as raised:
        await lives.supervise({"a": lives.service("a", both)}, 100)
    assert raised.value.subgroup(RuntimeError) is not None


@virtually
async def test_a_stop_does_not_wait_for_the_pause() -> None:
    lives = Lives()
    began = lives.clock.monotonic()
    errors = [ConsumerBroken("dead")] * 5
    await lives.supervise({"a": lives.service("a", *errors, lives_s=1.0)}, 15)
    assert lives.clock.monotonic() - began == pytest.approx(15)
    assert lives.told[-1][2] == 8.0
    assert lives.begun["a"][-1] - began == pytest.approx(1 + 1 + 1 + 2 + 1 + 4)


@given(st.lists(st.floats(0, LONG_LIFE_S, exclude_max=True), min_size=1, max_size=12))
def test_pauses_double_up_to_a_bound(lives: list[float]) -> None:
    pauses = [0.0]
    for lived_s in lives:
        pauses.append(next_pause(pauses[-1], lived_s))
    assert pauses[1] == FIRST_PAUSE_S
    assert all(after == min(2 * before, LONGEST_PAUSE_S) for before, after in pairwise(pauses[1:]))
    assert next_pause(pauses[-1], LONG_LIFE_S) == FIRST_PAUSE_S


@virtually
async def test_a_service_that_a_library_cancels_does_not_vanish() -> None:
    """A TaskGroup takes no notice of a task that ended so."""
    lives = Lives()
    with pytest.raises(BaseExceptionGroup) as raised:
        await lives.supervise({"a": lives.service("a", asyncio.CancelledError()), "b": lives.service("b")}, 100)
    assert raised.value.subgroup(CallCancelled) is not None
    assert [name for name, _, _ in lives.died] == ["a"]
