"""The dependencies of the steps: HTTP, time, randomness, meter, journal and tracing."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Final, Literal, Protocol

from msgspec import structs

from relay.clock import Clock
from relay.delivery.port import Transport
from relay.domain.attempt import AttemptKind
from relay.domain.coordinate import Coordinate
from relay.domain.erasure import Erasures, received_at
from relay.domain.errors import UserError
from relay.domain.exchange import Exchange, Request
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.jwe import opened
from relay.domain.message import Message
from relay.domain.one_off import OneOff
from relay.domain.outcome import Answered, Outcome
from relay.domain.reasons import DISCARDED
from relay.domain.receiver import Receiver
from relay.domain.recipients import addressed, may_reach
from relay.engine.decision import Call, Dead, Decision, Done, Resend
from relay.engine.request_limiter import RequestLimiter
from relay.engine.work import Work
from relay.log.port import NewRecord, Record
from relay.state.rows import Result
from workers.journal import Journal, RequestPurpose

Via = Literal["response", "poll", "callback"]
"""How an answer arrived: in the POST's response, by a status GET, or by the receiver's own callback."""


class Tracing(Protocol):
    """Records events other than requests, which a `workers.journal.Journal` records; must not raise, and must not
    block."""

    def traced(self, hop: Hop, kind: AttemptKind, attempt: int) -> Hop:
        """`hop` with the trace context that a request for it carries. `attempt`: 1-based, counted per kind."""
        ...

    def sending(self, message: Message) -> tuple[Message, Callable[[Coordinate | None], None]]:
        """`message` as it goes to the log, with the trace context of its send; and a callback that takes its
        coordinate (None: the log did not accept it)."""
        ...

    def routed(self, message: Message, accepted_ms: int, decision: Done | Dead) -> None:
        """The message was routed just now. `accepted_ms`: when the log took it (Unix ms)."""
        ...


class Meter:
    """Counts messages; this one counts nothing. Its methods must not raise, and must not block. `age_s`: seconds since
    the message was accepted (None: not known)."""

    def received(self, *, foreign_key: bool) -> None:
        """A message was read from `from_sender`. `foreign_key`: the record's key is not its source_id."""

    def filtered(self) -> None:
        """A message went to no receiver: the filters of all subscribers excluded it."""

    def unrouted(self, delivery: DeliveryId, reason: str, why: str) -> None:
        """A delivery got a dead letter before its message was sent to a receiver."""

    def posted(self, receiver: Receiver, exchange: Exchange, outcome: Outcome, seconds: float, now: float) -> None:
        """One POST ended, well or not. `receiver`: as posted to; `outcome`: its meaning; `now`: Unix seconds."""

    def called_back(self, source_id: str, exchange: Exchange, outcome: Outcome, seconds: float, now: float) -> None:
        """The same for a POST to the callback of a source."""

    def delivered(self, receiver: str, age_s: float, answered: Via | None = None) -> None:
        """The receiver has the message. `answered`: its answer has arrived at the same time."""

    def answered(self, receiver: str, via: Via, age_s: float | None) -> None:
        """The receiver's answer has arrived."""

    def unpolled(self, delivery: DeliveryId, why: str) -> None:
        """The receiver's answer arrives later, and cannot be polled."""

    def returned(self, receiver: str, age_s: float) -> None:
        """The sender's callback took the result."""

    def payload_read(self, receiver: str) -> None:
        """A receiver has read the payload of a thin event."""

    def refused(self, kind: str, why: str) -> None:
        """A webhook from a sender of that kind failed authentication. `why`: missing, wrong or old."""

    def not_by_schema(self, event_schemas: str) -> None:
        """The payload of a message over HTTP violates the schemas of its event type. `event_schemas`: as in the
        source's entry, count or refuse."""

    def over_quota(self, of: str, messages: int) -> None:
        """So many messages were rejected because of the quota of a `key` or a `source`."""

    def queued(self, what: str, seconds: float) -> None:
        """A request to the API waited so long for its caller's turn. `what`: search, test or dry_run."""

    def responded(self, route: str, status: int) -> None:
        """The API has answered a request. `route`: its method and template, `-` if there is none."""

    def over_share(self, what: str) -> None:
        """A request to the API was refused: its caller uses its whole share. `what`: as above, tail, page or replay."""


ERASED: Final = Dead(DISCARDED, "erased on request, while it was unfinished")
"""The end of a delivery whose payload was erased."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the workers use beside log and state. `jitter`: uniform sample of [0, 1). `request_limiter`: the process's
    request limiter, which sees every exchange. `answer_url`: where a receiver may POST its answer later (None:
    nowhere). `payload_url`: where it may read the payload of a thin event (None: no such URL can be made). `journals`:
    record the requests. `tracing` None: a sender's trace context is passed on unchanged. `report`: appends a record
    that may be lost; must not raise, and must not block."""

    transport: Transport
    clock: Clock
    jitter: Callable[[], float]
    user_agent: str
    answer_url: Callable[[Receiver, Hop], str | None] = lambda _receiver, _hop: None
    payload_url: Callable[[Hop], str | None] = field(default=lambda _hop: None, kw_only=True)
    answer_keys: tuple[str, ...] = field(default=(), repr=False, kw_only=True)
    """Private keys of the relay, which decrypt answers."""
    meter: Meter = field(default_factory=Meter)
    journals: tuple[Journal, ...] = ()
    tracing: Tracing | None = None
    report: Callable[[NewRecord], None] = lambda _record: None
    erasures: Erasures = field(default_factory=Erasures, kw_only=True)
    """Erased payloads, which are not sent."""
    opened_secret: Callable[[DeliveryId, str], str] = field(default=lambda _delivery, _sealed: "", kw_only=True)
    """The signing secret that a message brought for its own endpoint, decrypted. Raises UserError."""
    request_limiter: RequestLimiter = field(kw_only=True)
    life_of: Callable[[str], str | None] = field(default=lambda _receiver: None, kw_only=True)
    """The id of the present life of a receiver's name; None if there is no such receiver."""

    def erased(self, record: Record, delivery: DeliveryId) -> Dead | None:
        """The end of a delivery whose payload was erased before it has ended; None if it was not erased."""
        received = received_at(record.headers, record.timestamp_ms)
        return ERASED if self.erasures.has_delivery(*delivery, received) else None

    def addressed(self, receiver: Receiver, delivery: DeliveryId, one_off: OneOff) -> Receiver:
        """The receiver with the message's own endpoint."""
        if not may_reach(receiver, one_off):
            return replace(receiver, unusable="the message has an endpoint of another origin")
        try:
            secret = None if one_off.secret is None else self.opened_secret(delivery, one_off.secret)
        except UserError as error:
            return replace(receiver, unusable=f"the signing secret of the message: {error}")
        return addressed(receiver, one_off, secret)

    def result_of(self, answer: Answered) -> Result:
        """The answer, decrypted if it is encrypted for the relay."""
        content_type, body = answer.content_type, answer.body
        if self.answer_keys:
            content_type, body = opened(self.answer_keys, content_type, body)
        return Result("answered", answer.status, content_type, body, answer.truncated)

    def traced(self, hop: Hop, kind: AttemptKind, attempt: int) -> Hop:
        """`hop` with the trace context that a request for it carries."""
        return hop if self.tracing is None else self.tracing.traced(hop, kind, attempt)

    def within_slot(self, work: Work, request: Request, rest_s: float = inf) -> Request:
        """A request that starts in a slot of its endpoint's rate limit may wait for a connection only within that
        slot. `rest_s`: seconds until it must not start any more."""
        if work.rules is not None and work.rules.late_s < inf:
            rest_s = min(rest_s, work.start_by - self.clock.monotonic())
        return request if rest_s == inf else structs.replace(request, start_within_s=max(0.0, rest_s))

    def call(self, about: RequestPurpose, request: Request, decide: Callable[[Exchange], Decision]) -> Call[Exchange]:
        """Make `request`. `decide` says what its outcome means, unless the failure is on our side."""
        begun = self.clock.monotonic()
        return Call(partial(self.transport.send, request), partial(self._on_reply, about, request, begun, decide))

    def of_present_life(self, about: RequestPurpose, decision: Decision) -> Decision:
        """`decision`, without what it says about the endpoint if that was the one of a former owner: it must not pause
        the next owner's receiver. The callback of a source has no owners."""
        kind, _, name = about.endpoint_id.partition(":")
        is_former = kind == "r" and self.life_of(name) not in (None, about.life)
        if is_former and not isinstance(decision, Resend):
            return structs.replace(decision, healthy=None, pause_s=0.0)
        return decision

    def _on_reply(
        self,
        about: RequestPurpose,
        request: Request,
        begun: float,
        decide: Callable[[Exchange], Decision],
        exchange: Exchange,
    ) -> Decision:
        decision = self.request_limiter.on_reply(about.endpoint_id, request.url, exchange) or decide(exchange)
        if about.life or not isinstance(decision, Done) or decision.pause_s:  # else it does no harm to a next owner
            decision = self.of_present_life(about, decision)
        for journal in self.journals:
            journal.record(about, request, exchange, decision, self.clock.monotonic() - begun)
        return decision
