"""Dependencies of a worker's step without an engine: a clock that stands still, a transport with fixed replies, a
registry, and a meter that counts."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from relay.delivery.port import Transport
from relay.domain.attempt import Attempt
from relay.domain.dead_letter import DeadLetter, parse_dead_letter
from relay.domain.errors import InvalidRecord
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.outcome import Outcome
from relay.domain.receiver import Receiver, Source
from relay.domain.topics import Topics
from relay.engine.decision import Call, Decision
from relay.engine.request_limiter import RequestLimiter
from relay.engine.work import W, Worker
from relay.log.port import Headers, NewRecord, Record
from tests.fakes.no_moves import NoMoves
from workers.dependencies import Dependencies, Meter, Via
from workers.journal import RequestPurpose, attempt_of, ended_request
from workers.records import Letters

NOW = 1_700_000_000.0
TOPICS = Topics()
DELIVERY = DeliveryId("ci", "github", "m-1")


class StandingClock:
    """All times start at NOW, and move only when a test moves them; the machine's own clock is `off_s` ahead."""

    def __init__(self) -> None:
        self.now = NOW
        self.off_s = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.off_s

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        raise AssertionError("a step does not wait for events")


class SetReplies(Transport):
    """Answers requests with `replies`, the last of them for ever; each takes `seconds`."""

    def __init__(self, clock: StandingClock) -> None:
        self._clock = clock
        self.seconds = 0.0
        self.replies: list[Exchange] = []
        self.requests: list[Request] = []

    async def start(self) -> None:
        return

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        asyncio.get_running_loop().call_soon(lambda: done(self._reply(request)))

    def _reply(self, request: Request) -> Exchange:
        self.requests.append(request)
        self._clock.now += self.seconds
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    async def close(self) -> None:
        return


class KeptJournal:
    """Keeps all that is recorded, as other journals would get it."""

    def __init__(self, clock: StandingClock) -> None:
        self._clock = clock
        self.attempts: list[Attempt] = []

    def record(
        self, about: RequestPurpose, request: Request, exchange: Exchange, decision: Decision, seconds: float
    ) -> None:
        started_at = self._clock.time() - seconds
        made = ended_request(about, request, exchange, decision, started_at=started_at, seconds=seconds)
        self.attempts.append(attempt_of(made))


class CountingMeter(Meter):
    """Keeps all that is metered."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def received(self, *, foreign_key: bool) -> None:
        self.told.append(("received", foreign_key))

    def filtered(self) -> None:
        self.told.append(("filtered",))

    def unrouted(self, delivery: DeliveryId, reason: str, why: str) -> None:
        self.told.append(("unrouted", delivery.receiver, reason, why))

    def posted(self, receiver: Receiver, exchange: Exchange, outcome: Outcome, seconds: float, now: float) -> None:
        self.told.append(("posted", receiver.name, seconds))

    def called_back(self, source_id: str, exchange: Exchange, outcome: Outcome, seconds: float, now: float) -> None:
        self.told.append(("called back", source_id, seconds))

    def delivered(self, receiver: str, age_s: float, answered: Via | None = None) -> None:
        self.told.append(("delivered", receiver, age_s))
        if answered is not None:
            self.answered(receiver, answered, age_s)

    def answered(self, receiver: str, via: Via, age_s: float | None) -> None:
        self.told.append(("answered", receiver, via, age_s))

    def unpolled(self, delivery: DeliveryId, why: str) -> None:
        self.told.append(("unpolled", delivery.receiver, why))

    def payload_read(self, receiver: str) -> None:
        self.told.append(("payload_read", receiver))

    def returned(self, receiver: str, age_s: float) -> None:
        self.told.append(("returned", receiver, age_s))

    def refused(self, kind: str, why: str) -> None:
        self.told.append(("refused", kind, why))

    def over_quota(self, of: str, messages: int) -> None:
        self.told.append(("over_quota", of, messages))

    def queued(self, what: str, seconds: float) -> None:
        self.told.append(("queued", what, seconds))

    def over_share(self, what: str) -> None:
        self.told.append(("over_share", what))


@dataclass
class KnownOnes(NoMoves):
    """A directory whose entries a test may change at any time."""

    receivers: dict[str, Receiver] = field(default_factory=dict)
    gone: dict[str, Receiver] = field(default_factory=dict)
    """Last settings of removed ones."""
    sources: dict[str, Source] = field(default_factory=dict)
    subscribed: tuple[str, ...] | InvalidRecord = ()
    refused: dict[str, str] = field(default_factory=dict)

    def receiver(self, name: str) -> Receiver | None:
        return self.receivers.get(name)

    def refusal(self, name: str) -> str | None:
        return self.refused.get(name)

    def removed(self, name: str) -> Receiver | None:
        return self.gone.get(name)

    def source(self, source_id: str) -> Source:
        return self.sources.get(source_id) or Source(source_id)

    def subscribers(self, source_id: str, event_type: str | None) -> tuple[str, ...]:
        if isinstance(self.subscribed, InvalidRecord):
            raise self.subscribed
        return self.subscribed

    def filtered(self, source_id: str, event_type: str | None) -> list[str]:
        names = self.subscribers(source_id, event_type)
        return [name for name in names if (one := self.receiver(name)) is not None and one.filter is not None]


class Rig:
    """What every step is given. `jitter` is 0.5: half of the backoff."""

    def __init__(self) -> None:
        self.clock = StandingClock()
        self.http = SetReplies(self.clock)
        self.known = KnownOnes()
        self.meter = CountingMeter()
        self.journal = KeptJournal(self.clock)
        self.letters = Letters(TOPICS, self.clock)
        self.outside = Dependencies(
            self.http,
            self.clock,
            lambda: 0.5,
            "relay/test",
            lambda receiver, hop: f"https://us/{hop.generation}",
            self.meter,
            (self.journal,),
            request_limiter=RequestLimiter(self.clock),
        )

    def know(self, *receivers: Receiver) -> None:
        self.known.receivers.update({receiver.name: receiver for receiver in receivers})

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Set the next reply; names of headers with `_` for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.http.replies.append(Response(status, named, body))


async def stepped(worker: Worker[W], work: W, attempt: int | None = None) -> Decision:
    """The step's decision, as the engine gets it. `attempt`: that this begin gave it."""
    if attempt is not None:
        work.attempts = attempt
    step = worker.step(work)
    if not isinstance(step, Call):
        return step
    replied: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    step.start(replied.set_result)
    return step.decide(await replied)


def record(
    topic: str,
    headers: Headers = (),
    value: bytes | None = b"payload",
    *,
    key: bytes | None = b"github",
    offset: int = 7,
    age_s: float = 0.0,
) -> Record:
    """A record of partition 3, appended `age_s` ago."""
    return Record(topic, 3, offset, key, value, headers, int((NOW - age_s) * 1000))


def hop_record(
    topic: str, hop: Hop, value: bytes | None = b"payload", *, offset: int = 7, age_s: float = 0.0
) -> Record:
    return record(topic, encode_hop(hop), value, offset=offset, age_s=age_s)


def headers_of(new: NewRecord) -> Mapping[str, bytes]:
    return dict(new.headers)


def hop_of(new: NewRecord) -> Hop:
    return decode_hop(new.headers)


def letter_of(new: NewRecord) -> DeadLetter:
    assert new.topic == TOPICS.failed_messages
    return parse_dead_letter(new.headers)


def only(decisions: Iterable[NewRecord]) -> NewRecord:
    (one,) = decisions
    return one
