"""What a rolling upgrade is tried with: receivers of every kind, a load that does not stop, and processes that are
replaced one by one, or killed."""

import asyncio
import json
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from bench.kafka_parts import free_ports
from relay.domain.topics import Topics
from relay.sink import ReceivedPost, Sink
from relay.state.redis.state import RedisState
from tests.servers.asking import until
from tests.servers.process import RelayProcess

SOURCES: Final = 4
REFUSED: Final = "refused"
"""The source whose callback refuses all results, until it is healed."""
ASKED: Final = frozenset({"answers", "later", "patient", "retried", "down"})
"""Receivers that can say what they have."""
DOWN: Final = frozenset({"down", "unasked"})
PACE_S: Final = 0.25
TIMEOUT_S: Final = 60.0
_BROKEN: Final = {"breaker": {"failures": 10_000}, "retry_after": 3}
"""Three seconds are more than a record is held in memory here, so it is parked."""
ENTRIES: Final[dict[str, dict[str, object]]] = {
    "answers": {},
    "later": {"poll": {"base": 0.2}},
    "patient": {"poll": {"base": 3, "factor": 1}},
    "retried": {"retry": {"base": 0.2, "cap": 0.5, "max_attempts": 1000}, "breaker": {"failures": 10_000}},
    "down": _BROKEN,
    "unasked": _BROKEN,
    "limited": {"rate_limit": 6},
    "slow": {},
    "byhand": {"answer_deadline": "1h"},
}
"""`byhand` answers 202, and then only when the test does."""


@dataclass
class Rolling:
    """`sent`: message id -> receiver. `callbacks`: that of all sources but `REFUSED`, and that one's."""

    environ: dict[str, str]
    cwd: Path
    api: str
    sinks: dict[str, Sink]
    callbacks: tuple[Sink, Sink]
    producer: AIOKafkaProducer
    admin: AIOKafkaAdminClient
    topics: Topics
    state: RedisState
    changed: asyncio.Event
    sent: dict[str, str] = field(default_factory=dict)
    by_hand: set[str] = field(default_factory=set)

    # what goes in

    async def send(self, receiver: str) -> None:
        """One message, of the next source in turn."""
        number = len(self.sent)
        turn = number // len(ENTRIES) % (SOURCES + 1)
        source = REFUSED if turn == SOURCES else f"source-{turn}"
        message_id = f"{source}-{number}"
        headers = {"ce_specversion": "1.0", "ce_id": message_id, "ce_source": source, "ce_receiver": receiver}
        payload = json.dumps({"n": number, "to": receiver}).encode()
        self.sent[message_id] = receiver
        named = [(name, value.encode()) for name, value in headers.items()]
        await self.producer.send_and_wait(self.topics.from_sender, payload, key=source.encode(), headers=named)

    async def load(self) -> None:
        """A message to each receiver, again and again, until cancelled."""
        while True:
            for receiver in ENTRIES:
                await self.send(receiver)
            await asyncio.sleep(PACE_S)  # the pace of a load; nothing is awaited

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(self.load())
            yield
            loading.cancel()

    # what the receivers do

    def break_down(self) -> None:
        """Take the receivers that can be down offline, and have one callback refuse."""
        for name in DOWN:
            self.sinks[name].become("fail", fail_status=501)
        self.callbacks[1].become("fail", fail_status=500)

    def heal(self) -> None:
        for name in DOWN:
            self.sinks[name].become("answer")
        self.callbacks[1].become("answer")

    async def answer_by_hand(self) -> None:
        """POST the answers that `byhand` owes so far."""
        async with aiohttp.ClientSession() as session:
            for arrival in list(self.sinks["byhand"].received):
                if arrival.message_id not in self.by_hand:
                    url = arrival.headers["relay-answer-url"]
                    await until(lambda url=url: _taken(session, url))  # type: ignore[misc]
                    self.by_hand.add(arrival.message_id)

    # what has come of it

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait until the receivers and callbacks have seen enough; each arrival is looked at."""
        async with asyncio.timeout(TIMEOUT_S):
            while not seen():
                self.changed.clear()
                await self.changed.wait()

    async def until_in_every_state(self) -> None:
        """Messages are parked for a retry and for a status GET, wait for a rate and for an answer by hand, and are
        refused by a callback."""
        begun = {name: len(self.sinks[name].received) for name in ("byhand", "slow")}
        refusals = len(self.callbacks[1].received)

        async def looks_so() -> bool:
            down, unasked, patient = await self.state.parked(["r:down", "r:unasked", "r:patient"])
            parked = (down.retries, unasked.retries, patient.polls)  # type: ignore[union-attr]
            return all(parked) and self.waiting("limited") > 5

        await until(looks_so)
        await self.until(lambda: all(len(self.sinks[name].received) > count for name, count in begun.items()))
        await self.until(lambda: len(self.callbacks[1].received) > refusals)

    def waiting(self, receiver: str) -> int:
        """How many messages were sent to it and did not reach it."""
        mine = sum(1 for each in self.sent.values() if each == receiver)
        return mine - len({arrival.message_id for arrival in processed(self.sinks[receiver])})

    def answers(self) -> list[ReceivedPost]:
        """Those that the sources' callbacks took."""
        return [
            arrival
            for callback in self.callbacks
            for arrival in callback.received
            if arrival.status == 200 and arrival.headers["relay-outcome"] == "answered"
        ]

    def answered(self) -> Counter[str]:
        """How often the answer to each message was taken."""
        return Counter(arrival.headers["relay-message-id"] for arrival in self.answers())

    async def until_answered(self, ids: Iterable[str]) -> None:
        wanted = set(ids)
        try:
            await self.until(lambda: wanted <= self.answered().keys())
        except TimeoutError:
            missing = Counter(self.sent[each] for each in wanted - self.answered().keys())
            raise AssertionError(f"no answer to messages to {dict(missing)}") from None

    # processes

    async def members(self, enough: Callable[[frozenset[str]], bool]) -> frozenset[str]:
        """Who delivers, as soon as all partitions are dealt and there are `enough`."""
        found: frozenset[str] = frozenset()

        async def are_dealt() -> bool:
            nonlocal found
            [answer] = await self.admin.describe_consumer_groups([self.topics.group("to-receiver")])
            [(_, _, state, _, _, members)] = answer.groups
            found = frozenset(member[0] for member in members)
            return state == "Stable" and enough(found)

        await until(are_dealt)
        return found

    def relay(self, *arguments: str, release: dict[str, str]) -> RelayProcess:
        return RelayProcess(*arguments, cwd=self.cwd, environ=self.environ | release)


async def _taken(session: aiohttp.ClientSession, url: str) -> bool:
    with suppress(aiohttp.ClientError):  # the process that was asked is just ending: as any receiver, we ask again
        async with session.post(url, json={"by": "hand"}) as response:
            return response.status < 300
    return False


def processed(sink: Sink) -> list[ReceivedPost]:
    """POSTs for which the receiver did its work, in their order."""
    return [arrival for arrival in sink.received if arrival.met in ("answer", "later")]


def first_of_each(arrivals: Iterable[ReceivedPost]) -> list[ReceivedPost]:
    """Without those of a message that was there before."""
    seen: dict[str, ReceivedPost] = {}
    for arrival in arrivals:
        seen.setdefault(arrival.message_id, arrival)
    return list(seen.values())


def out_of_order(arrivals: Iterable[ReceivedPost]) -> list[str]:
    """Those that another message of their source had overtaken."""
    newest: dict[str, int] = defaultdict(lambda: -1)
    late = []
    for arrival in arrivals:
        number = int(arrival.message_id.rsplit("-", 1)[1])
        if number < newest[arrival.source_id]:
            late.append(arrival.message_id)
        newest[arrival.source_id] = max(number, newest[arrival.source_id])
    return late


class Pool:
    """Processes of the relay, each of one release or another; all end with the block."""

    def __init__(self, rolling: Rolling) -> None:
        self._rolling = rolling
        self._running: list[tuple[RelayProcess, AsyncExitStack]] = []

    async def launch(self, release: dict[str, str]) -> None:
        """One more, without waiting for it."""
        stack = AsyncExitStack()
        started = await stack.enter_async_context(self._rolling.relay("run", "--processes", "1", release=release))
        self._running.append((started, stack))

    async def start(self, release: dict[str, str]) -> None:
        """One more, once it serves."""
        await self.launch(release)
        await self.newest_serves()

    async def newest_serves(self) -> None:
        await self._running[-1][0].line_with('"started"')

    async def replace_oldest(self, release: dict[str, str]) -> None:
        """Ends the one that has run longest, as any supervisor does, and starts one of `release` in its place."""
        _, stack = self._running.pop(0)
        await stack.aclose()
        await self.start(release)

    async def kill(self, which: int) -> None:
        """SIGKILL; 0: the one that has run longest."""
        process, stack = self._running.pop(which)
        process.signal(signal.SIGKILL)
        await stack.aclose()

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, *_error: object) -> None:
        for _, stack in self._running:
            await stack.aclose()


@asynccontextmanager
async def rolling(
    bootstrap: str, redis_url: str, cwd: Path, prefix: str, more: dict[str, str]
) -> AsyncIterator[Rolling]:
    """Servers around the relay's processes, which are still to be started; nor are its topics there. `more`:
    settings."""
    changed = asyncio.Event()

    def told(_arrival: ReceivedPost) -> None:
        changed.set()

    sinks = {
        "answers": Sink("answer", delay_s=0.3, on_arrival=told),
        "later": Sink("later", delay_s=0.3, later_polls=2, on_arrival=told),
        "patient": Sink("later", later_polls=1, on_arrival=told),
        "retried": Sink("answer", fail_rate=0.3, fail_status=501, on_arrival=told, chance=random.Random(17).random),
        "down": Sink("answer", on_arrival=told),
        "unasked": Sink("answer", on_arrival=told),
        "limited": Sink("answer", on_arrival=told),
        "slow": Sink("answer", delay_s=0.3, on_arrival=told),
        "byhand": Sink("later", on_arrival=told),
    }
    callbacks = Sink("answer", on_arrival=told), Sink("answer", on_arrival=told)
    (port,) = free_ports(1)
    api = f"http://127.0.0.1:{port}"
    environ = {
        "RELAY_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "RELAY_REDIS_URL": redis_url,
        "RELAY_TOPIC_PREFIX": prefix,
        "RELAY_KAFKA_SESSION_TIMEOUT": "6s",
        "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8",
        "RELAY_API_PORT": str(port),
        "RELAY_PUBLIC_URL": api,
        "RELAY_ANSWER_SECRET": "an-answer-secret-that-all-of-them-share",
        "RELAY_HOLD_MAX": "1s",
    } | more
    async with AsyncExitStack() as stack:
        for sink in (*sinks.values(), *callbacks):
            await sink.start()
            stack.push_async_callback(sink.stop)
        (cwd / "receivers.yaml").write_text(json.dumps(_receivers_file(sinks, callbacks)))
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
        await producer.start()
        stack.push_async_callback(producer.stop)
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        stack.push_async_callback(admin.close)
        state = RedisState(redis_url, prefix=prefix, dedup_window_s=604_800.0)
        stack.push_async_callback(state.close)
        await state.start()
        yield Rolling(environ, cwd, api, sinks, callbacks, producer, admin, Topics(prefix), state, changed)


def _receivers_file(sinks: dict[str, Sink], callbacks: tuple[Sink, Sink]) -> dict[str, object]:
    receivers: dict[str, dict[str, object]] = {}
    for name, sink in sinks.items():
        receivers[name] = {"post_endpoint": sink.url, **ENTRIES[name]}
        if name in ASKED:
            receivers[name]["status_endpoint"] = sink.status_url_template
    patient = {"retry_after": 2, "breaker": {"failures": 10_000}}
    return {
        "sources": {
            "*": {"callback": {"url": callbacks[0].url}},
            REFUSED: {"callback": {"url": callbacks[1].url, **patient}},
        },
        "receivers": receivers,
    }
