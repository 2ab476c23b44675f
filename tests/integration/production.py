"""Shared by tests of relay processes on Kafka and Redis: messages, receivers, a callback, and the processes."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiokafka import AIOKafkaProducer

from relay.sink import Sink
from tests.servers.process import RelayProcess

SECRETS = {
    "circleci": "whsec_Y2lyY2xlY2ktY2lyY2xlY2ktY2lyY2xlY2kh",
    "later": "whsec_bGF0ZXItbGF0ZXItbGF0ZXItbGF0ZXItbGF0",
    "nostatus": "whsec_bm9zdGF0dXMtbm9zdGF0dXMtbm9zdGF0dXMh",
}
CALLBACK_SECRET = "whsec_Y2FsbGJhY2stY2FsbGJhY2stY2FsbGJhY2sh"
SOURCES = 8
TIMEOUT_S = 200.0


@dataclass(frozen=True)
class Sent:
    """A message as the producer sends it: half of them in header form, half as envelopes."""

    number: int
    source: str
    receiver: str
    payload: bytes = field(repr=False)

    @property
    def message_id(self) -> str:
        return f"{self.source}-{self.number}"

    @property
    def record(self) -> tuple[bytes, list[tuple[str, bytes]]]:
        if self.number % 2:
            headers = {"ce_specversion": "1.0", "ce_id": self.message_id, "ce_source": self.source}
            headers |= {"ce_receiver": self.receiver, "ce_type": "push", "content-type": "application/json"}
            return self.payload, [(name, value.encode()) for name, value in headers.items()]
        about = {"source_id": self.source, "message_id": self.message_id, "receiver": self.receiver}
        envelope = json.dumps(about | {"event_type": "push"})[:-1].encode()
        return envelope + b', "payload": ' + self.payload + b"}", []


def messages(count: int, start: int = 0) -> list[Sent]:
    names = list(SECRETS)
    return [
        Sent(
            number,
            f"source-{number % SOURCES}",
            names[(number // SOURCES) % len(names)],
            b'{"n":  %d, "spacing": [1.50,   "kept"], "text": "\xc3\xa9"}' % number,
        )
        for number in range(start, start + count)
    ]


Engine = Callable[..., AbstractAsyncContextManager[str]]


@dataclass
class Rig:
    """Servers, receivers and a callback that outlive the relay's processes."""

    environ: dict[str, str]
    cwd: Path
    sinks: dict[str, Sink]
    callback: Sink
    producer: AIOKafkaProducer
    topic: str
    changed: asyncio.Event

    async def produce(self, sent: Sequence[Sent]) -> None:
        waiting = []
        for message in sent:
            value, headers = message.record
            waiting.append(await self.producer.send(self.topic, value, key=message.source.encode(), headers=headers))
        await asyncio.gather(*waiting)

    def relay(self, *arguments: str, descriptors: int | None = None) -> RelayProcess:
        return RelayProcess(*arguments, cwd=self.cwd, environ=self.environ, descriptors=descriptors)

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait until `seen` returns true. It is called after each arrival at a receiver or the callback."""
        async with asyncio.timeout(TIMEOUT_S):
            while not seen():
                self.changed.clear()
                await self.changed.wait()

    async def dead_letters(self, api: str, count: int) -> list[dict[str, Any]]:
        """The dead letters that the API lists, once there are `count` of them."""
        async with asyncio.timeout(TIMEOUT_S), aiohttp.ClientSession(api) as session:
            while True:
                async with session.get("/v1/failed", params={"limit": "1000"}) as response:
                    found: list[dict[str, Any]] = (await response.json())["items"]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.2)  # the index has no event to wait for

    def arrivals(self) -> Counter[str]:
        return Counter(a.message_id for sink in self.sinks.values() for a in sink.received)

    def answered(self) -> set[str]:
        return {
            a.headers["relay-message-id"] for a in self.callback.received if a.headers["relay-outcome"] == "answered"
        }


def receivers_file(sinks: dict[str, Sink], callback: Sink) -> dict[str, object]:
    receivers: dict[str, dict[str, object]] = {
        name: {"post_endpoint": sink.url, "secret": SECRETS[name], "poll": {"base": 0.2}}
        for name, sink in sinks.items()
    }
    receivers["circleci"] |= {
        "secret": "${CIRCLECI_SECRET}",
        "status_endpoint": sinks["circleci"].status_url_template,
    }
    receivers["later"]["status_endpoint"] = sinks["later"].status_url_template
    return {
        "sources": {"*": {"callback": {"url": callback.url, "secret": CALLBACK_SECRET}}},
        "receivers": receivers,
    }
