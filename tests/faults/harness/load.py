"""The load: a sender that keeps the order of each source, repeats unacknowledged messages, and records all of them."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from relay.domain.timing import Timing, timing_headers
from tests.faults.harness.doors import Doors
from tests.faults.harness.history import Sent, digest_of
from tests.faults.harness.receivers import CALLBACKS, tenant_of

_REPEAT_AFTER_S = 0.2
_GIVE_UP_S = 120.0
_REQUEST_MS = 5_000
_TRANSACTION_S = 10.0
_ABORTED = 0.3
"""Share of a transactional source's messages that are first sent with other bytes in a transaction that is aborted."""
_LARGE_BYTES = (10_000, 1_000_000)
_WIDEST = 8
Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Plan:
    """`rate`: messages a second, of all sources together. `two`: the share of messages for two receivers, `wide`: for
    three to eight. `crossing`: the share that also names a receiver of another tenant. `by_http`: number of sources
    that send over HTTP, if the relay has an API. `again`: the share of messages after which an older id of the source
    is sent again. `payload`: its bytes, except for a share of `large` ones, up to 1 MB. `transactional`: number of
    sources that send each message in a transaction. `timed`: the share of messages with a time, a deadline or a key of
    their own.
    """

    receivers: Sequence[str]
    sources: int = 16
    rate: float = 60.0
    two: float = 0.2
    wide: float = 0.03
    crossing: float = 0.02
    again: float = 0.0
    payload: int = 300
    large: float = 0.005
    transactional: int = 1
    by_http: int = 4
    timed: float = 0.15


@dataclass(slots=True)
class _Source:
    """One source. It sends one message at a time, so that the log has the messages in the order of sending. `doors`:
    the API, if it sends over HTTP. `transactional`: the id of its own producer, empty for none; `producer`: that
    producer, while it works.
    """

    name: str
    random: random.Random
    tenant: int
    doors: Doors | None = None
    transactional: str = ""
    producer: AIOKafkaProducer | None = None
    older: list[tuple[bytes, Headers, list[Sent]]] = field(default_factory=list)


class Load:
    """Sends while `run` runs. `label`: prefix of the ids of its messages. `numbers`: the last number used by each
    source. `tenants`: of receivers that have one. `doors`: the API of the relay's processes, if they have one."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        label: str,
        numbers: Counter[str],
        plan: Plan,
        seed: int,
        tenants: Mapping[str, int],
        doors: Doors | None,
        told: Callable[[Sent], None] = lambda sent: None,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._label = label
        self._numbers = numbers
        self._plan = plan
        self._told = told
        self._stop = asyncio.Event()
        self._tenants = tenants
        self._sources = [
            _Source(f"source-{n}", random.Random(f"{seed}-{label}-{n}"), tenant_of(n)) for n in range(plan.sources)
        ]
        for source in self._sources[max(0, plan.sources - plan.by_http) :]:
            source.doors = doors
        for source in self._sources[: plan.transactional]:
            source.transactional = f"{topic}-{label}-{source.name}"
        self.sent: list[Sent] = []

    async def run(self, *, seconds: float | None = None, messages: int | None = None) -> None:
        """Send for `seconds`, or until `messages` are sent or `stop` is called. Returns when all are acknowledged, or
        given up after two minutes."""
        self._left = messages if messages is not None else 1 << 40
        producer = self._producer(acks="all", enable_idempotence=False, linger_ms=2)
        await producer.start()
        timer = asyncio.get_running_loop().call_later(seconds, self._stop.set) if seconds is not None else None
        try:
            async with asyncio.TaskGroup() as tasks:
                for source in self._sources:
                    tasks.create_task(self._feed(producer, source))
        finally:
            if timer is not None:
                timer.cancel()
            await producer.stop()
            for source in self._sources:
                await _close(source)

    @property
    def over(self) -> bool:
        """Whether `stop` was called. Messages that were begun may take a while."""
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    async def _feed(self, producer: AIOKafkaProducer, source: _Source) -> None:
        pause_s = len(self._sources) / self._plan.rate
        await self._wait(source.random.uniform(0, pause_s))
        while not self._stop.is_set() and self._left > 0:
            self._left -= 1
            await self._send_next(producer, source)
            if source.older and source.random.random() < self._plan.again:
                await self._send_again(producer, source)
            await self._wait(source.random.uniform(0.5, 1.5) * pause_s)

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    async def _send_next(self, producer: AIOKafkaProducer, source: _Source) -> None:
        self._numbers[source.name] += 1
        number = self._numbers[source.name]
        message_id = f"{self._label}-{source.name}-{number}"
        receivers, foreign = self._receivers(source)
        foreign = foreign if source.doors is None else []  # the API refuses the whole message
        size = source.random.randint(*_LARGE_BYTES) if source.random.random() < self._plan.large else self._plan.payload
        payload = _payload(source.name, number, size)
        is_envelope = number % 2 == 0 and source.doors is None
        value, headers = record_of(source.name, message_id, receivers + foreign, payload, envelope=is_envelope)
        at = time.time()
        timing = timing_at(at, source.random) if source.random.random() < self._plan.timed else None
        headers += () if timing is None else timing_headers(timing)
        acked = await self._acknowledged(producer, source, value, headers)
        digest, callback = digest_of(payload), list(CALLBACKS)[source.tenant]
        sent = [
            Sent(at, source.name, message_id, number, each, digest, acked, callback, each not in foreign, timing)
            for each in receivers + foreign
        ]
        self._note(sent)
        source.older.append((value, headers, sent))

    def _receivers(self, source: _Source) -> tuple[list[str], list[str]]:
        """Receivers of the next message: some that the source may name, and sometimes one that it may not."""
        own = [name for name in self._plan.receivers if self._tenants.get(name, source.tenant) == source.tenant]
        foreign = [name for name in self._plan.receivers if name not in own]
        draw, count = source.random.random(), 1
        if draw < self._plan.two:
            count = 2
        elif draw > 1 - self._plan.wide:
            count = source.random.randint(3, _WIDEST)
        crosses = bool(foreign) and source.random.random() < self._plan.crossing
        return source.random.sample(own, min(count, len(own))), source.random.sample(foreign, int(crosses))

    async def _send_again(self, producer: AIOKafkaProducer, source: _Source) -> None:
        """Send an older message again, like a sender that has lost its state."""
        value, headers, sent = source.random.choice(source.older)
        at = time.time()
        acked = await self._acknowledged(producer, source, value, headers)
        self._note([replace(each, at=at, acked=acked) for each in sent])

    def _note(self, sent: Sequence[Sent]) -> None:
        self.sent += sent
        for each in sent:
            self._told(each)

    async def _acknowledged(self, producer: AIOKafkaProducer, source: _Source, value: bytes, headers: Headers) -> bool:
        """Repeat a message until it is acknowledged, like a sender that must keep its order."""
        give_up = time.monotonic() + _GIVE_UP_S
        while time.monotonic() < give_up:
            try:
                if source.doors is not None:
                    if not await source.doors.send(source.tenant, source.name, value, dict(headers)):
                        raise TimeoutError
                elif source.transactional:
                    await self._transact(source, value, headers)
                else:
                    await producer.send_and_wait(self._topic, value, key=source.name.encode(), headers=headers)
            except (KafkaError, TimeoutError):
                await asyncio.sleep(_REPEAT_AFTER_S)
            else:
                return True
        return False

    async def _transact(self, source: _Source, value: bytes, headers: Headers) -> None:
        """Send in a separate transaction. After a failure another producer ends the open transaction."""
        key = source.name.encode()
        try:
            async with asyncio.timeout(2 * _TRANSACTION_S):
                if source.producer is None:
                    millis = int(_TRANSACTION_S * 1000)
                    source.producer = self._producer(
                        transactional_id=source.transactional, transaction_timeout_ms=millis
                    )
                    await source.producer.start()
                producer = source.producer
                if source.random.random() < _ABORTED:
                    await producer.begin_transaction()
                    await producer.send_and_wait(self._topic, value.replace(b"kept", b"lost"), key=key, headers=headers)
                    await producer.abort_transaction()
                await producer.begin_transaction()
                await producer.send_and_wait(self._topic, value, key=key, headers=headers)
                await producer.commit_transaction()
        except BaseException:
            await _close(source)
            raise

    def _producer(self, **how: object) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            request_timeout_ms=_REQUEST_MS,
            max_request_size=2 * _LARGE_BYTES[1],
            **how,
        )


async def _close(source: _Source) -> None:
    producer, source.producer = source.producer, None
    if producer is not None:
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(_TRANSACTION_S):
                await producer.stop()


def record_of(
    source: str, message_id: str, receivers: Sequence[str], payload: bytes, *, envelope: bool
) -> tuple[bytes, Headers]:
    """A record for `from_sender`: a JSON envelope, or CloudEvents headers."""
    if envelope:
        about = {"source_id": source, "message_id": message_id, "receiver": list(receivers), "event_type": "push"}
        return json.dumps(about)[:-1].encode() + b', "payload": ' + payload + b"}", []
    headers = {"ce_specversion": "1.0", "ce_id": message_id, "ce_source": source, "ce_receiver": ",".join(receivers)}
    headers |= {"ce_type": "push", "content-type": "application/json"}
    return payload, [(name, value.encode()) for name, value in headers.items()]


def timing_at(now: float, random_: random.Random) -> Timing:
    """The times of a message that is sent now (Unix seconds)."""
    delay = now + random_.uniform(0.5, 4.0)
    key, window = f"k{random_.randrange(3)}", random_.uniform(0.5, 2.0)
    return random_.choice(
        [
            Timing(delay),
            Timing(deadline=now + random_.uniform(2.0, 20.0)),
            Timing(delay, delay + random_.uniform(2.0, 20.0)),
            Timing(key=key),
            Timing(delay, key=key),
            Timing(key=key, window=window),
        ]
    )


def _payload(source: str, number: int, size: int) -> bytes:
    """JSON that changes if it is decoded and encoded again."""
    head = f'{{"source": "{source}",  "n": {number}, "kept": [1.50,   1e2], "text": "é", "fill": "'.encode()
    return head + b"x" * max(0, size - len(head) - 2) + b'"}'
