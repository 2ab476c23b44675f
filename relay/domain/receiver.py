"""Receivers and sources with their settings in effect: frozen, durations in seconds, secrets resolved."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from relay.domain.coordinate import Coordinate
from relay.domain.egress import Egress
from relay.domain.expression import Expression
from relay.domain.filters import Filter
from relay.domain.identity import Progress
from relay.domain.request_form import RequestForm
from relay.domain.template import Template, Tree


class SeenTopic(NamedTuple):
    """`from_sender` at a moment. `id`: of the topic, which is another once the topic is created again; empty if the log
    has no ids. `config_end`: where `receiver_config` had ended before that."""

    id: str = ""
    config_end: int = 0


NO_TOPIC: Final = SeenTopic()


class Life(Struct, frozen=True, gc=False):
    """A life of a receiver's name: from a registration over the API until removal or a change of owner.

    A removed name can be registered by another owner, who must not see the earlier owner's messages. So each
    registration begins a new life, each record of its messages carries that life's id, and access is decided by it.
    `id`: empty for a name that was declared in a file, or registered by an earlier release; it begins with the end of
    `receiver_config` at that moment. `topic`, `topic_id`, `begins`: the name of `from_sender`, the id of the topic
    (empty if unknown), and the next offset of each of its partitions when the life began."""

    id: str = ""
    topic: str = ""
    begins: tuple[int, ...] = ()
    topic_id: str = ""

    def has(self, id: str, origin: Coordinate | None = None) -> bool:
        """Whether a record belongs to this life: by its `id`, or without one by the `origin` of its message."""
        if id or not self.id:
            return id == self.id
        return origin is not None and self.began_before(origin)

    def began_before(self, at: Coordinate, seen: SeenTopic = NO_TOPIC) -> bool:
        """Whether this life began before a message arrived. `at`: the message's place on `from_sender`, of the topic
        `seen`.

        Offsets of two topics cannot be compared. That of the message is the later one if it was the present one when
        `receiver_config` had grown since the life began.
        """
        if not self.id:
            return True
        if self.topic_id and seen.id not in ("", self.topic_id):
            return int(self.id.partition("-")[0]) < seen.config_end
        offset = self.begins[at.partition] if at.partition < len(self.begins) else 0
        return at.topic == self.topic and at.offset >= offset


NO_LIFE = Life()


LONGEST_WINDOW_S: Final = 86_400
MOST_MESSAGES: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `messages` (1 to MOST_MESSAGES) in a window of `window_s` seconds, which begins with its first message;
    the next message after it begins a new window. Whole seconds, 1 to LONGEST_WINDOW_S: quota header fields allow no
    others."""

    messages: int
    window_s: int

    def __str__(self) -> str:
        return f"{self.messages}/{self.window_s}s"


LaneKind = Literal["dedicated", "shared"]
SignatureStyle = Literal["standard", "github", "stripe", "http-message"]
EventSchemas = Literal["off", "count", "refuse"]
Verification = Literal["none", "challenge", "hmac", "cloudevents"]
"""How a receiver proves that its URL wants the relay's requests (`relay/domain/verification.py`)."""


SignatureDigest = Literal["sha256", "sha512"]
AnswerRule = Literal["optional", "required"]
AmbiguityRule = Literal["resend", "dead_letter"]
RateLimitUnit = Literal["posts", "events"]
WantedAnswers = Literal["all", "non_empty", "none"]
PayloadForm = Literal["full", "thin", "metadata"]
"""What a receiver gets of the payload: itself, a URL at which it can be read, or nothing."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to retry; the first limit reached ends the delivery. `max_age` counts from acceptance, in seconds."""

    base: float = 5.0
    factor: float = 2.0
    cap: float = 3600.0
    max_attempts: int = 20
    max_age: float = 172_800.0
    jitter: bool = True
    """Full jitter over [0, delay). False for the short form `retry_after: N`, which promises a fixed wait."""


@dataclass(frozen=True, slots=True)
class OfflinePolicy:
    """After an outage of `after` seconds the relay sends an endpoint only a ping every `ping_every` seconds, until it
    answers one. After `disable_after` seconds the endpoint is paused until an operator resumes it."""

    after: float = 600.0
    ping_every: float = 60.0
    disable_after: float = 432_000.0


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """`failures` in a row within `window` seconds open the breaker for `open_for` seconds. For an endpoint that has
    only failed for `offline.after` seconds, the window does not apply."""

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
    """How to read a status endpoint that always returns 200: `pointer` (JSON pointer) leads to a status word.

    A word in `done` means finished, one in `running` still working, one in `unknown` that it never received the
    message. `result`: JSON pointer to the answer; None if the answer is the whole body.
    """

    pointer: str
    done: Collection[str]
    running: Collection[str]
    unknown: Collection[str] = ()
    result: str | None = None


@dataclass(frozen=True, slots=True)
class StatusStep:
    """A step of a chain of status GETs. It is finished once `until` is true. `unknown`: true if the receiver never
    received the message; None for its status 404. `answer`: of the last step; None for the whole body. `poll`: None for
    the receiver's."""

    url: Template
    until: Expression
    unknown: Expression | None = None
    answer: Tree = None
    poll: PollPolicy | None = None


OutcomeClass = Literal["accepted", "answered", "delivered", "not_now", "ambiguous", "not_processed", "rejected", "gone"]
"""What a response to a POST means (`relay/domain/outcome.py`)."""
CodeClasses = Mapping[int, OutcomeClass]
"""Status codes that a receiver assigns to another class than the default table."""
_SHOWN: Final = 200
"""Characters of a condition."""


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """Responses for which `when` is true mean `is_`."""

    when: Expression
    is_: OutcomeClass

    def __str__(self) -> str:
        """Its place and its condition, in one line."""
        return f"{self.when.place.removesuffix('.when')}: {' '.join(self.when.text.split())[:_SHOWN]}"


@dataclass(frozen=True, slots=True)
class FormerSecret:
    """A replaced secret, which also signs until `until` (Unix seconds)."""

    secret: str = field(repr=False)
    until: float


@dataclass(frozen=True, slots=True)
class SigningPolicy:
    """How POSTs are signed: in each of `styles` (several while a receiver migrates). `secrets`: newest first; during
    rotation each of them signs. `digest`: of the HMAC. `private_keys`: Ed25519 keys (`whsk_`), each of which also signs
    in the styles `standard` and `http-message`. `former`: replaced secrets of either kind; only beside current ones."""

    styles: tuple[SignatureStyle, ...] = ("standard",)
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    digest: SignatureDigest = "sha256"
    private_keys: tuple[str, ...] = field(default=(), repr=False, compare=False)
    former: tuple[FormerSecret, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Encryption:
    """With which public keys payloads are encrypted: `keys` (JWKs as JSON text, the first one is used), or those of the
    JWK Set at `url`. Neither: they cannot be read here, and no payload may leave."""

    keys: tuple[str, ...] = ()
    url: str | None = None


BatchFormat = Literal["cloudevents", "list"]


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Several messages in one POST: at most `max_events`, and about `max_bytes` of body. `linger`: seconds for which
    one that is not full waits for more."""

    max_events: int = 100
    max_bytes: int = 1_048_576
    linger: float = 0.2
    format: BatchFormat = "cloudevents"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Settings for POSTs to a receiver's endpoint, or to a source's callback.

    `rate_limit`: POST starts in any sliding `window_size` seconds; None if unlimited. `timeout`: seconds in total.
    `secrets`: all its secrets, to be masked wherever its responses are shown. `egress`: its own connection settings;
    None for the defaults. `request`: None for the record's own bytes. `allow_origins`: origins besides that of `url` to
    which URLs with expressions may lead.
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
    codes: CodeClasses = field(default_factory=dict)
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    egress: Egress | None = None
    request: RequestForm | None = None
    allow_origins: tuple[str, ...] = ()
    cloudevents: bool = False
    """Results are sent as CloudEvents; only of a callback."""

    @property
    def settle_s(self) -> float:
        """How long after its start a POST may still arrive. Only then is a 404 of the status endpoint conclusive."""
        return self.timeout + 10.0

    def pinged(self, every: float) -> "Endpoint":
        """The same endpoint, pinged at least every `every` seconds while it is offline."""
        offline = self.breaker.offline
        if offline.ping_every <= every:
            return self
        return replace(self, breaker=replace(self.breaker, offline=replace(offline, ping_every=every)))


@dataclass(frozen=True, slots=True)
class Coalescing:
    """Of the messages with the same value at `key` (as in `ordering`) within `window` seconds only the newest is
    sent."""

    key: str
    window: float


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver and its settings in effect.

    `enabled`: if False, it has no subscriptions and gets no requests; messages that name it wait, as in a pause, and
    can expire. `answer`: whether an answer must follow a 202; only used without a `status_endpoint`. `forward_headers`:
    the forwarded headers it gets, in lower case; exact, or with a trailing `*`. `owner`: opaque id of its owner;
    requests depend neither on it nor on `labels`. `verified`: if False, its URL has not passed `verification` yet, and
    its messages wait, as in a pause. `unusable`: why this process cannot send to it, for example a missing secret; None
    if it can. Messages are still routed to an unusable receiver, and wait; its URLs and limits may be missing here, and
    its secrets are.
    """

    name: str
    post: Endpoint
    status_endpoint: str | None = None
    status_map: StatusMap | None = None
    status_steps: tuple[StatusStep, ...] = ()
    """The chain of status GETs, in place of `status_endpoint` and `status_map`."""
    outcomes: tuple[OutcomeRule, ...] = ()
    """The first rule that is true decides; then `codes` of the endpoint, then the table."""
    poll: PollPolicy = PollPolicy()
    answer: AnswerRule = "optional"
    answer_deadline: float = 3600.0
    on_ambiguous: AmbiguityRule = "resend"
    ordering: str = "source"
    """`source`, `receiver`, `none`, a JSON pointer, or `header:NAME` (`relay/domain/filters.py`)."""
    patience: float | None = None
    """Seconds after which a failing message no longer blocks others of its order key; None if it blocks until it
    ends."""
    coalesce: Coalescing | None = None
    lane: LaneKind = "dedicated"
    partitions: int = 1
    sources: tuple[str, ...] = ()
    senders: tuple[str, ...] | None = None
    """Sources whose messages may name it, in the form of `sources`. None for any; but for those in `sources` if it has
    an owner and subscribes to any."""
    event_types: tuple[str, ...] = ()
    filter: Filter | None = None
    """Selects among the messages it subscribes to; None for all."""
    enabled: bool = True
    forward_headers: tuple[str, ...] = ()
    payload: PayloadForm = "full"
    encrypt: Encryption | None = None
    respond_async: float | None = None
    """Whole seconds after which it is asked to respond with a 202; None: it is not asked."""
    batch: BatchPolicy | None = None
    """None: a POST for each message."""
    rate_limit_unit: RateLimitUnit = "posts"
    """What `rate_limit` of the endpoint counts."""
    owner: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    verification: Verification = "none"
    verified: bool = True
    unusable: str | None = None
    move: int = 0
    """The number of lane moves so far; `lane` is the target of the last one."""
    moving: bool = False
    """The former lane has to finish first; until then the new one only collects (see `relay/domain/route.py`)."""
    life: Life = NO_LIFE
    is_origin: bool = False
    """Whether it is the receiver for an origin to which messages bring their own endpoints
    (`relay/domain/recipients.py`)."""


Redelivery = Literal["failed", "always", "never"]
InboundKind = Literal["github", "gitlab", "stripe", "slack", "standard", "cloudevents", "generic"]
InboundDigest = Literal["sha1", "sha256", "sha512"]
InboundEncoding = Literal["hex", "base64"]


@dataclass(frozen=True, slots=True)
class Inbound:
    """How a third-party source's webhooks are received and authenticated.

    `secrets`: any of them is accepted (several during rotation). `receivers`: None for all subscribers. `tolerance_s`:
    maximum distance of a signed time from now. `redelivery`: what to resend when a message id arrives again: failed
    deliveries, all ended ones, or none. The other fields are for `generic`, and for `cloudevents` with a `header`: the
    header with the HMAC of the body (after `prefix`, such as `sha256=`), and those with the message id and the type.
    `type_header` is also for `standard`.
    """

    kind: InboundKind
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    receivers: tuple[str, ...] | None = None
    tolerance_s: float = 300.0
    header: str | None = None
    digest: InboundDigest = "sha256"
    encoding: InboundEncoding = "hex"
    prefix: str = ""
    id_header: str | None = None
    type_header: str | None = None
    redelivery: Redelivery = "failed"


@dataclass(frozen=True, slots=True)
class Source:
    """A source, and how results are returned to it. `callback`: None if it queries the API or reads `to_sender` itself.
    `inbound`: None if it sends messages only in the relay's own form. `quota`: for messages over HTTP; None for the
    default. `unusable`: as for a receiver; `callback` then only says whether there is one. `keep`: expressions over
    each message by name, worked out when it is routed, for the callback; None if they cannot be read in this process.
    `progress`: intermediate results that are reported to the callback before the final one. `event_schemas`: what
    happens to a message over HTTP that is not valid by its event type's schemas."""

    source_id: str
    callback: Endpoint | None = None
    kafka: bool = False
    answers: WantedAnswers = "all"
    failures: bool = True
    inbound: Inbound | None = None
    quota: Quota | Literal["none"] | None = None
    unusable: str | None = None
    keep: Mapping[str, Expression] | None = field(default_factory=dict)
    progress: frozenset[Progress] = frozenset()
    event_schemas: EventSchemas = "off"
