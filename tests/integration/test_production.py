"""`relay run` on real Kafka and Redis, fed by a plain Kafka producer: every message arrives once, in order, unchanged,
and every answer comes back."""

import asyncio
import json
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from standardwebhooks import Webhook

from relay.sink import Arrival, Sink
from tests.servers.kafka import Broker
from tests.servers.process import RelayProcess
from tests.servers.valkey import ValkeyServer

pytestmark = pytest.mark.kafka

SECRETS = {
    "circleci": "whsec_Y2lyY2xlY2ktY2lyY2xlY2ktY2lyY2xlY2kh",
    "later": "whsec_bGF0ZXItbGF0ZXItbGF0ZXItbGF0ZXItbGF0",
    "nostatus": "whsec_bm9zdGF0dXMtbm9zdGF0dXMtbm9zdGF0dXMh",
}
CALLBACK_SECRET = "whsec_Y2FsbGJhY2stY2FsbGJhY2stY2FsbGJhY2sh"
SOURCES = 8
TIMEOUT_S = 90.0


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

    def relay(self, *arguments: str) -> RelayProcess:
        return RelayProcess(*arguments, cwd=self.cwd, environ=self.environ)

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait until the receivers and the callback have seen enough; each arrival is looked at."""
        async with asyncio.timeout(TIMEOUT_S):
            while not seen():
                self.changed.clear()
                await self.changed.wait()

    def arrivals(self) -> Counter[str]:
        return Counter(a.message_id for sink in self.sinks.values() for a in sink.received)

    def answered(self) -> set[str]:
        return {
            a.headers["relay-message-id"] for a in self.callback.received if a.headers["relay-outcome"] == "answered"
        }


@pytest.fixture(scope="module")
def redis_server() -> Iterator[ValkeyServer]:
    server = ValkeyServer(fsync="everysec", options=("--maxmemory-policy", "noeviction"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def rig(
    kafka_broker: Broker,
    redis_server: ValkeyServer,
    tmp_path: Path,
    unique_prefix: str,
) -> AsyncIterator[Rig]:
    changed = asyncio.Event()

    def told(arrival: Arrival) -> None:
        changed.set()

    sinks = {
        "circleci": Sink("answer", secret=SECRETS["circleci"], on_arrival=told),
        "later": Sink("later", secret=SECRETS["later"], later_polls=1, on_arrival=told),
        "nostatus": Sink("answer", secret=SECRETS["nostatus"], on_arrival=told),
    }
    callback = Sink("answer", secret=CALLBACK_SECRET, on_arrival=told)
    for sink in (*sinks.values(), callback):
        await sink.start()
    (tmp_path / "receivers.yaml").write_text(json.dumps(receivers_file(sinks, callback)))
    producer = AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap, acks="all")
    environ = {
        "RELAY_KAFKA_BOOTSTRAP_SERVERS": kafka_broker.bootstrap,
        "RELAY_REDIS_URL": redis_server.url,
        "RELAY_TOPIC_PREFIX": unique_prefix,
        "RELAY_KAFKA_SESSION_TIMEOUT": "6s",
        "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8",
        "RELAY_API_PORT": "0",
        "CIRCLECI_SECRET": SECRETS["circleci"],
    }
    rig = Rig(environ, tmp_path, sinks, callback, producer, f"{unique_prefix}from_sender", changed)
    async with rig.relay("topics", "apply") as applying:
        output = await applying.finish()
    assert applying.returncode == 0, output
    await producer.start()
    yield rig
    await producer.stop()
    for sink in (*sinks.values(), callback):
        await sink.stop()


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


def check_once_in_order_unchanged(rig: Rig, sent: Sequence[Sent]) -> None:
    assert rig.arrivals() == Counter({message.message_id: 1 for message in sent})
    payloads = {message.message_id: message.payload for message in sent}
    for name, sink in rig.sinks.items():
        for arrival in sink.received:
            assert arrival.body == payloads[arrival.message_id]
            Webhook(SECRETS[name]).verify(arrival.body, dict(arrival.headers))
        assert_in_order(sink.received)


def assert_in_order(arrivals: Sequence[Arrival]) -> None:
    """First arrivals, per source."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        number = int(arrival.message_id.rsplit("-", 1)[1])
        if number not in numbers[arrival.source_id]:
            numbers[arrival.source_id].append(number)
    for source, found in numbers.items():
        assert found == sorted(found), f"{source}: out of order"


async def test_a_thousand_messages_go_round_once_and_again_changes_nothing(rig: Rig) -> None:
    sent = messages(1000)
    async with rig.relay("run") as running:
        await running.line_with('"started"')
        await rig.produce(sent)
        everything = {message.message_id for message in sent}
        await rig.until(lambda: rig.answered() >= everything)
        check_once_in_order_unchanged(rig, sent)
        for arrival in rig.callback.received:
            Webhook(CALLBACK_SECRET).verify(arrival.body, dict(arrival.headers))
        assert len(rig.callback.received) == 1000

        await rig.produce(sent)
        last = messages(SOURCES * 3, start=1000)  # behind every repeated one, of each source to each receiver
        await rig.produce(last)
        await rig.until(lambda: rig.answered() >= everything | {message.message_id for message in last})
        check_once_in_order_unchanged(rig, [*sent, *last])
        running.signal(signal.SIGTERM)
        assert "stopped" in await running.finish()
        assert running.returncode == 0


async def test_two_processes_share_the_work_and_a_kill_loses_nothing(rig: Rig) -> None:
    sent = messages(1000)
    everything = {message.message_id for message in sent}
    async with rig.relay("run") as first, rig.relay("run") as second:
        await first.line_with('"started"')
        await second.line_with('"started"')
        await rig.produce(sent[:300])
        await rig.until(lambda: len(rig.arrivals()) >= 300)
        await rig.produce(sent[300:])
        await rig.until(lambda: len(rig.arrivals()) >= 400)
        first.signal(signal.SIGKILL)
        await rig.until(lambda: rig.answered() >= everything)
        extra = {message_id: count for message_id, count in rig.arrivals().items() if count > 1}
        can_be_asked = {a.message_id for name in ("circleci", "later") for a in rig.sinks[name].received}
        assert not extra.keys() & can_be_asked, "a receiver with a status endpoint was sent a message twice"
        assert len(extra) <= 32, f"more copies than were in flight at the kill: {extra}"
        for sink in rig.sinks.values():
            assert_in_order(sink.received)
        assert second.returncode is None


async def test_one_worker_alone_serves_its_receiver(rig: Rig) -> None:
    sent = [message for message in messages(60) if message.receiver == "circleci"]
    others = "api,from-sender,from-receiver-async,to-sender,failed-messages"
    async with rig.relay("run", "--roles", others) as rest:
        await rest.line_with('"started"')
        await rig.produce(sent)
        async with rig.relay("worker", "to-receiver", "--receiver", "circleci"):
            await rig.until(lambda: rig.answered() >= {message.message_id for message in sent})
    check_once_in_order_unchanged(rig, sent)
