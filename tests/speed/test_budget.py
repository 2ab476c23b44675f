"""The budget of a message in our own Python: the maximum number of function calls, Python's and C's.

The number of calls is the same on every machine. Time is not, and nor is its ratio to that of a plain loop: the same
commit took 39 turns of such a loop for a message on one machine, and 73 to 97 on another, depending on caches and other
load. A limit is a fiftieth above the number measured with CPython 3.11, so that a task, a lock or a chain of helpers
per message is noticed. A single slow call inside a C library is not. Lower the limit when you make a message cheaper.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf

import pytest

from relay.engine import completion, pump
from relay.watch.traces import Traces
from tests.speed.hot_path import TOPICS, AttemptLogging, HotPath, hop_records, messages, passed
from tests.speed.traced import Encoding, traces_to

MESSAGES = 1_024
TURNS = 3
"""How often so many messages are handled; the first time fills the caches, and does not count."""

FROM_SENDER = 197.0
TO_RECEIVER = 391.0
FROM_SENDER_TRACED = 372.0
TO_RECEIVER_TRACED = 619.0
RECORDING = 11.2
LOGGING = 74.7


@pytest.fixture(autouse=True)
def _not_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch here waits for the end of the one before: marks that wait for each other would make that minutes. And
    the turns of a slow machine are as large as those of a fast one."""
    monkeypatch.setattr(completion, "MARK_EVERY_S", 1e-6)
    monkeypatch.setattr(pump, "TURN_S", inf)


async def calls_per_message(work: Callable[[], Awaitable[None]]) -> float:
    """How many calls one of `work`'s MESSAGES makes."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    await work()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(TURNS - 1):
            await work()
    finally:
        sys.setprofile(before)
    return calls / MESSAGES / (TURNS - 1)


@asynccontextmanager
async def running(path: HotPath) -> AsyncIterator[None]:
    pump = asyncio.ensure_future(path.pump.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)


async def routing(traces: Traces | None = None) -> float:
    path = HotPath(traces)
    records = iter([messages(MESSAGES, first=MESSAGES * turn) for turn in range(TURNS)])

    async def route() -> None:
        await passed(path.from_sender, next(records), batch=48)

    async with running(path):
        cost = await calls_per_message(route)
    assert len(path.log.appended) == TURNS * MESSAGES
    return cost


async def delivering(traces: Traces | None = None) -> float:
    path = HotPath(traces)
    async with running(path):
        await passed(path.from_sender, messages(TURNS * MESSAGES), batch=48)
        hops = hop_records(path.log.appended)
        path.log.appended.clear()
        turn = iter(range(TURNS))
        share = MESSAGES // len(path.to_receiver)

        async def deliver() -> None:
            start = next(turn) * share
            await asyncio.gather(
                *(
                    passed(lane, hops[TOPICS.to_receiver(name)][start : start + share], batch=16)
                    for name, lane in path.to_receiver.items()
                )
            )

        cost = await calls_per_message(deliver)
    assert len(path.log.appended) == TURNS * MESSAGES
    return cost


async def traced(measure: Callable[[Traces], Awaitable[float]]) -> float:
    """With a span for each message, until it has the form in which it is sent."""
    processor = Encoding()
    cost = await measure(traces_to(processor))
    assert processor.encoded >= TURNS * MESSAGES
    return cost


async def logging_attempts(*, flush: bool) -> float:
    """The part of a step that logs its request; with `flush`, the whole until the log has it."""
    attempts = AttemptLogging()
    posts = attempts.posts(messages(MESSAGES))

    async def record() -> None:
        attempts.record(posts)
        if flush:
            await attempts.flush()

    async def record_and_forget() -> None:
        await record()
        attempts.forget()

    cost = await calls_per_message(record if flush else record_and_forget)
    assert len(attempts.log.appended) == (TURNS * MESSAGES if flush else 0)
    return cost


async def test_routing_a_message() -> None:
    assert await routing() < FROM_SENDER


async def test_delivering_a_message() -> None:
    assert await delivering() < TO_RECEIVER


async def test_routing_a_message_that_is_traced() -> None:
    assert await traced(routing) < FROM_SENDER_TRACED


async def test_delivering_a_message_that_is_traced() -> None:
    assert await traced(delivering) < TO_RECEIVER_TRACED


async def test_recording_an_attempt() -> None:
    assert await logging_attempts(flush=False) < RECORDING


async def test_logging_an_attempt() -> None:
    assert await logging_attempts(flush=True) < LOGGING
