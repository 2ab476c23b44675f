"""Receivers and sources as the workers see them: frozen values, durations in seconds, secrets resolved."""

from dataclasses import dataclass, field, replace
from typing import Literal

from relay.domain.egress import Egress
from relay.domain.filters import Filter
from relay.domain.life import NO_LIFE, Life
from relay.domain.quota import Quota

LaneKind = Literal["dedicated", "shared"]
SignatureStyle = Literal["standard", "github", "stripe"]
Verification = Literal["none", "challenge", "hmac", "cloudevents"]
"""How a receiver proves that its URL wants what is sent there (`relay/domain/handshake.py`)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to try again; the first limit reached ends the delivery. `max_age` counts from acceptance, in seconds."""

    base: float = 5.0
    factor: float = 2.0
    cap: float = 3600.0
    max_attempts: int = 20
    max_age: float = 172_800.0
    jitter: bool = True
    """Full jitter over [0, delay). Off for the short form `retry_after: N`, which promises a fixed wait."""


@dataclass(frozen=True, slots=True)
class OfflinePolicy:
    """After an outage of `after` seconds an endpoint is sent nothing but a throw-away ping every `ping_every` seconds,
    until it answers one. After `disable_after` seconds it is paused until somebody resumes it."""

    after: float = 600.0
    ping_every: float = 60.0
    disable_after: float = 432_000.0


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """`failures` in a row within `window` seconds open the breaker for `open_for` seconds; an endpoint that has done
    nothing but fail for `offline.after` needs no such haste: then any so many in a row open it."""

    failures: int = 10
    window: float = 60.0
    open_for: float = 30.0
    offline: OfflinePolicy = OfflinePolicy()


@dataclass(frozen=True, slots=True)
class PollPolicy:
    """Waits between status GETs: base, base*factor, ..., at most cap seconds."""

    base: float = 2.0
    factor: float = 1.5
    cap: float = 60.0


@dataclass(frozen=True, slots=True)
class StatusMap:
    """How to read a status API that always says 200: `pointer` (JSON pointer) leads to a word.

    A word in `done` means finished, one in `running` still working, one in `unknown` that it never saw the message;
    `result` points at the answer (absent: the whole body).
    """

    pointer: str
    done: frozenset[str]
    running: frozenset[str]
    unknown: frozenset[str] = frozenset()
    result: str | None = None


@dataclass(frozen=True, slots=True)
class FormerSecret:
    """A secret that was replaced, and signs along before `until` (Unix seconds)."""

    secret: str = field(repr=False)
    until: float


@dataclass(frozen=True, slots=True)
class SigningPolicy:
    """How POSTs are signed: in each of `styles`, as while a receiver changes from one to another. `secrets`: newest
    first; during rotation each of them signs. `digest`: of the HMAC. `private_keys`: of Ed25519 (`whsk_`); each of them
    signs, too, in the style `standard`. `former`: of either kind; only beside present ones."""

    styles: tuple[SignatureStyle, ...] = ("standard",)
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    digest: Literal["sha256", "sha512"] = "sha256"
    private_keys: tuple[str, ...] = field(default=(), repr=False, compare=False)
    former: tuple[FormerSecret, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class CodeClasses:
    """Status codes that this receiver moves to another class than the table of the design says."""

    delivered: frozenset[int] = frozenset()
    not_now: frozenset[int] = frozenset()
    ambiguous: frozenset[int] = frozenset()
    not_processed: frozenset[int] = frozenset()
    rejected: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What it takes to POST somewhere: a receiver's endpoint, or a source's callback.

    `rate_limit`: POST starts in any sliding `window_size` seconds; None: unlimited. `timeout`: seconds in all.
    `secrets`: all that is secret about it, to be masked in what it says before people see that. `egress`: how it is
    reached, if not like all others.
    """

    url: str
    signing: SigningPolicy = SigningPolicy()
    rate_limit: int | None = None
    window_size: float = 1.0
    max_in_flight: int = 32
    retry: RetryPolicy = RetryPolicy()
    timeout: float = 15.0
    breaker: BreakerPolicy = BreakerPolicy()
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    codes: CodeClasses = CodeClasses()
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    egress: Egress | None = None

    @property
    def settle_s(self) -> float:
        """How long after its begin a POST may still arrive: then only is a 404 of the status endpoint conclusive."""
        return self.timeout + 10.0

    def pinged(self, every: float) -> "Endpoint":
        """The same, pinged no less often than `every` seconds while it is offline."""
        offline = self.breaker.offline
        if offline.ping_every <= every:
            return self
        return replace(self, breaker=replace(self.breaker, offline=replace(offline, ping_every=every)))


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver and its effective settings.

    `enabled` False: it subscribes to nothing and is sent nothing; what names it waits, as in a pause, and grows old.
    `answer`: whether one has to come after a 202; it counts without a `status_endpoint` only.
    `forward_headers`: which headers of a message's own it gets, in lower case; exact, or with a trailing `*`.
    `owner`: an opaque id of whom it belongs to; nothing that is sent depends on it, nor on `labels`.
    `verified` False: its URL has yet to prove what `verification` asks for, and is sent nothing before; what is for it
    waits, as in a pause.
    `unusable`: why this process cannot send to it, as where it lacks a secret; None: it can. Messages are routed to it
    all the same, and wait; its URLs and limits may be missing here, and its secrets are.
    """

    name: str
    post: Endpoint
    status_endpoint: str | None = None
    status_map: StatusMap | None = None
    poll: PollPolicy = PollPolicy()
    answer: Literal["optional", "required"] = "optional"
    answer_deadline: float = 3600.0
    on_ambiguous: Literal["resend", "dead_letter"] = "resend"
    ordering: str = "source"
    """`source`, `receiver`, `none`, a JSON pointer, or `header:NAME` (`relay/domain/ordering.py`)."""
    patience: float | None = None
    """Seconds after which a message that fails holds up no others any more; None: it does until it ends."""
    lane: LaneKind = "dedicated"
    partitions: int = 1
    sources: tuple[str, ...] = ()
    senders: tuple[str, ...] | None = None
    """Sources whose messages may name it, as `sources` has them; None: any, but where it has an owner and subscribes
    to something those."""
    event_types: tuple[str, ...] = ()
    filter: Filter | None = None
    """Of what it subscribes to, what it wants; None: all."""
    enabled: bool = True
    forward_headers: tuple[str, ...] = ()
    owner: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    verification: Verification = "none"
    verified: bool = True
    unusable: str | None = None
    move: int = 0
    """How often it has changed its lane: `lane` is what the last move led to."""
    moving: bool = False
    """Its other lane has to finish first; until then this one only gathers (see `relay/domain/route.py`)."""
    life: Life = NO_LIFE


Redelivery = Literal["failed", "always", "never"]
InboundKind = Literal["github", "stripe", "slack", "standard", "cloudevents", "generic"]


@dataclass(frozen=True, slots=True)
class Inbound:
    """How a source's webhooks come in as others send them, and how they prove that they are its own.

    `secrets`: any of them will do, as while rotating. `receivers` None: whoever subscribes. `tolerance_s`: how far a
    signed time may be from now. `redelivery`: of an id that came before, what is sent once more: deliveries that have
    failed, all that are over, or none. The rest is of `generic`, and of `cloudevents` where `header` is given: the
    header with the HMAC over the body (`prefix` stands before it, as `sha256=`), and those with the message id and the
    type.
    """

    kind: InboundKind
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    receivers: tuple[str, ...] | None = None
    tolerance_s: float = 300.0
    header: str | None = None
    digest: Literal["sha1", "sha256", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""
    id_header: str | None = None
    type_header: str | None = None
    redelivery: Redelivery = "failed"


@dataclass(frozen=True, slots=True)
class Source:
    """A source and how results come back to it. `callback` None: it asks the API, or reads `to_sender` itself.
    `inbound` None: it sends nothing but messages in our own form. `quota`: of what comes in over HTTP; None: the one
    that is usual. `unusable`: as of a receiver; `callback` then says only whether there is one."""

    source_id: str
    callback: Endpoint | None = None
    kafka: bool = False
    answers: Literal["all", "non_empty", "none"] = "all"
    failures: bool = True
    inbound: Inbound | None = None
    quota: Quota | Literal["none"] | None = None
    unusable: str | None = None
