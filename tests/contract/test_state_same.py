"""Property test: the Redis scripts and the fake give the same replies to any sequence of calls."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import NamedTuple

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import astuple, replace
from redis.asyncio import Redis

from relay.domain.hold import Hold
from relay.domain.identity import MessageId
from relay.domain.numbering import NumberGap, Numbering
from relay.domain.receiver import BreakerPolicy, OfflinePolicy
from relay.domain.statistics import NUMBERS, Counted
from relay.log.port import Coordinate, TopicPartition
from relay.state.attempts import BeginRequest, CallKind, Change, Limits, NumberRequest, Settlement
from relay.state.port import Gap, IntakeRequest, Lane, LaneEnds, State
from relay.state.read_model import (
    Heartbeat,
    LaneHeartbeat,
    LaneLoad,
    LastAttempt,
    LastResponse,
    LineHead,
    ParkedLine,
    Tally,
)
from relay.state.redis.state import RedisState
from relay.state.replies import of
from relay.state.rows import (
    TAGS,
    Arrival,
    DueRequest,
    Mark,
    MessageStage,
    Parked,
    ParkedLife,
    Result,
    RowKey,
    Stage,
    Superseding,
    tag_of,
)
from tests.contract.state_contract import WINDOW_S
from tests.contract.turned_clock import TurnedClock, age_keys
from tests.fakes.state import MemoryState
from tests.servers.valkey import ValkeyServer

BREAKER = BreakerPolicy(failures=2, window=30, open_for=20, offline=OfflinePolicy(after=60, ping_every=40))
OWNERS = [
    *[owner for owner in (f"r:{number}" for number in range(1000)) if tag_of(owner) == 0][:2],
    next(owner for owner in (f"r:{number}" for number in range(1000)) if tag_of(owner) == 1),
]
BEGIN = TurnedClock().now
BEGIN_MS = round(BEGIN * 1000)
NONE_NAMED: st.SearchStrategy[dict[str, object]] = st.just({})


class Call(NamedTuple):
    """A call of a method of the state."""

    method: str
    positional: tuple[object, ...]
    named: dict[str, object]

    async def reply(self, state: State) -> object:
        return rounded(await getattr(state, self.method)(*self.positional, **self.named))


def call(
    method: str, *positional: st.SearchStrategy[object], named: st.SearchStrategy[dict[str, object]] = NONE_NAMED
) -> st.SearchStrategy[Call]:
    return st.builds(Call, st.just(method), st.tuples(*positional), named)


epochs = st.sampled_from([5, 5, 5, 5, 4, 6])


def in_lanes(items: st.SearchStrategy[object], most: int) -> st.SearchStrategy[list[tuple[Lane, object]]]:
    """Items of two lanes, each with one owner; one lane more often."""
    numbered = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1]), items), max_size=most)
    return st.builds(
        lambda owners, each: [(Lane("topic", n, owners[n]), item) for n, item in each],
        st.tuples(epochs, epochs),
        numbered,
    )


rows = st.builds(RowKey, st.sampled_from(OWNERS), st.sampled_from([b"row-1-------", b"row-2-------"]))
TOKENS = (b"t1", b"t2", b"\xff\x00" * 200)
tokens = st.sampled_from(TOKENS)
generations = st.sampled_from([0, 0, 0, 1, 60_000])
lanes = st.builds(Lane, st.just("topic"), st.just(0), epochs)
queues = st.sampled_from([None, b"queue-1-----", b"queue-2-----"])
durations = st.sampled_from([0.0, 0.5, 5.0, 40.0])
rooms = st.sampled_from([None, None, 0, 1, 2, 5_000])
number_asks = st.sampled_from([None, None, NumberRequest(0, 1), NumberRequest(0, 70), NumberRequest(3, 1)])
numberings = st.builds(
    Numbering,
    st.integers(1, 9),
    st.sampled_from([(), ((2, 4),)]),
    st.sampled_from([(), (NumberGap(1, 3, "gone"), NumberGap(5, 5, "expired"))]),
)
limits = st.builds(
    Limits,
    st.sampled_from([0.0, 0.4, 5.0]),
    st.just(10.0),
    st.just(BREAKER),
    st.just(15.0),
    st.sampled_from([None, 0, 1, 1, 2]),
)
asks = st.builds(
    BeginRequest,
    rows,
    generations,
    tokens,
    limits,
    kind=st.sampled_from([CallKind.POST, CallKind.POST, CallKind.POLL]),
    attempts=st.sampled_from([0, 0, 3]),
    resolved=st.sampled_from([None, *(BEGIN_MS + passed for passed in (0, 10_000, 25_000, 61_000))]),
    ask_first=st.booleans(),
    recorded_ms=st.sampled_from([None, None, BEGIN_MS - 1, BEGIN_MS + 1]),
    room=rooms,
    room_to_retry=st.sampled_from([None, 0, 1]),
    unseen=st.booleans(),
    queue=queues,
    counted_s=st.sampled_from([0.0, 5.0, 1e6]),
    open_s=st.sampled_from([5.0, 1e6]),
    offset=st.sampled_from([None, 4, 5]),
    number=number_asks,
)
results = st.sampled_from([None, Result("answered", 200, "a/b", b"\xfe" * 40)])
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
    detail=st.sampled_from([None, "because\nof that"]),
    result=results,
    healthy=st.sampled_from([None, True, False, False]),
    pause_s=st.sampled_from([0.0, 0.0, 0.0, 7.0]),
    breaker=st.just(BREAKER),
    settle_s=st.sampled_from([0.0, 25.0]),
    may_arrive=st.booleans(),
    number=number_asks,
)
other_requests = st.builds(
    Settlement,
    rows,
    generations,
    st.just(b""),
    st.sampled_from([Change.RETRY, Change.RESULT]),
    result=results,
    up=st.just(True),
    breaker=st.just(BREAKER),
)
keys = st.sampled_from([b"queue-1-----", b"queue-2-----"])
heads = st.builds(
    LineHead,
    keys,
    st.just(b"row-1-------"),
    st.just("github"),
    st.just("m-\xe9"),
    st.sampled_from(["", *OWNERS]),
    st.integers(0, 10_000),
)
hot = st.lists(st.tuples(st.sampled_from(OWNERS), st.floats(0, 1)), max_size=2).map(tuple)
heartbeats = st.builds(
    Heartbeat,
    st.lists(heads, max_size=2).map(tuple),
    st.sampled_from(["", "process"]),
    in_flight=st.integers(0, 10_000),
    parked=st.lists(st.builds(ParkedLine, st.sampled_from(OWNERS), keys), max_size=2).map(tuple),
    load=st.none() | st.builds(LaneLoad, st.integers(0, 10_000), hot),
)
signs = st.builds(LaneHeartbeat, st.just("topic"), st.integers(0, 1), heartbeats)
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

last_attempts = st.builds(
    LastAttempt, st.sampled_from([BEGIN, BEGIN + 9]), st.just(200), st.none(), st.sampled_from([0.1, 7.0])
)
responses = st.builds(
    LastResponse,
    st.sampled_from([1.5, 1_700_000_000.25]),
    st.sampled_from([200, 500]),
    st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=3), max_size=2),
    st.text(max_size=3),
    st.booleans(),
)
tallies = st.builds(
    Tally,
    st.sampled_from(OWNERS),
    st.builds(Counted, st.sampled_from([(1, *[0] * (NUMBERS - 1)), (70_000, *[3] * (NUMBERS - 1))])),
    last_attempts,
    st.none() | responses,
)
leased: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries({"lease_s": st.just(30)})
due_asks = st.builds(DueRequest, st.integers(0, 1), st.integers(1, 3), st.sampled_from([b"", *TOKENS]))
moments = st.sampled_from([BEGIN - 5.0, BEGIN + 5.0, BEGIN + 1_000.0])
holds = st.builds(Hold, st.sampled_from(["paused", "gone", "disabled"]), moments, st.sampled_from(["", "why"]))
all_there_are: st.SearchStrategy[dict[str, object]] = st.fixed_dictionaries(
    {"tags": st.just(list(range(TAGS))), "before": moments}
)
messages = st.builds(MessageId, st.sampled_from(["github", "gitlab"]), st.sampled_from(["m-1", "m-2"]))
arrivals = st.builds(
    Arrival,
    messages,
    st.sampled_from([b"digest", b"\xff\x00other"[:6]]),
    st.sampled_from([0, 255, 256]),
    st.sampled_from([0, 255, 2**33]),
    st.sampled_from([MessageStage.ACCEPTED, MessageStage.ARRIVED]),
)


def one_request(owner: str, asks: list[BeginRequest], paced: bool) -> list[tuple[Lane, BeginRequest]]:
    """Items that share a request."""
    joined = [replace(ask, row=RowKey(owner, ask.row.digest), rides=n > 0, paced=paced) for n, ask in enumerate(asks)]
    return of(Lane("topic", 0, 6), joined)


def superseding(partition: int, offset: int, keep_s: float, window_s: float) -> Superseding:
    """A message at that place; only the last two differ."""
    row, recorded_ms = RowKey(OWNERS[0], b"row-%d-%d-----" % (partition, offset)), BEGIN_MS + offset % 3 * 3_000
    key = b"key-%d-------" % (offset % 2)
    return Superseding(key, row, partition, offset, recorded_ms, f"m-{offset}", keep_s, window_s)


supersedings = st.builds(
    superseding, st.integers(0, 1), st.integers(0, 6), st.sampled_from([5.0, 1_000.0]), st.sampled_from([0.0, 10.0])
)
# The way of most deliveries: all that is asked, sent and marked, in one go.
usual_begin = call(
    "begin",
    st.builds(
        of,
        st.just(Lane("topic", 0, 6)),
        st.lists(
            st.builds(
                BeginRequest,
                rows,
                generations,
                tokens,
                limits,
                room=rooms,
                unseen=st.just(True),
                queue=st.just(b"new-key-----"),
            )
        ),
    ),
)
usual_settle = call(
    "settle",
    st.lists(
        st.builds(
            Settlement, rows, generations, tokens, st.sampled_from([Change.ACCEPTED, Change.RESULT]), result=results
        ),
        max_size=4,
    ),
)

calls = st.one_of(
    call("begin", st.builds(one_request, st.sampled_from(OWNERS), st.lists(asks, max_size=4), st.booleans())),
    call("supersede", st.lists(supersedings, max_size=4, unique_by=lambda one: one.row)),
    call("reserve", lanes, st.integers(0, 50)),
    call("suspect", lanes, st.integers(0, 3), st.integers(0, 3)),
    call("leave", lanes),
    call("forget_endpoint", st.sampled_from(OWNERS), st.lists(lanes, max_size=1)),
    usual_begin,
    usual_settle,
    call("arrive", st.lists(arrivals, max_size=4)),
    call("enqueued", st.lists(st.builds(replace, arrivals, excluded=st.booleans()), max_size=3)),
    call("messages", st.lists(messages, max_size=3)),
    call("begin", in_lanes(asks, 4)),
    call("settle", st.lists(st.one_of(settlements, settlements, other_requests), max_size=4)),
    call("mark", st.lists(marks, max_size=2)),
    call("remember", st.lists(marks, max_size=2)),
    call("gaps", st.just([0, 1])),
    call("number_again", st.dictionaries(st.sampled_from(OWNERS), numberings, max_size=2)),
    call("numbering", st.sampled_from(OWNERS)),
    call("close_gaps", st.just({0: Gap(BEGIN, 0.0)})),
    call("park", in_lanes(references, 3)),
    call("restore", lanes, st.lists(references, max_size=2)),
    call("unpark", in_lanes(st.builds(ParkedLife, rows, generations, queues), 2)),
    call("intend_to_park", in_lanes(rows, 2)),
    call("take_due", in_lanes(due_asks, 2), named=leased),
    call("next_due", in_lanes(st.integers(0, 1), 3)),
    call("epochs", lanes, st.just([0])),
    call("begin_anew", lanes, st.fixed_dictionaries({0: st.sampled_from([4, 5, 6])})),
    call("intake", in_lanes(st.builds(IntakeRequest, rows, generations, queues), 4)),
    call("peek", st.lists(rows, max_size=4)),
    call("forget", st.lists(rows, max_size=1)),
    call("hold", st.sampled_from(OWNERS), holds),
    call("hold_again", st.dictionaries(st.sampled_from(OWNERS), holds, max_size=2)),
    call("hold_again", st.dictionaries(st.sampled_from(OWNERS), holds, max_size=1), named=all_there_are),
    call("resume", st.sampled_from(OWNERS)),
    call("probe_soon", st.lists(st.sampled_from(OWNERS), max_size=2)),
    call("endpoints", st.just(OWNERS)),
    call("row_details", st.lists(rows, max_size=4)),
    call("openings", st.just(OWNERS)),
    call("keep_heartbeats", st.lists(signs, max_size=2)),
    call("heartbeats", st.just([TopicPartition("topic", 0), TopicPartition("topic", 1)])),
    call("use_keys", st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([0.0, 1.0, 100.0]))),
    call("keys_used", st.just(["a", "b"])),
    call("parked_heads", st.just(TopicPartition("topic", 0)), st.lists(st.tuples(st.sampled_from(OWNERS), keys))),
    call("oldest_parked", st.just(9)),
    call("parked", st.just(OWNERS)),
    call("tally", st.sampled_from(["one", "another"]), st.integers(1, 3), st.lists(tallies, max_size=3)),
    call("statistics", st.just(OWNERS)),
    call("last_response", st.sampled_from(OWNERS)),
)
lane_ends = st.sampled_from([None, {}, {0: {TopicPartition("topic", 0): 5}, 1: {TopicPartition("topic", 1): 5}}])
steps = st.tuples(
    calls, st.sampled_from([0.0, 0.0, 0.1, 1.0, 10.0, 25.0, 61.0, 500.0, 800.0, 90_000.0, -600.0, -3_600.0])
)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def rounded(value: object) -> object:
    """`value` with its numbers rounded to milliseconds, for the scripts count in whole ones."""
    if isinstance(value, float):
        return round(value, 2)
    if value is None or isinstance(value, (str, bytes, int, Numbering)):  # no fractions; a numbering is long
        return value
    if isinstance(value, list | tuple):
        return type(value).__name__, [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if is_dataclass(value):
        return type(value).__name__, [rounded(getattr(value, name)) for name in value.__dataclass_fields__]
    if isinstance(value, Struct):
        return type(value).__name__, [rounded(item) for item in astuple(value)]
    return value


async def pass_time(clock: TurnedClock, client: Redis, seconds: float, states: tuple[State, State]) -> None:
    """Seconds below 0: the server's clock is set back. What a script notes of the time is up to a second old, but for
    that of `attend`."""
    if seconds > 0:
        clock.now += seconds
        await age_keys(client, seconds)
    elif seconds < 0:
        for state in states:
            await state.attend(range(TAGS))
        clock.now += seconds
        assert rounded(await states[0].attend(range(TAGS))) == rounded(await states[1].attend(range(TAGS)))


@settings(max_examples=100)
@given(script=st.lists(steps, min_size=5, max_size=40), in_doubt_s=st.sampled_from([0, 0, 60]), ends=lane_ends)
async def test_same_replies(
    server: ValkeyServer, script: list[tuple[Call, float]], in_doubt_s: float, ends: LaneEnds | None
) -> None:
    clock, client = TurnedClock(), Redis.from_url(server.url)
    memory = MemoryState(clock=clock, dedup_window_s=WINDOW_S, ready=False)
    redis = RedisState(server.url, dedup_window_s=WINDOW_S, clock=clock)
    try:
        await client.flushall()
        for state in (memory, redis):
            await state.lost()
            await state.ready(range(TAGS), in_doubt_s=in_doubt_s, ends=ends)
        for made, elapsed_s in script:
            note(f"{made}, then {elapsed_s} s")
            assert await made.reply(memory) == await made.reply(redis)
            await pass_time(clock, client, elapsed_s, (memory, redis))
    finally:
        await redis.close()
        await client.aclose()
