"""The Redis scripts and the fake give the same replies to any sequence of calls."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import is_dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from relay.domain.errors import PartitionLost
from relay.domain.receiver import BreakerPolicy
from relay.log.port import Coordinate
from relay.state.port import (
    TAGS,
    BeginAsk,
    Change,
    IntakeAsk,
    Kind,
    Lane,
    Limits,
    Mark,
    Parked,
    Result,
    RowKey,
    Settlement,
    Stage,
    State,
    tag_of,
)
from relay.state.redis import RedisState
from tests.contract.state_contract import WINDOW_S
from tests.contract.turned_clock import TurnedClock, age_keys
from tests.fakes.state import MemoryState
from tests.servers.valkey import ValkeyServer

BREAKER = BreakerPolicy(failures=2, window=30, open_for=20)
OWNERS = ("r:a", "r:b")
TAGS_OF_OWNERS = sorted({tag_of(owner) for owner in OWNERS})

Call = Callable[[State], Awaitable[object]]

rows = st.builds(RowKey, st.sampled_from(OWNERS), st.sampled_from([b"row-1-------", b"row-2-------"]))
tokens = st.sampled_from([b"t1", b"t2", b"t3"])
generations = st.sampled_from([0, 0, 0, 1])
lanes = st.builds(Lane, st.just("topic"), st.just(0), st.sampled_from([5, 5, 5, 5, 4, 6]))
queues = st.sampled_from([None, b"queue-1-----", b"queue-2-----"])
durations = st.sampled_from([0.0, 0.5, 5.0, 40.0])
limits = st.builds(Limits, st.sampled_from([0.0, 0.4, 5.0]), st.just(10.0), st.just(BREAKER), st.just(15.0))
asks = st.builds(
    BeginAsk,
    rows,
    generations,
    tokens,
    limits,
    kind=st.sampled_from([Kind.POST, Kind.POST, Kind.POLL]),
    attempts=st.sampled_from([0, 0, 3]),
    takeover=st.booleans(),
    ask_first=st.booleans(),
)
settlements = st.builds(
    Settlement,
    rows,
    generations,
    st.one_of(tokens, st.just(b"")),
    st.sampled_from(Change),
    due_in_s=durations,
    counted=st.booleans(),
    last_status=st.sampled_from([None, 200, 500]),
    reason=st.sampled_from([None, "why"]),
    result=st.sampled_from([None, Result("answered", 200, "a/b", b"\xfe" * 40)]),
    healthy=st.sampled_from([None, True, False, False]),
    pause_s=st.sampled_from([0.0, 0.0, 0.0, 7.0]),
    breaker=st.just(BREAKER),
)
coordinates = st.one_of(st.none(), st.tuples(st.sampled_from([0, 255, 256]), st.sampled_from([0, 255, 2**33])))
finished_stages = st.sampled_from([Stage.AWAITING, Stage.PUBLISHED, Stage.DONE, Stage.FAILED])
marks = st.builds(Mark, rows, generations, finished_stages, coordinates, st.sampled_from([0, 9]))
references = st.builds(
    Parked,
    rows,
    generations,
    st.builds(Coordinate, st.just("parked_messages"), st.integers(0, 9), st.integers(0, 2**40)),
    durations,
    queues,
    st.integers(0, 5),
    st.booleans(),
)

calls: st.SearchStrategy[Call] = st.one_of(
    st.builds(lambda lane, ask: lambda state: state.begin(lane, ask), lanes, st.lists(asks, max_size=4)),
    st.builds(lambda items: lambda state: state.settle(items), st.lists(settlements, max_size=4)),
    st.builds(lambda items: lambda state: state.mark(items), st.lists(marks, max_size=2)),
    st.builds(lambda lane, items: lambda state: state.park(lane, items), lanes, st.lists(references, max_size=3)),
    st.builds(lambda lane, items: lambda state: state.restore(lane, items), lanes, st.lists(references, max_size=2)),
    st.builds(lambda lane, key, queue: lambda state: state.unpark(lane, [(key, queue)]), lanes, rows, queues),
    st.builds(lambda lane, key: lambda state: state.intend_to_park(lane, [(key, 0)]), lanes, rows),
    st.builds(
        lambda lane, limit: lambda state: state.take_due(lane, TAGS_OF_OWNERS, limit=limit, lease_s=30),
        lanes,
        st.integers(1, 3),
    ),
    st.builds(lambda lane: lambda state: state.next_due(lane, TAGS_OF_OWNERS), lanes),
    st.builds(
        lambda lane, key, generation, queue: lambda state: state.intake(lane, [IntakeAsk(key, generation, queue)]),
        lanes,
        rows,
        generations,
        queues,
    ),
    st.builds(lambda keys: lambda state: state.peek(keys), st.lists(rows, max_size=4)),
    st.builds(lambda keys: lambda state: state.forget(keys), st.lists(rows, max_size=1)),
    st.builds(lambda owner, s: lambda state: state.pause(owner, s), st.sampled_from(OWNERS), durations),
    st.just(lambda state: state.endpoints(OWNERS)),
    st.just(lambda state: state.parked(OWNERS)),
)
steps = st.tuples(calls, st.sampled_from([0.0, 0.0, 0.1, 1.0, 10.0, 25.0, 61.0, 500.0, 800.0]))


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    server.start()
    yield server
    server.stop()


def rounded(value: object) -> object:
    """`value` with its numbers rounded to milliseconds, for the scripts count in whole ones."""
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, list | tuple):
        return type(value).__name__, [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if is_dataclass(value):
        return type(value).__name__, [rounded(getattr(value, name)) for name in value.__dataclass_fields__]
    return value


async def reply(call: Call, state: State) -> object:
    try:
        return rounded(await call(state))
    except PartitionLost:
        return "fenced"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(steps, min_size=5, max_size=40))
async def test_same_replies(server: ValkeyServer, script: list[tuple[Call, float]]) -> None:
    clock, client = TurnedClock(), Redis.from_url(server.url)
    memory = MemoryState(clock=clock, dedup_window_s=WINDOW_S, ready=False)
    redis = RedisState(server.url, dedup_window_s=WINDOW_S, clock=clock)
    try:
        await client.flushall()
        for state in (memory, redis):
            await state.lost()
            await state.ready(range(TAGS), in_doubt_s=60)
        for call, elapsed_s in script:
            assert await reply(call, memory) == await reply(call, redis)
            clock.now += elapsed_s
            if elapsed_s:
                await age_keys(client, elapsed_s)
    finally:
        await redis.close()
        await client.aclose()
