"""The dependencies of the steps: HTTP, time, randomness, meter, journal and tracing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from msgspec import structs

from relay.clock import Clock
from relay.delivery.port import Transport
from relay.domain.attempt import AttemptKind
from relay.domain.exchange import Exchange, Request
from relay.domain.hop import Hop
from relay.domain.receiver import Receiver
from relay.engine.request_limiter import RequestLimiter
from relay.engine.work import Call, Decision, Work
from workers.journal import Journal, RequestPurpose
from workers.meter import Meter, SilentMeter
from workers.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Outside:
    """`jitter`: uniform sample of [0, 1). `turnstile`: the process's request limiter, which sees every exchange.
    `answer_url`: where a receiver may POST its answer later (None: nowhere). `journal` None: requests are not
    recorded. `tracing` None: a sender's trace context is passed on unchanged."""

    transport: Transport
    clock: Clock
    jitter: Callable[[], float]
    user_agent: str
    answer_url: Callable[[Receiver, Hop], str | None] = lambda _receiver, _hop: None
    meter: Meter = field(default_factory=SilentMeter)
    journal: Journal | None = None
    tracing: Tracing | None = None
    turnstile: RequestLimiter = field(kw_only=True)

    def traced(self, hop: Hop, kind: AttemptKind, attempt: int) -> Hop:
        """`hop` with the trace context that a request for it carries."""
        return hop if self.tracing is None else self.tracing.traced(hop, kind, attempt)

    def post(
        self, work: Work, about: RequestPurpose, request: Request, decide: Callable[[Exchange], Decision]
    ) -> Call[Exchange]:
        """As `call`. A request that starts in a slot of its endpoint's rate limit may wait for a connection only
        within that slot."""
        if work.rules is not None and work.rules.late_s < inf:
            within_s = max(0.0, work.start_by - self.clock.monotonic())
            request = structs.replace(request, start_within_s=within_s)
        return self.call(about, request, decide)

    def call(self, about: RequestPurpose, request: Request, decide: Callable[[Exchange], Decision]) -> Call[Exchange]:
        """Make `request`. `decide` says what its outcome means, unless the failure is on our side."""
        begun = self.clock.monotonic()
        return Call(partial(self.transport.send, request), partial(self._heard, about, request, begun, decide))

    def _heard(
        self,
        about: RequestPurpose,
        request: Request,
        begun: float,
        decide: Callable[[Exchange], Decision],
        exchange: Exchange,
    ) -> Decision:
        decision = self.turnstile.heard(about.gate, request.url, exchange) or decide(exchange)
        if self.journal is not None:
            self.journal.tell(about, request, exchange, decision, self.clock.monotonic() - begun)
        return decision
