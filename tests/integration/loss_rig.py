"""A whole relay in this process, with receivers. Its log keeps everything, and its state can lose its memory."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from relay.clock import Clock, SystemClock
from relay.config.plan import ProcessPlan
from relay.config.settings import Settings
from relay.domain.message import Message, message_headers
from relay.domain.topics import Topics
from relay.log.port import NewRecord
from relay.log.streams.log import StreamsLog
from relay.run.process import RelayProcess
from relay.sink import ReceivedPost, Sink
from relay.state.redis.state import RedisState
from tests.servers.http import started
from tests.servers.valkey import ValkeyServer

TOPICS: Final = Topics("")
TIMEOUT_S: Final = 200.0
SECRET: Final = "whsec_bG9zcy1sb3NzLWxvc3MtbG9zcy1sb3NzLWxv"
ASKED: Final = ("at-once", "later", "busy")
"""Receivers with a status endpoint."""
QUICKLY: Final = {"base": 0.3, "factor": 1}
RECEIVERS: Final = (*ASKED, "unasked")


def sinks(notify: Callable[[ReceivedPost], None]) -> dict[str, Sink]:
    """`busy` turns its first POSTs away, so that retries are parked; the polls of `later` are parked likewise."""
    return {
        "at-once": Sink("answer", delay_s=0.1, on_arrival=notify),
        "later": Sink("later", later_polls=1, on_arrival=notify),
        "busy": Sink("answer", fail_first=8, fail_status=503, retry_after=1, on_arrival=notify),
        "unasked": Sink("answer", delay_s=0.1, on_arrival=notify),
    }


def receivers_file(receivers: dict[str, Sink], callback: Sink) -> dict[str, object]:
    entries: dict[str, dict[str, object]] = {
        name: {"post_endpoint": sink.url, "secret": SECRET, "timeout": 1, "poll": QUICKLY, "retry": QUICKLY}
        for name, sink in receivers.items()
    }
    for name in ASKED:
        entries[name]["status_endpoint"] = receivers[name].status_url_template
    return {"sources": {"*": {"callback": {"url": callback.url, "secret": SECRET}}}, "receivers": entries}


def message(number: int) -> NewRecord:
    """Message `number`. Receivers take turns, and each source sends to each of them."""
    made = Message(
        source_id=f"source-{number % 5}",
        message_id=f"m-{number}",
        receivers=(RECEIVERS[number % len(RECEIVERS)],),
        event_type="push",
        time=None,
        content_type="application/json",
        payload=b'{"n": %d}' % number,
    )
    return NewRecord(TOPICS.from_sender, made.source_id.encode(), made.payload, message_headers(made))


@dataclass
class LossRig:
    """What a relay works with. `receivers`: by name. `sent`: message ids so far. `run`: runs a relay with its state at
    a URL, while its context is entered."""

    log: StreamsLog
    receivers: dict[str, Sink]
    callback: Sink
    changed: asyncio.Event
    sent: list[str]
    run: Callable[[str], AbstractAsyncContextManager[RelayProcess]]

    async def send(self, count: int) -> None:
        """Send `count` more messages, to the receivers in turn."""
        new = range(len(self.sent), len(self.sent) + count)
        self.sent += [f"m-{number}" for number in new]
        await self.log.append(list(map(message, new)))

    async def send_again(self) -> None:
        """All messages once more, as a sender does that is not sure. Those of its that come later come after them."""
        await self.log.append(list(map(message, range(len(self.sent)))))

    async def answered(self, count: int) -> None:
        """Return when the sender has so many answers."""
        await self._until(lambda: len(self._answered()) >= count)

    async def all_answered(self) -> None:
        """Return when the sender has the answer to every message: none is lost."""
        await self._until(lambda: self._answered() >= set(self.sent))

    def doubled(self) -> set[str]:
        """Messages that a receiver was given more than once although it can be asked; it was not if it said 503."""
        given = Counter(one.message_id for name in ASKED for one in self.receivers[name].received if one.met != "fail")
        return {message_id for message_id, count in given.items() if count > 1}

    def failed(self) -> set[str]:
        """Messages that ended as failed, by the notices that the sender got."""
        notices = [one.headers for one in self.callback.received if one.headers["relay-outcome"] != "answered"]
        return {headers["relay-message-id"] for headers in notices}

    def _answered(self) -> set[str]:
        results = [one.headers for one in self.callback.received]
        return {headers["relay-message-id"] for headers in results if headers["relay-outcome"] == "answered"}

    async def _until(self, seen: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not seen():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def relay_on(url: str, directory: Path, clock: Clock | None = None) -> AsyncIterator[LossRig]:
    """A running relay, with its state at `url`. `clock`: of its machine."""
    async with rig_in(directory, clock) as rig, rig.run(url):
        yield rig


@asynccontextmanager
async def rig_in(directory: Path, clock: Clock | None = None) -> AsyncIterator[LossRig]:
    """A log, receivers and a callback, without a relay."""
    changed = asyncio.Event()

    def notify(_: ReceivedPost) -> None:
        changed.set()

    receivers, callback = sinks(notify), Sink("answer", on_arrival=notify)
    async with started(*receivers.values(), callback), log_of_its_own() as (log, log_url):
        (directory / "receivers.yaml").write_text(json.dumps(receivers_file(receivers, callback)))

        def run(url: str) -> AbstractAsyncContextManager[RelayProcess]:
            return running(url, StreamsLog(log_url), directory, clock or SystemClock())

        yield LossRig(log, receivers, callback, changed, [], run)


@asynccontextmanager
async def log_of_its_own() -> AsyncIterator[tuple[StreamsLog, str]]:
    """A log with all topics, on a server of its own, and the server's URL."""
    with ValkeyServer() as server:
        log = StreamsLog(server.url)
        await log.start()
        try:
            await log.create(TOPICS.fixed(), TOPICS.fixed_groups())
            yield log, server.url
        finally:
            await log.close()


@asynccontextmanager
async def running(
    url: str,
    log: StreamsLog,
    directory: Path,
    clock: Clock,
    *,
    plan: ProcessPlan | None = None,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[RelayProcess]:
    settings = Settings.model_validate(
        {
            "receivers_file": directory / "receivers.yaml",
            "api_port": 0,
            "hold_max": 0.0,  # whatever has to wait is parked
            "allow_private_networks": "127.0.0.0/8",
        }
    )
    relay = RelayProcess(settings, log, RedisState(url), plan or ProcessPlan(), environ or {}, clock)
    stop, serving = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay.run(stop, serving.set))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await serving.wait()
            yield relay
        finally:
            stop.set()


async def in_doubt(servers: Sequence[ValkeyServer]) -> frozenset[int]:
    """The tags that are ready after a loss: for days, a delivery without a row is asked about first."""
    found, now_ms = set(), time.time() * 1000
    for server in servers:
        async with Redis.from_url(server.url) as client:
            async for key in client.scan_iter("relay:*:life"):
                life: Any = await client.get(key)
                state, _, about = life.partition(b"\n")
                if state.startswith(b"ready ") and msgspec.msgpack.decode(about).get("doubt", 0) > now_ms:
                    found.add(int(key.split(b"{")[1][:2]))
    return frozenset(found)
