"""What Redis keeps of a finished message with one delivery, in bytes: `python -m bench.memory [MESSAGES]`.

The state's own calls, in the order in which workers make them, on a server of our own. Sources, receivers and offsets
are as many as in the base case.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from bench.drawing import receiver_name, source_name
from bench.servers import Valkey
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.receiver import BreakerPolicy
from relay.state.attempts import BeginRequest, Change, Limits, Settlement
from relay.state.port import Lane
from relay.state.redis.state import RedisState
from relay.state.replies import answered, of
from relay.state.rows import TAGS, Arrival, Mark, Result, Stage, delivery_row

_BATCH: Final = 1_000
_SOURCES: Final = 64
_RECEIVERS: Final = 16
_BREAKER: Final = BreakerPolicy()
_LIMITS: Final = Limits(0.0, 25.0, _BREAKER, 25.0)
_LANE: Final = Lane("to_receiver_r0", 0, 1)
_ANSWER: Final = Result("answered", 200, "application/json", b'{"status":"ok"}')


async def finish(state: RedisState, numbers: range) -> None:
    """Take messages through all calls that the workers make to the state."""
    arrivals = [
        Arrival(MessageId(source_name(n % _SOURCES), f"m-{n:012d}"), n.to_bytes(6, "big"), n % 10, n // 10)
        for n in numbers
    ]
    rows = [
        delivery_row(DeliveryId(receiver_name(n // _SOURCES % _RECEIVERS), *arrival.id))
        for n, arrival in zip(numbers, arrivals, strict=True)
    ]
    tokens = [n.to_bytes(8, "big") for n in numbers]
    await answered(state.arrive(arrivals))
    await answered(state.enqueued(arrivals))
    await answered(
        state.begin(of(_LANE, [BeginRequest(row, 0, token, _LIMITS) for row, token in zip(rows, tokens, strict=True)]))
    )
    await answered(
        state.settle(
            [
                Settlement(
                    row, 0, token, Change.RESULT, last_status=200, result=_ANSWER, healthy=True, breaker=_BREAKER
                )
                for row, token in zip(rows, tokens, strict=True)
            ]
        )
    )
    await answered(
        state.mark([Mark(row, 0, Stage.DONE, (n % 10, n // 10), 2) for n, row in zip(numbers, rows, strict=True)])
    )


def batches(count: int) -> Iterator[range]:
    return (range(start, min(start + _BATCH, count)) for start in range(0, count, _BATCH))


async def measure(messages: int) -> float:
    """Bytes of the server's memory for each of `messages`."""
    with tempfile.TemporaryDirectory() as directory:
        server = Valkey(Path(directory))
        await server.start()
        client, state = Redis.from_url(server.url), RedisState(server.url)
        try:
            await state.start()
            await state.lost()
            await state.ready(range(TAGS), in_doubt_s=0.0)
            before = (await client.info("memory"))["used_memory"]
            for numbers in batches(messages):
                await finish(state, numbers)
            return float((await client.info("memory"))["used_memory"] - before) / messages
        finally:
            await state.close()
            await client.aclose()
            await server.stop()


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{messages:,} finished messages: {asyncio.run(measure(messages)):.1f} bytes of Redis each")  # noqa: T201


if __name__ == "__main__":
    main()
