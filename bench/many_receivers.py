"""Measures a registry with many receivers in the shared lane: until it is ready, what it holds, and one more.

python -m bench.many_receivers --kafka 127.0.0.1:9092 --count 1000000      on a broker, in topics of its own
python -m bench.many_receivers --count 1000000                             on the embedded log
"""

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.servers import Valkey
from relay.control.records import EntryRecord
from relay.control.registry import Registry
from relay.domain.topics import Topics
from relay.log.kafka.cluster import KafkaCluster
from relay.log.kafka.log import KafkaLog
from relay.log.port import Log, NewRecord
from relay.log.streams.log import StreamsLog

PAGE: Final = 4096
AT_ONCE: Final = 200
BURST: Final = 20_000
LOOK_S: Final = 0.002
VARIABLES: Final = {"S": "of sixteen or more characters"}


def declared(number: int) -> bytes:
    entry: dict[str, object] = {
        "post_endpoint": f"https://r{number}.example/hooks",
        "secret": "${S}",
        "lane": "shared",
        "rate_limit": 50,
        "sources": [f"source-{number}"],
        "event_types": ["push", "pull_request.*"],
    }
    return EntryRecord("api", entry).encode()


@asynccontextmanager
async def opened(kafka: str | None) -> AsyncIterator[Log]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        server = None if kafka else Valkey(Path(directory))
        if server is not None:
            await server.start()
        log: Log = StreamsLog(server.url) if server is not None else KafkaLog(KafkaCluster(kafka or ""))
        await log.start()
        try:
            yield log
        finally:
            await log.close()
            if server is not None:
                await server.stop()


async def say(log: Log, topic: str, prefix: str, count: int) -> None:
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(count, first + AT_ONCE))
        await log.append([NewRecord(topic, f"{prefix}-{number}".encode(), declared(number)) for number in numbers])


async def measure(log: Log, count: int) -> None:
    topics = Topics(f"bench-{secrets.token_hex(4)}-")
    await log.create([spec for spec in topics.fixed() if spec.name == topics.receiver_config], {})
    await say(log, topics.receiver_config, "r", count)
    registry, turns = Registry(topics, VARIABLES), _Turns()
    tell("before", turns, time.monotonic(), time.process_time())
    since = time.monotonic(), time.process_time()
    tasks = [asyncio.create_task(registry.follow(log)), asyncio.create_task(turns.watch())]
    await registry.ready.wait()
    tell(f"{len(registry.shared)} receivers ready", turns, *since)
    for name, more in (("one", 1), ("burst", BURST)):
        since = time.monotonic(), time.process_time()
        await say(log, topics.receiver_config, name, more)
        while registry.receiver(f"{name}-{more - 1}") is None:  # noqa: ASYNC110  measures when it can be used
            await asyncio.sleep(0.001)
        tell(f"{more} more in force", turns, *since)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


class _Turns:
    """The longest turn of the event loop lately: on the clock, and of this thread's CPU, in ms. Looks at it once in
    LOOK_S, or it would take most of the CPU itself."""

    def __init__(self) -> None:
        self.clock_ms = self.cpu_ms = 0.0

    async def watch(self) -> None:
        while True:
            clock, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(LOOK_S)
            self.clock_ms = max(self.clock_ms, (time.monotonic() - clock - LOOK_S) * 1000)
            self.cpu_ms = max(self.cpu_ms, (time.thread_time() - cpu) * 1000)


def tell(what: str, turns: _Turns, clock: float, cpu: float) -> None:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE // 1024**2
    spent = f"{time.monotonic() - clock:.2f} s, CPU {time.process_time() - cpu:.2f} s"
    longest = f"longest turn {turns.clock_ms:.0f} ms, CPU {turns.cpu_ms:.0f} ms"
    sys.stdout.write(f"{what}: {spent}; {longest}; resident {resident} MiB\n")
    turns.clock_ms = turns.cpu_ms = 0.0


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", help="host:port of a broker; without it the embedded log is measured")
    parser.add_argument("--count", type=int, default=1_000_000)
    given = parser.parse_args()
    async with opened(given.kafka) as log:
        await measure(log, given.count)


if __name__ == "__main__":
    asyncio.run(main())
