"""Tests of the state with ids that a sender chooses to harm others.

Whatever their digests share, and however many are in one call, each script serves them as the fake does. The rows of
others stay unchanged.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest
from msgspec import structs
from redis.asyncio import Redis

import relay.state.redis.calls as script_files
from relay.domain.errors import StateUnavailable
from relay.domain.hold import Hold
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.incident import PersonMark
from relay.domain.numbering import NumberGap, Numbering
from relay.domain.receiver import Quota
from relay.domain.sliced import sliced
from relay.domain.statistics import NUMBERS, Counted
from relay.log.port import Coordinate, TopicPartition
from relay.state.attempts import BeginRequest, Change, NumberRequest, Settlement
from relay.state.port import Charge, FailedEntry, IntakeRequest, Lane, State
from relay.state.read_model import Heartbeat, LaneHeartbeat, LastAttempt, LastResponse, LineHead, Tally
from relay.state.redis.state import RedisState
from relay.state.replies import answered, of
from relay.state.rows import (
    TAGS,
    Arrival,
    DueRequest,
    Mark,
    Parked,
    ParkedLife,
    Result,
    RowKey,
    Stage,
    Superseding,
    delivery_row,
    tag_of,
)
from tests.contract.state_contract import LIMITS
from tests.contract.test_state_same import Call, rounded
from tests.contract.turned_clock import TurnedClock
from tests.fakes.state import MemoryState
from tests.servers.valkey import ValkeyServer

NEIGHBOURS: Final = [delivery_row(DeliveryId("ci", "neighbour", f"m-{number}")) for number in range(250)]
ALL_AT_ONCE: Final = 10_000
PATIENT: Final = "?socket_timeout=60"
MANY: Final = 9_000
"""More than Lua's stack has room for."""


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def not_sampled(count: int) -> Iterator[RowKey]:
    """Rows whose digests end so that release 0.1 never counted them."""
    number = 0
    while count:
        row = delivery_row(DeliveryId("ci", "hostile", f"m-{number}"))
        number += 1
        if row.digest[-1] % 16:
            count -= 1
            yield row


def alike(count: int, owner: str = "r:ci") -> list[RowKey]:
    """Rows that had one bucket in common, however many buckets there were."""
    return [RowKey(owner, b"\0\0\0\x01" + number.to_bytes(7, "big") + b"\0") for number in range(count)]


async def finish(state: RedisState, rows: Sequence[RowKey]) -> None:
    for part in sliced(rows, 1000):
        await answered(state.mark([Mark(row, 0, Stage.DONE) for row in part]))


async def stages(state: RedisState, rows: Sequence[RowKey]) -> set[Stage]:
    return {row.stage for part in sliced(rows, 1000) for row in await answered(state.peek(part))}


@asynccontextmanager
async def with_neighbours(server: ValkeyServer, in_doubt_s: float) -> AsyncIterator[RedisState]:
    async with Redis.from_url(server.url) as client:
        await client.flushall()
    state = RedisState(f"{server.url}{PATIENT}")
    try:
        await state.lost()
        await state.ready(range(TAGS), in_doubt_s=in_doubt_s)
        await finish(state, NEIGHBOURS)
        yield state
    finally:
        await state.close()


NEW, UNKEYED = 0, 60
"""Tables of a new installation have keys, those of a lost memory have not yet."""


@pytest.mark.parametrize("in_doubt_s", [NEW, UNKEYED])
@pytest.mark.parametrize("kind", ["not sampled", "alike"])
async def test_rows_of_others_outlive_many_chosen_ones(server: ValkeyServer, kind: str, in_doubt_s: float) -> None:
    async with with_neighbours(server, in_doubt_s) as state:
        hostile = list(not_sampled(ALL_AT_ONCE)) if kind == "not sampled" else alike(ALL_AT_ONCE)
        await finish(state, hostile)
        assert await stages(state, NEIGHBOURS) == await stages(state, hostile) == {Stage.DONE}


async def test_a_sender_cannot_choose_what_falls_into_one_bucket(server: ValkeyServer) -> None:
    async with with_neighbours(server, NEW) as state, Redis.from_url(server.url) as client:
        await finish(state, alike(ALL_AT_ONCE))
        assert max([await client.hlen(key) async for key in client.scan_iter("relay:*:f:*", count=1000)]) < 512


SPLIT_OF_0_1: Final = (
    "  make_hash(t, t.buckets .. added, #moved > 0 and moved or EMPTY)\n",
    "  call('DEL', t.buckets .. source)\n  call('HSET', t.buckets .. added, unpack(#rows > 0 and rows or EMPTY))\n",
)


async def test_a_split_that_deletes_first_and_unpacks_all_is_found(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = script_files._read
    monkeypatch.setattr(script_files, "_read", lambda name: read(name).replace(*SPLIT_OF_0_1))
    script_files.script.cache_clear()
    try:
        async with with_neighbours(server, UNKEYED) as state:
            with pytest.raises(StateUnavailable, match="too many results to unpack"):
                await finish(state, alike(ALL_AT_ONCE))
            assert Stage.NONE in await stages(state, NEIGHBOURS)
    finally:
        script_files.script.cache_clear()


# --- each script, with as many in one call as Lua has no room for -------------------------------------------------

CLOCK: Final = TurnedClock()
OWNER: Final = "r:ci"
TAG: Final = tag_of(OWNER)
SOURCE: Final = "\u00e9|p" * 64
"""An id of maximum length, which contains the separators of keys and fields."""
ROWS: Final = [*alike(MANY), *(RowKey(OWNER, bytes([n]) * 12) for n in range(256)), *alike(1)]
IDS: Final = [MessageId(SOURCE, "}:{/" * 63 + f"{number:04}") for number in range(MANY)]
LANE: Final = Lane("topic", 0, 5)
AT: Final = Coordinate("parked_messages", 300, 2**40)
TOKEN: Final = b"\0\xff\n" * 100
MOST_LISTED: Final = 10_000
"""The largest number of dead letters per receiver."""
QUEUES: Final = [b"\0" * 12, b"\xff" * 12, None]


def _parked(rows: Sequence[RowKey], *, due_in_s: float = 0.0) -> list[tuple[Lane, Parked]]:
    return of(LANE, [Parked(row, 0, AT, due_in_s, QUEUES[n % 3], n, n % 2 == 0) for n, row in enumerate(rows)])


def _asks(rows: Sequence[RowKey], token: bytes, *, unseen: bool) -> list[tuple[Lane, BeginRequest]]:
    return of(
        LANE, [BeginRequest(row, 0, token, LIMITS, unseen=unseen, queue=QUEUES[n % 3]) for n, row in enumerate(rows)]
    )


def calls() -> Iterator[Call]:
    """Each method that runs a script, in an order in which each meets what another has left."""

    def call(method: str, *positional: object, **named: object) -> Call:
        return Call(method, positional, named)

    arrivals = [Arrival(one, b"digest", 300, 2**40) for one in IDS]
    result = Result("answered", 200, "a/b", b"\xfe" * 40)
    owners = [OWNER, f"s:{SOURCE}", *(f"s:{SOURCE[:100]}{number}" for number in range(MANY // 10))]
    lane = TopicPartition("topic", 0)
    yield call("arrive", arrivals)
    yield call("arrive", arrivals[::-1])
    yield call("enqueued", arrivals)
    yield call("messages", IDS)
    for few in (ROWS[:800], ROWS[:800][::-1]):
        yield call("begin", _asks(few, TOKEN, unseen=True))
    yield call("begin", _asks(ROWS, TOKEN, unseen=False))
    yield call("intake", of(LANE, [IntakeRequest(row, 0, QUEUES[n % 3]) for n, row in enumerate(ROWS)]))
    yield call("settle", [Settlement(row, 0, TOKEN, Change.RESULT, last_status=200, result=result) for row in ROWS])
    yield call("mark", [Mark(row, 0, Stage.PUBLISHED, (300, 2**40)) for row in ROWS])
    yield call("intend_to_park", of(LANE, ROWS))
    yield call("park", _parked(ROWS))
    yield call("restore", LANE, [one for _, one in _parked(ROWS[-1_000:])])
    yield call("next_due", of(LANE, [TAG]))
    yield call("take_due", of(LANE, [DueRequest(TAG, MANY, TOKEN)]), lease_s=30.0)
    yield call("take_due", of(LANE, [DueRequest(TAG, MANY, TOKEN)]), lease_s=30.0)
    yield call("take_due", of(LANE._replace(epoch=6), [DueRequest(TAG, MANY, TOKEN)]), lease_s=30.0)
    yield call("parked", owners)
    yield call("parked_heads", lane, [(OWNER, queue) for queue in QUEUES if queue] * (MANY // 10))
    yield call("oldest_parked", MANY)
    yield call("row_details", ROWS)
    yield call("unpark", of(LANE, [ParkedLife(row, 2, QUEUES[n % 3]) for n, row in enumerate(ROWS)]))
    yield call("remember", [Mark(row, 0, Stage.DONE) for row in ROWS])
    yield call("mark", [Mark(row, 1, Stage.DONE, (300, 2**40), 9) for row in ROWS])
    yield call("begin", of(LANE._replace(epoch=6), [BeginRequest(row, 2, TOKEN, LIMITS) for row in ROWS]))
    keys = b"\0" * 12, b"\xff" * 12
    newest = [
        Superseding(keys[n % 2], row, 0, n, 1_000 + n, one.message_id, 3_600.0)
        for n, (row, one) in enumerate(zip(ROWS, IDS, strict=False))
    ]
    yield call("supersede", newest)
    yield call("supersede", newest[::-1])
    first = NumberRequest(0, 1)
    numbered = [BeginRequest(row, 3, TOKEN, LIMITS, number=first) for row in ROWS[: MANY // 4]]
    yield call("begin", of(LANE._replace(epoch=6), numbered))
    ends = [Settlement(one.row, 3, TOKEN, Change.RESULT, result=result, number=first) for one in numbered]
    gone = Result("dead", 410, reason="gone")
    yield call("settle", [structs.replace(one, result=gone, reason="gone") for one in ends[::20]])
    yield call("settle", ends[::-1])
    numbering = Numbering(MANY, ((1, MANY),), tuple(NumberGap(n, n, "gone") for n in range(1, 100, 2)))
    yield call("number_again", {owner.replace("s:", "r:"): numbering for owner in owners})
    yield call("numbering", "r:" + owners[0][2:])
    yield call("forget", ROWS)
    yield call("peek", ROWS)
    hold = Hold("paused", CLOCK.now, "}:{" * 100)
    for owner in owners[:100]:
        yield call("hold", owner, hold)
    yield call("hold_again", dict.fromkeys(owners, hold), tags=list(range(TAGS)), before=CLOCK.now + 60.0)
    yield call("endpoints", owners)
    yield call("openings", owners)
    yield call("resume", owners[1])
    yield call("probe_soon", owners)
    yield call("charge", [Charge(owner, 3, Quota(5, 60)) for owner in owners])
    used = {f"{number}|{SOURCE}": 1.0 for number in range(MANY // 10)}
    yield call("use_keys", used)
    yield call("keys_used", list(used))
    tally = Counted((1, *[0] * (NUMBERS - 1)))
    response = LastResponse(CLOCK.now, 200, {SOURCE: SOURCE}, "}:{", False)
    last = LastAttempt(CLOCK.now, 200, None, 0.1)
    yield call("tally", SOURCE, 1, [Tally(owner, tally, last, response) for owner in owners])
    yield call("statistics", owners)
    for owner in owners[:100]:
        yield call("last_response", owner)
    heads = tuple(LineHead(b"\0" * 12, b"\xff" * 12, SOURCE, IDS[0].message_id, owner) for owner in owners)
    yield call("keep_heartbeats", [LaneHeartbeat("topic", 0, Heartbeat(heads))])
    yield call("heartbeats", [lane])
    yield call("epochs", LANE, [TAG])
    yield call("begin_anew", LANE, {TAG: 6})
    yield call("reserve", LANE, 500)
    for offset in range(600):
        yield call("suspect", LANE, offset, 1)
    yield call("reserve", LANE._replace(epoch=9), 500)
    yield call("leave", LANE._replace(epoch=9))
    letters = [
        Coordinate("failed_messages", partition, n) for partition in (1, 2) for n in range(MOST_LISTED // 2 + 100)
    ]
    failed = [FailedEntry("ci", at, CLOCK.now + at.offset, "gone", *IDS[at.offset]) for at in letters]
    yield call("last_attempts", owners)
    for owner in owners[:100]:
        yield call("mark_incident", owner, "acknowledge", PersonMark(CLOCK.now, SOURCE, CLOCK.now))
    yield call("incidents")
    yield call("keep_waiting", dict.fromkeys(owners, 1.5))
    yield call("waiting")
    yield call("keep_incidents", [], owners)
    yield call("add_incidents", [])
    yield call("index_failed", failed)
    yield call("failed", "ci", limit=20)
    yield call("drop_failed", failed)
    yield call("failed_receivers")
    yield call("forget_endpoint", OWNER, [LANE])
    yield call("lease", SOURCE, SOURCE, 30.0)
    yield call("release", SOURCE, SOURCE)
    yield call("attend", list(range(TAGS)))
    yield call("gaps", list(range(TAGS)))
    yield call("close_gaps", {})


NOT_ABOUT_IDS: Final = {"lost", "set_edition", "ready", "close_gap"}


async def test_each_script_with_hostile_ids_does_as_the_fake(server: ValkeyServer) -> None:
    memory = MemoryState(clock=CLOCK, ready=False)
    redis = RedisState(f"{server.url}{PATIENT}", clock=CLOCK)  # a repeat would have other replies
    ran = _noting(redis)
    async with Redis.from_url(server.url) as client:
        await client.flushall()
    both: tuple[State, State] = (memory, redis)
    try:
        for state in both:
            await state.lost()
            await state.ready(range(TAGS), in_doubt_s=NEW)
            await answered(state.mark([Mark(row, 0, Stage.DONE) for row in NEIGHBOURS]))
        for made in calls():
            assert await made.reply(memory) == await made.reply(redis), made.method
        assert rounded(await memory.peek(NEIGHBOURS)) == rounded(await redis.peek(NEIGHBOURS))
        assert await stages(redis, NEIGHBOURS) == {Stage.DONE}
        assert set(script_files.script_names()) - ran == NOT_ABOUT_IDS - ran
    finally:
        await redis.close()


def _noting(redis: RedisState) -> set[str]:
    """The names of the scripts that the state runs from now on."""
    ran: set[str] = set()
    tell = redis._calls.try_run

    async def noted(name: str, *rest: object) -> object:
        ran.add(name)
        return await tell(name, *rest)  # type: ignore[arg-type]

    redis._calls.try_run = noted  # type: ignore[assignment, method-assign]
    return ran
