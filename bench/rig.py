"""Everything that a case runs on: servers, receivers and the relay, started together and ended together."""

import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from redis.asyncio import Redis

from bench.broker_requests import BrokerRequests
from bench.cases import Case
from bench.children import Child, ChildFailed, own_environ
from bench.control import ask
from bench.counters import Counters, of_redis
from bench.drawing import Drawing
from bench.generator import Job
from bench.histogram import Histogram
from bench.ledger import Tally
from bench.load import Load
from bench.plain_process import PlainProcess
from bench.procstat import Sample, command_of, sample, tree, wakeups
from bench.relay_process import Backing, History, RelayProcess, receiver_urls, receivers_file
from bench.servers import Kafka, Valkey, clean_kafka, clean_redis
from bench.system import System
from bench.usage import FOREIGN_LOAD
from relay.run.processes import available_cores

ROOT: Final = Path(__file__).parents[1]
Via = Literal["kafka", "http", "http-batch"]
_BUSY_LONGER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """How to run. `processes`: None: as many as `relay run` starts. `kafka`, `redis`: existing servers. `code`: the
    checkout whose relay is run. `against`: the system that takes turns with the relay. `foreign_load`: cores that are
    kept busy beside it. `changes`: receivers that are added and removed, one by one, while a rate is held."""

    processes: int | None = None
    receiver_processes: int = 1
    via: Via = "kafka"
    embedded: bool = False
    kafka: str | None = None
    redis: str | None = None
    code: Path = ROOT
    profile: Path | None = None
    against: Literal["plain"] | None = None
    foreign_load: int = 0
    changes: int = 0
    history: History = "log"

    @property
    def own_broker(self) -> bool:
        """Whether a broker is started for the run."""
        return not (self.embedded or self.kafka)

    def as_json(self) -> dict[str, object]:
        """The options for a report, without paths, which mean nothing elsewhere, and URLs, which may hold a
        password."""
        hidden = ("code", "profile", "redis")
        return {name: value for name, value in asdict(self).items() if name not in hidden}


@dataclass(slots=True)
class _Receiver:
    child: Child
    port: int
    control: int


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What the receivers saw of a range of messages; see Tally. `refused`: answered with 503; `bad`: not ours."""

    arrived: int
    repeats: int
    misordered: int
    first_ns: int
    last_ns: int
    refused: int
    bad: int
    latencies: Histogram = field(repr=False)


class Rig:
    """The environment of a case, up while the block runs. `system`: the system that runs in it and gets the messages:
    at first the relay, which is still to be started. `in_flight`: a single process may have so many requests in flight,
    and there are as many receivers."""

    def __init__(self, case: Case, options: Options, in_flight: int | None = None) -> None:
        self.case = case if in_flight is None else replace(case, receivers=in_flight)
        self.options = options if in_flight is None else replace(options, processes=1)
        self._in_flight = in_flight
        self.drawing = Drawing(self.case.sources, self.case.receivers)
        self.serial = 0
        """The next message's."""
        self._prefix = f"bench-{secrets.token_hex(3)}-"
        self._stack = AsyncExitStack()
        self._receivers: list[_Receiver] = []
        self._servers: dict[str, list[int]] = {}
        self.kafka = ""
        """host:port of its broker, if there is one."""
        self._requests: BrokerRequests | None = None
        self._redis: Redis | None = None
        self._busy: list[int] = []
        self.plain: PlainProcess | None = None
        self._load: Load | None = None

    async def __aenter__(self) -> Self:
        try:
            self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            for number in range(self.options.receiver_processes):
                await self._start_receiver(number)
            entries = receivers_file(self.case, [receiver.port for receiver in self._receivers])
            backing = None if self.options.embedded else await self._start_servers()
            self.relay = RelayProcess(
                self.directory,
                backing,
                entries,
                processes=self.options.processes,
                code=self.options.code,
                profile=self.options.profile,
                history=self.options.history,
                max_requests=self._in_flight,
            )
            self._stack.push_async_callback(self.relay.stop)
            self.system: System = self.relay
            if backing:
                await self.relay.make_topics()
                await self._prepare(backing)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def load(self, count: int, rate: float) -> Load:
        """The next `count` messages, at `rate` a second; 0: as fast as they are taken."""
        via = self.options.via
        job = Job(
            via=via,
            target=self.kafka if via == "kafka" else self.relay.api,
            topic=self.system.topic,
            sources=self.case.sources,
            receivers=self.case.receivers,
            payload=self.case.payload,
            first=self.serial,
            count=count,
            rate=rate,
        )
        self.serial += count
        self._load = Load(job, self.directory)
        return self._load

    async def run(self, system: System) -> None:
        """Instead of what runs now: only one of them has the machine."""
        if self.system is not system:
            await self.system.stop()
            self.system = system
            await system.start()

    @asynccontextmanager
    async def beside(self, seconds: float) -> AsyncIterator[None]:
        """The requested foreign load, while the block runs; it ends anyway a minute after `seconds`."""
        command = [sys.executable, "-m", "bench.busy", str(seconds + _BUSY_LONGER_S)]
        numbers = range(self.options.foreign_load)
        children = [Child(f"busy-{number}", command, self.directory, environ=own_environ()) for number in numbers]
        try:
            for child in children:
                await child.start()
            self._busy = [child.pid for child in children]
            yield
        finally:
            self._busy = []
            await asyncio.gather(*(child.stop() for child in children))

    @asynccontextmanager
    async def changing(self, seconds: float) -> AsyncIterator[None]:
        """Receivers come and go, as was asked for, while the block runs."""
        changes = asyncio.create_task(self.relay.change(self.options.changes, seconds))
        try:
            yield
            await changes
        finally:
            changes.cancel()

    async def counters(self) -> Counters:
        """As they are now."""
        kafka = await self._requests.read() if self._requests is not None else None
        trips = scripts = None
        if self._redis is not None:
            trips, scripts = of_redis(await self._redis.info("stats", "commandstats"))
        groups = self._servers | {self.system.name: self.system.pids}
        return Counters(kafka, trips, scripts, wakeups(groups))

    async def restart_counts(self) -> None:
        """A new phase begins."""
        await self.tell("/restart")

    async def tell(self, target: str) -> None:
        """`/hold`: the receivers leave requests unanswered, until `/release`."""
        for receiver in self._receivers:
            await ask(receiver.control, "POST", target)

    async def held(self) -> int:
        """Requests that wait at the receivers for an answer, on connections that are open."""
        counts = [(await ask(receiver.control, "GET", "/progress"))["held"] for receiver in self._receivers]
        return sum(count for count in counts if isinstance(count, int))

    async def arrived(self) -> int:
        """Different messages that arrived in this phase: at the receivers, or back at the sender in a round trip."""
        where = "callbacks" if self.case.round_trip else "deliveries"
        counts = [(await ask(receiver.control, "GET", "/progress"))[where] for receiver in self._receivers]
        return sum(count for count in counts if isinstance(count, int))

    async def arrivals(self, first: int, end: int) -> Arrivals:
        """Of the messages with serials from `first` to before `end`, in this phase."""
        target = f"/tally?first={first}&end={end}"
        books = [await ask(receiver.control, "GET", target) for receiver in self._receivers]
        deliveries = [Tally.of_json(book["deliveries"]) for book in books]
        callbacks = [Tally.of_json(book["callbacks"]) for book in books]
        timed = callbacks if self.case.round_trip else deliveries
        return Arrivals(
            arrived=sum(tally.arrived for tally in timed),
            repeats=sum(tally.repeats for tally in deliveries + callbacks),
            misordered=sum(tally.misordered for tally in deliveries),  # results have no order to keep
            first_ns=min((tally.first_ns for tally in timed if tally.first_ns), default=0),
            last_ns=max(tally.last_ns for tally in timed),
            refused=sum(int(str(book["refused"])) for book in books),
            bad=sum(int(str(book["bad"])) for book in books),
            latencies=Histogram.merged((tally.buckets, tally.most_ns) for tally in timed),
        )

    def sample(self) -> Sample:
        """CPU and memory so far, of `relay` or `plain`, `kafka`, `redis`, `receiver`, `generator`, the foreign
        load, and of the driver itself."""
        groups = dict(self._servers)
        relay = self.system.pids
        if self.options.embedded:
            groups["redis"] = [pid for root in relay for pid in tree(root) if command_of(pid).startswith("valkey")]
        groups[self.system.name] = relay
        groups["receiver"] = [receiver.child.pid for receiver in self._receivers]
        if self._load is not None and not self._load.child.ended:
            groups["generator"] = [self._load.child.pid]
        if self._busy:
            groups[FOREIGN_LOAD] = self._busy
        groups["driver"] = [os.getpid()]  # last: all others descend from it, too
        return sample(groups, time.monotonic())

    async def _start_receiver(self, number: int) -> None:
        case = self.case
        knobs: dict[str, object] = {
            "latency_s": case.latency_s,
            "failing": case.failing,
            "retry_after_s": case.retry_after_s,
            "echo": case.round_trip,
            "answer": case.answer,
            "pairs": self.drawing.pairs,
        }
        command = [sys.executable, "-m", "bench.receiver", json.dumps(knobs)]
        child = Child(f"receiver-{number}", command, self.directory, environ=own_environ(), piped=True)
        self._stack.push_async_callback(child.stop)
        await child.start()
        ports = json.loads(await child.read_line())
        self._receivers.append(_Receiver(child, ports["port"], ports["control"]))

    async def _prepare(self, backing: Backing) -> None:
        """The plain pipeline, where it is asked for, and what counts requests to servers of our own."""
        self.kafka = backing.kafka
        if self.options.against is not None:
            urls = receiver_urls(self.case, [receiver.port for receiver in self._receivers])
            processes = self.options.processes or available_cores()
            self.plain = PlainProcess(self.directory, backing.kafka, backing.prefix, urls, processes=processes)
            self._stack.push_async_callback(self.plain.stop)
            await self.plain.make_topics()
        if self.options.redis is None:
            self._redis = await self._stack.enter_async_context(Redis.from_url(backing.redis))
        if "kafka" in self._servers:
            requests = BrokerRequests(self._servers["kafka"][0], self.directory)
            with suppress(OSError, ChildFailed):  # a JVM that does not let itself be asked: then they are not counted
                await requests.read()
                self._requests = requests

    async def _start_servers(self) -> Backing:
        options = self.options
        kafka_address, redis_url = options.kafka, options.redis
        if redis_url is not None:
            self._stack.push_async_callback(clean_redis, redis_url, self._prefix)
        else:
            valkey = Valkey(self.directory)
            self._stack.push_async_callback(valkey.stop)
            await valkey.start()
            redis_url = valkey.url
            self._servers["redis"] = [valkey.child.pid]
        if kafka_address is not None:
            self._stack.push_async_callback(clean_kafka, kafka_address, self._prefix)
        else:
            kafka = Kafka(self.directory)
            self._stack.push_async_callback(kafka.stop)
            await kafka.start()
            kafka_address = kafka.bootstrap
            if kafka.child is not None:
                self._servers["kafka"] = [kafka.child.pid]
        return Backing(kafka_address, redis_url, self._prefix)
