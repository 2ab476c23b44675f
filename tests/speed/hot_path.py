"""The engine and the workers at full speed, on ports that answer at once and cost next to nothing.

This measures our own Python: records become works, requests, outcomes and hop records. The cost of the client
libraries, Kafka and Redis is not in it; `make bench` measures that.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from relay.clock import SystemClock
from relay.control.registry import Registry
from relay.delivery.port import Transport
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message, message_headers, parse_message
from relay.domain.receiver import Endpoint, Receiver, SigningPolicy
from relay.domain.requests import post_request
from relay.domain.topics import Topics
from relay.engine.decision import Done
from relay.engine.effects import Effects
from relay.engine.holding import Holding
from relay.engine.lane import Lane, LaneSetup
from relay.engine.open_lane import OpenLane
from relay.engine.policy import Bounds, Policy, dedicated, unparked
from relay.engine.pump import Pump
from relay.engine.request_limiter import RequestLimiter
from relay.engine.supervision import Retrier
from relay.engine.work import Worker
from relay.log.port import Coordinate, Log, NewRecord, Record
from relay.state.attempts import BeginRequest, Go, Settlement
from relay.state.port import IntakeRequest, State
from relay.state.port import Lane as LaneId
from relay.state.rows import Arrival, Result, Row, Stage
from relay.telemetry.metrics import Metrics
from relay.telemetry.observer import TelemetryObserver
from relay.telemetry.sentry import SentryReporter
from relay.watch.attempt_log import AttemptLog
from relay.watch.statistics import MetricsMeter, Tallies
from relay.watch.traces import Traces
from tests.fakes.no_moves import NoMoves
from workers.dependencies import Dependencies
from workers.from_sender import FromSender, TracedFromSender
from workers.journal import RequestPurpose
from workers.records import Letters
from workers.to_receiver import ToReceiver

TOPICS = Topics("")
RECEIVERS = 16
SOURCES = 64
ANSWER = Response(200, {"content-type": "application/json", "content-length": "2"}, b"{}")


class QuickTransport(Transport):
    """Every receiver answers at once."""

    async def start(self) -> None: ...

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        asyncio.get_running_loop().call_soon(done, ANSWER)

    async def close(self) -> None: ...


class QuickState:
    """Knows nothing, allows everything."""

    async def arrive(self, arrivals: Sequence[Arrival]) -> list[None]:
        return [None] * len(arrivals)

    async def enqueued(self, arrivals: Sequence[Arrival]) -> list[None]:
        return [None] * len(arrivals)

    async def intake(self, asks: Sequence[tuple[LaneId, IntakeRequest]]) -> list[Row]:
        return [_NOTHING] * len(asks)

    async def begin(self, asks: Sequence[tuple[LaneId, BeginRequest]]) -> list[Go]:
        return [_GO] * len(asks)

    async def settle(self, settlements: Sequence[Settlement]) -> list[None]:
        return [None] * len(settlements)

    async def mark(self, marks: Sequence[object]) -> list[None]:
        return [None] * len(marks)

    async def reserve(self, lane: LaneId, before: int) -> None: ...

    async def leave(self, lane: LaneId) -> None: ...

    async def next_due(self, tags: Sequence[tuple[LaneId, int]]) -> list[None]:
        return [None] * len(tags)


_NOTHING, _GO = Row(), Go(1, 0.0)


class QuickLog:
    """Acknowledges everything, and keeps what it was given."""

    def __init__(self) -> None:
        self.appended: list[NewRecord] = []

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        start = len(self.appended)
        self.appended += records
        return [Coordinate(record.topic, 0, start + n) for n, record in enumerate(records)]


class HotPath:
    """A FromSender lane, and one ToReceiver lane per receiver. `traces` None: they are off."""

    def __init__(self, traces: Traces | None = None) -> None:
        registry = Registry(TOPICS, {})
        registry._in_force.receivers.update({name: _receiver(name) for name in map(receiver_name, range(RECEIVERS))})
        metrics = Metrics("0")
        self.log = QuickLog()
        self._clock = SystemClock()
        self._observer = TelemetryObserver(metrics, SentryReporter(), lambda: None)
        state = cast(State, QuickState())
        request_limiter = RequestLimiter(self._clock, self._observer)
        meter = MetricsMeter(metrics, Tallies())
        outside = Dependencies(
            QuickTransport(),
            self._clock,
            lambda: 0.5,
            "relay/0",
            meter=meter,
            journals=() if traces is None else (traces,),
            tracing=traces,
            request_limiter=request_limiter,
        )
        letters = Letters(TOPICS, self._clock)
        log, retrier = cast(Log, self.log), Retrier(self._clock, self._observer)
        holding = Holding(log, state, TOPICS.receiver_config)
        effects = Effects(log, state, self._clock, retrier, holding, TOPICS.parked())
        self.pump = Pump(effects, self._clock, request_limiter)
        routing = FromSender if traces is None else TracedFromSender
        self.from_sender = self._lane(
            TOPICS.from_sender,
            routing(TOPICS, registry, state, letters, outside, max_payload_bytes=1_000_000, moves=NoMoves()),
            unparked(60.0),
        )
        to_receiver = ToReceiver(TOPICS, registry, state, letters, outside, NoMoves())
        self.to_receiver = {
            name: self._lane(TOPICS.to_receiver(name), to_receiver, dedicated(60.0, capped=True))
            for name in registry.receivers()
        }

    def _lane(self, topic: str, worker: Worker[Any], policy: Policy) -> OpenLane:
        setup = LaneSetup(
            lane=LaneId(topic, 0, 1),
            tags=(0,),
            policy=policy,
            bounds=Bounds(),
            observer=self._observer,
            random=secrets.token_bytes,
            wall=self._clock.time,
        )
        return OpenLane(self.pump, self._clock, partial(Lane, setup, worker))


def receiver_name(number: int) -> str:
    return f"receiver-{number:02d}"


def _receiver(name: str) -> Receiver:
    signing = SigningPolicy(("standard",), ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",))
    return Receiver(name, Endpoint("http://127.0.0.1:8000/hooks", signing, max_in_flight=64))


def messages(count: int, first: int = 0) -> list[Record]:
    """Records of `from_sender` from offset `first` on: 1 kB each, one receiver each, from many sources."""
    payload = b'{"ref":"refs/heads/main","before":"' + b"0" * 960 + b'"}'
    records = []
    for n in range(first, first + count):
        message = Message(
            source_id=f"source-{n % SOURCES:02d}",
            message_id=f"5e2f1c3a-{n:012d}",
            receivers=(receiver_name(n // SOURCES % RECEIVERS),),
            event_type="push",
            time=None,
            content_type="application/json",
            payload=payload,
        )
        records.append(
            Record(TOPICS.from_sender, 0, n, message.source_id.encode(), payload, message_headers(message), NOW_MS)
        )
    return records


NOW_MS = int(SystemClock().time() * 1000)


def hop_records(appended: Sequence[NewRecord]) -> Mapping[str, list[Record]]:
    """What was appended, as the next lanes read it, by topic."""
    read: dict[str, list[Record]] = {}
    for record in appended:
        of_topic = read.setdefault(record.topic, [])
        of_topic.append(Record(record.topic, 0, len(of_topic), record.key, record.value, record.headers, NOW_MS))
    return read


class AttemptLogging:
    """The attempt log of such POSTs, on a log that acknowledges everything."""

    def __init__(self) -> None:
        self.log = QuickLog()
        attempts = AttemptLog(cast(Log, self.log), TOPICS, SystemClock(), Metrics("0"), share=1.0)
        self._attempts, self._now = attempts, SystemClock().wall()
        self._receivers = [_receiver(receiver_name(number)) for number in range(RECEIVERS)]
        self._decision = Done(stage=Stage.PUBLISHED, result=Result("answered", 200, "application/json", b"{}"))

    def posts(self, records: Sequence[Record]) -> list[tuple[RequestPurpose, Request]]:
        found = []
        for record in records:
            message = parse_message(record.value, record.headers)
            receiver = self._receivers[record.offset % RECEIVERS]
            delivery = DeliveryId(receiver.name, message.source_id, message.message_id)
            hop = Hop(delivery, event_type="push", content_type="application/json", accepted_ms=NOW_MS)
            request = post_request(
                receiver,
                hop,
                message.payload,
                attempt=1,
                sequence=record.offset,
                now=self._now,
                answer_url="https://relay.example/v1/answers/c29tZSByYW5kb20gdG9rZW4",
                user_agent="relay/0",
            )
            found.append((RequestPurpose("post", f"r:{receiver.name}", receiver.post, delivery, 0, 1), request))
        return found

    def record(self, posts: Sequence[tuple[RequestPurpose, Request]]) -> None:
        """The part of the step."""
        for about, request in posts:
            self._attempts.record(about, request, ANSWER, self._decision, 0.01)

    def forget(self) -> None:
        self._attempts._waiting.clear()

    async def flush(self) -> None:
        """The rest: append it to the log."""
        running = asyncio.ensure_future(self._attempts.run())
        await self._attempts.end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def passed(lane: OpenLane, records: Sequence[Record], *, batch: int) -> None:
    """Offer `records` in batches; returns when all have ended."""
    for start in range(0, len(records), batch):
        lane.offer(records[start : start + batch])
        while lane.core.watermark.unfinished:
            lane.progress.clear()
            await lane.progress.wait()
