"""Prepares a Redis, stores one row of each layout and one record of each other kind, or prints the stored records.

As a script, on any release: `stored_state.py begin|fill|show URL PREFIX`.
"""

import asyncio
import sys
from typing import Final

from relay.domain.hold import Hold
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.receiver import BreakerPolicy, Quota
from relay.domain.statistics import NUMBERS, Counted
from relay.log.port import Coordinate, TopicPartition
from relay.state.attempts import Change, Limits, Settlement
from relay.state.port import FailedEntry, Lane
from relay.state.redis.state import RedisState
from relay.state.replies import answered, of
from relay.state.rows import Arrival, Mark, MessageStage, Result, RowKey, Stage, delivery_row, tag_of

try:
    from relay.state.attempts import BeginRequest
    from relay.state.port import Charge
    from relay.state.read_model import Heartbeat, LaneHeartbeat, LastAttempt, LineHead, Tally
    from relay.state.rows import DueRequest, Parked
except ImportError:  # where the last release has them
    from relay.state.onlooker import LineHead  # type: ignore[import-not-found,no-redef]
    from relay.state.onlooker import Sign as LaneHeartbeat  # type: ignore[no-redef]
    from relay.state.quotas import Charge  # type: ignore[import-not-found,no-redef]
    from relay.state.statistics import LastAttempt, Tally  # type: ignore[import-not-found,no-redef]

    from relay.state.attempts import BeginAsk as BeginRequest  # type: ignore[attr-defined,no-redef]

    Heartbeat = tuple  # type: ignore[assignment,misc]  # a sign had the heads themselves

    from relay.state.port import DueAsk as DueRequest  # type: ignore[attr-defined,no-redef]
    from relay.state.port import Parked  # type: ignore[attr-defined]

    RedisState.keep_heartbeats = RedisState.sign  # type: ignore[attr-defined,method-assign]
    RedisState.heartbeats = RedisState.signs  # type: ignore[attr-defined,method-assign]
    RedisState.row_details = RedisState.watch  # type: ignore[attr-defined,method-assign]

NOW: Final = 1_700_000_000.0
LANE: Final = Lane("to_receiver_ci", 0, 7)
QUEUE: Final = bytes(range(12))
RESULT: Final = Result("answered", 200, "text/plain", b"\xff\x00", True, "gone", "d", "https://ci.example/1", 1.5)
ROWS: Final = [delivery_row(DeliveryId("ci", "github", f"m-{number}")) for number in range(16)]
IDS: Final = [MessageId("github", f"m-{number}") for number in range(3)]


async def begin(state: RedisState) -> None:
    await state.ready(sorted(await state.lost()), in_doubt_s=0)


async def fill(state: RedisState) -> None:
    for settlement in _settlements():
        await answered(state.begin(of(LANE, [_ask(settlement.row, settlement.token)])))
        await answered(state.settle([settlement]))
    await answered(state.begin(of(LANE, [_ask(ROWS[0], b"under way")])))
    await answered(
        state.mark(
            [
                Mark(ROWS[4], 0, Stage.AWAITING),
                Mark(ROWS[5], 0, Stage.PUBLISHED, (3, 70_000_000_000)),
                Mark(ROWS[6], 2, Stage.DONE, (300, 7), 5),
                Mark(ROWS[7], 0, Stage.FAILED, (1, 2), 9),
            ]
        )
    )
    parked = [Parked(ROWS[n], 0, Coordinate("parked_messages", 3, n), 30.0, QUEUE, n) for n in (8, 9)]
    parked += [Parked(ROWS[10], 1, Coordinate("parked_messages", 3, 10), 0.0, None, 10, True)]
    parked += [Parked(ROWS[11], 0, Coordinate("parked_messages", 3, 11), 40.0, None, 11)]
    await answered(state.intend_to_park(of(LANE, [one.row for one in parked])))
    await answered(state.park(of(LANE, parked)))
    await answered(state.take_due(of(LANE, [DueRequest(tag_of("r:ci"), 1)]), lease_s=30))
    await answered(state.arrive([Arrival(one, b"digest", 3, 70_000_000_000) for one in IDS[:2]]))
    await answered(state.enqueued([Arrival(IDS[1], b"digest", 3, 70_000_000_000)]))
    await answered(state.arrive([Arrival(IDS[2], b"other.", 300, 9, MessageStage.ACCEPTED)]))
    await state.hold("r:cd", Hold("gone", NOW, "said 410"))
    failed = FailedEntry("ci", Coordinate("failed_messages", 1, 2), NOW, "gone", "github", "m-7")
    await state.index_failed([failed])
    await state.charge([Charge("s:github", 3, Quota(5, 60))])
    await state.use_keys({"k": 2.0})
    counted = Counted((1, 2, *[0] * (NUMBERS - 2)))
    await state.tally("one", 1, [Tally("r:ci", counted, LastAttempt(NOW, 204, None, 0.25))])
    await state.keep_heartbeats(
        [LaneHeartbeat("to_receiver_ci", 0, Heartbeat((LineHead(QUEUE, ROWS[8].digest, "github", "m-8"),)))]
    )


def _ask(row: RowKey, token: bytes) -> BeginRequest:
    return BeginRequest(row, 0, token, Limits(interval_s=0.01, settle_s=25, breaker=BreakerPolicy(), probe_s=20))


def _settlements() -> list[Settlement]:
    retry = Settlement(
        ROWS[1], 0, b"t1", Change.RETRY, 30.0, last_status=501, reason="exhausted", detail="no", healthy=False
    )
    return [
        retry,
        Settlement(ROWS[2], 0, b"t2", Change.DOUBT, 25.0, last_status=500),
        Settlement(ROWS[3], 0, b"t3", Change.RESULT, result=RESULT, last_status=200),
        *(Settlement(ROWS[n], 0, b"t%d" % n, Change.ACCEPTED, result=RESULT, last_status=202) for n in (4, 12)),
        Settlement(ROWS[5], 0, b"t5", Change.RESULT, result=RESULT, last_status=200),
    ]


async def show(state: RedisState) -> None:
    """Print what the state knows, one item per line."""
    lane = TopicPartition(LANE.topic, LANE.partition)
    known: list[object] = [
        await state.lost(),
        *await answered(state.peek(ROWS)),
        *await state.messages(IDS),
        *await state.endpoints(["r:ci", "r:cd"]),
        *await answered(state.parked(["r:ci"])),
        *await answered(state.next_due(of(LANE, [tag_of("r:ci")]))),
        *await state.parked_heads(lane, [("r:ci", QUEUE)]),
        *await state.failed("ci", limit=9),
        *await state.keys_used(["k"]),
        *await state.statistics(["r:ci"]),
        *await state.row_details(ROWS),
        *await state.heartbeats([lane]),
    ]
    sys.stdout.write("".join(f"{each!r}\n" for each in known))


async def main(what: str, url: str, prefix: str) -> None:
    state = RedisState(url, prefix=prefix, clock=lambda: NOW + (what == "show"))
    await state.start()
    try:
        await {"begin": begin, "fill": fill, "show": show}[what](state)
    finally:
        await state.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
