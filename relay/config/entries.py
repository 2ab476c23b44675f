"""What may be written in receivers.yaml for a receiver and for a source. The values here are the defaults."""

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StrictInt,
    Tag,
    ValidationInfo,
    field_validator,
)

from relay.config.durations import PositiveDuration
from relay.config.egress_entry import EgressEntry
from relay.config.entry import Entry, Labels, OwnerId, ReceiverName, Text
from relay.config.filter_entry import BoundedFilter, FilterEntry
from relay.config.inbound_entry import InboundEntry
from relay.config.ordering_entry import OrderingValue, order_by
from relay.config.pace_entry import BreakerEntry, Count, OfflineEntry, PollEntry, RetryEntry
from relay.config.quota_text import QuotaText
from relay.config.references import has_reference
from relay.config.signature_entry import FormerSecrets, Secrets, Signature, check_agreement, has_only_private_keys
from relay.config.tls_entry import check_https
from relay.config.url_text import Url, check_url
from relay.config.verification_entry import check_provable
from relay.domain.ed25519 import is_private_key
from relay.domain.errors import InvalidRecord
from relay.domain.forwarding import check_pattern
from relay.domain.headers import MOST_HEADER, check_header_name, check_header_value
from relay.domain.identity import OWN_SOURCE, check_id
from relay.domain.receiver import RetryPolicy, SignatureStyle, Verification
from relay.domain.status import check_template


def _template(value: str) -> str:
    if not has_reference(value):
        check_template(value)
        check_url(re.sub(r"\{[^{}]*\}", "x", value))
    return value


def _pointer(value: str) -> str:
    if value and not value.startswith("/"):
        raise ValueError(f"{value!r} is not a JSON pointer; it begins with /")
    return value


def _pattern(value: str) -> str:
    if not value or "*" in value[:-1]:
        raise ValueError(f"{value!r} is not a pattern; write the exact text, or its beginning and a * at the end")
    return value


def _source_id(value: str) -> str:
    if value == OWN_SOURCE:
        raise ValueError(f"{OWN_SOURCE!r} is the source of the relay's own events; no other can have this id")
    try:
        return check_id(value, "source_id")
    except InvalidRecord as error:
        raise ValueError(error.detail) from error


def _header_value(value: str) -> str:
    if len(value) > MOST_HEADER:
        raise ValueError(f"a header's value has at most {MOST_HEADER} characters; this one has {len(value)}")
    return check_header_value(value)


def _kafka(word: str) -> str:
    if word != "kafka":
        raise ValueError(f"{word!r} is not allowed; write a mapping with a url, or the word kafka")
    return word


def _empty_if_none(value: object) -> object:
    return {} if value is None else value  # `receivers:` with nothing but comments below it


StatusTemplate = Annotated[Text, AfterValidator(_template)]
HeaderValue = Annotated[Text, AfterValidator(_header_value)]
HeaderName = Annotated[str, AfterValidator(check_header_name)]
Pointer = Annotated[str, AfterValidator(_pointer)]
SourceId = Annotated[str, AfterValidator(_source_id)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Patterns = Annotated[tuple[Annotated[Text, AfterValidator(_pattern)], ...], Field(strict=False)]
ForwardHeaders = Annotated[
    tuple[Annotated[str, AfterValidator(check_pattern)], ...], Field(strict=False, max_length=32)
]
Code = Annotated[StrictInt, Field(ge=200, le=599)]
Codes = Annotated[tuple[Code, ...], Field(strict=False)]


class StatusEntry(Entry):
    """How to read a status API that always says 200."""

    pointer: Pointer
    """JSON pointer to the state in the response."""
    done: Annotated[Texts, Field(min_length=1)]
    """States that mean: the answer is there."""
    running: Texts = ()
    """States that mean: ask again later."""
    unknown: Texts = ()
    """States that mean: this message was never seen, as a 404 does."""
    result: Pointer | None = None
    """JSON pointer to the answer; default: the whole body."""

    @field_validator("running", "unknown")
    @classmethod
    def _in_one_list(cls, states: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for other in ("done", "running"):
            both = sorted(set(states) & set(info.data.get(other, ()) if other != info.field_name else ()))
            if both:
                raise ValueError(f"{both[0]!r} is listed under {other} as well")
        return states


class CodesEntry(Entry):
    """Status codes that this receiver moves to another class."""

    delivered: Codes = ()
    """The receiver has it."""
    not_now: Codes = ()
    """Not now: wait, for the whole receiver; a 429 is not counted as an attempt."""
    ambiguous: Codes = ()
    """It may have it: ask or send again, as `on_ambiguous` says."""
    not_processed: Codes = ()
    """It does not have it: try again."""
    rejected: Codes = ()
    """It will never take it: a dead letter at once."""
    gone: Codes = ()
    """It is gone for good: the receiver is paused, the message is a dead letter."""

    @field_validator("not_now", "ambiguous", "not_processed", "rejected", "gone")
    @classmethod
    def _in_one_class(cls, codes: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        for other, taken in info.data.items():
            both = sorted(set(codes) & set(taken))
            if both:
                raise ValueError(f"{both[0]} is listed under {other} as well")
        return codes


class EndpointEntry(EgressEntry):
    """What it takes to POST somewhere: a receiver's endpoint, or a source's callback."""

    secret: Secrets = ()
    """Signs what is sent; several while rotating, the newest first. `whsec_...` or any text; `whsk_...`: an Ed25519
    key."""
    former_secrets: FormerSecrets = ()
    """Replaced secrets that sign along until a time."""
    signature: Signature = "standard"
    """Form of the signature, or several at once."""
    signature_digest: Literal["sha256", "sha512"] = "sha256"
    """Hash of the HMAC of `standard`."""
    bearer_token: HeaderValue | None = None
    """Sent as `Authorization: Bearer ...`."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Further headers that are sent, the same with each request."""
    rate_limit: Count | None = None
    """POSTs that may start within `window_size`; default: no limit."""
    window_size: PositiveDuration = 1.0
    """The window of `rate_limit`; it slides."""
    max_in_flight: Count = 32
    """POSTs that may be under way at a time."""
    retry: RetryEntry | None = None
    """When failed attempts are repeated, and when they end."""
    retry_after: PositiveDuration | None = None
    """Short form of `retry`: exactly this wait each time, without jitter."""
    timeout: PositiveDuration = 15.0
    """How long a response may take."""
    breaker: BreakerEntry = BreakerEntry()
    """When a failing endpoint is left alone for a moment."""
    offline: OfflineEntry = OfflineEntry()
    """What is done about an endpoint that is down for long."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Newest first."""
        return (self.secret,) if isinstance(self.secret, str) else self.secret

    @property
    def hmac_secrets(self) -> tuple[str, ...]:
        return tuple(secret for secret in self.secrets if not is_private_key(secret))

    @property
    def private_keys(self) -> tuple[str, ...]:
        return tuple(secret for secret in self.secrets if is_private_key(secret))

    @property
    def signature_styles(self) -> tuple[SignatureStyle, ...]:
        """Those that sign, each with a header of its own."""
        if isinstance(self.signature, tuple):
            return self.signature
        return () if self.signature == "none" else (self.signature,)

    def retry_policy(self) -> RetryPolicy:
        """That of `retry`, or of its short form."""
        if self.retry_after is not None:
            return RetryPolicy(base=self.retry_after, factor=1.0, cap=self.retry_after, jitter=False)
        return RetryPolicy(**self.retry.model_dump()) if self.retry else RetryPolicy()

    @field_validator("former_secrets")
    @classmethod
    def _beside_a_present_one(cls, former: FormerSecrets, info: ValidationInfo) -> FormerSecrets:
        if former and _secrets_in(info) == ():
            raise ValueError("former secrets sign along with a present one: give a secret, or leave these out")
        return former

    @field_validator("signature")
    @classmethod
    def _agrees_with_secret(cls, signature: str | tuple[str, ...], info: ValidationInfo) -> str | tuple[str, ...]:
        secrets = _secrets_in(info)
        if secrets is not None:
            check_agreement((signature,) if isinstance(signature, str) else signature, secrets)
        return signature

    @field_validator("signature_digest")
    @classmethod
    def _of_a_signature(cls, digest: str, info: ValidationInfo) -> str:
        secrets = _secrets_in(info)
        if info.data.get("signature") == "none" or secrets == ():
            raise ValueError("there is no signature: it needs a secret, and a style other than 'none'")
        if has_only_private_keys(secrets or ()):
            raise ValueError("is of an HMAC, and the only secrets are private keys (whsk_), which sign without one")
        return digest

    @field_validator("bearer_token")
    @classmethod
    def _only_credential(cls, token: str | None, info: ValidationInfo) -> str | None:
        if token is not None and info.data.get("oauth2") is not None:
            raise ValueError("contradicts oauth2, which sets the same header; leave one of the two out")
        return token

    @field_validator("headers")
    @classmethod
    def _named_once(cls, headers: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        names = [name.lower() for name in headers]
        if len(set(names)) < len(names):
            raise ValueError("a header is given twice; upper and lower case are the same")
        if "authorization" in names and info.data.get("bearer_token"):
            raise ValueError("'authorization' contradicts bearer_token; leave one of the two out")
        if "authorization" in names and info.data.get("oauth2") is not None:
            raise ValueError("'authorization' contradicts oauth2; leave one of the two out")
        return headers

    @field_validator("retry_after")
    @classmethod
    def _excludes_retry(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("retry") is not None:
            raise ValueError("short form of retry; leave one of the two out")
        return value


class CallbackEntry(EndpointEntry):
    """Where a source wants its results POSTed."""

    url: Url
    """Where results are POSTed."""

    @field_validator("url")
    @classmethod
    def _has_tls(cls, url: str, info: ValidationInfo) -> str:
        return check_https(url, info.data.get("tls"))


class ReceiverEntry(EndpointEntry):
    """A receiver as the file describes it."""

    post_endpoint: Url
    """Where messages are POSTed."""
    status_endpoint: StatusTemplate | None = None
    """Where the relay asks about a message, by GET. `{message_id}`, `{source_id}`, `{webhook_id}` and
    `{response.FIELD}` of the POST's JSON answer are filled in."""
    status: StatusEntry | None = None
    """How to read a status API that says 200 whatever the state is."""
    poll: PollEntry = PollEntry()
    """When the status endpoint is asked."""
    answer: Literal["optional", "required"] = "optional"
    """After a 202 without a `status_endpoint`: whether a missing answer is a failure."""
    answer_deadline: PositiveDuration = 3600.0
    """How long the answer may take after a 202."""
    on_ambiguous: Literal["resend", "dead_letter"] = "resend"
    """What becomes of an attempt whose outcome is unknown where the receiver cannot be asked: sent again, or a dead
    letter (at most once)."""
    ordering: OrderingValue = "source"
    """What is kept in order: messages of a source, all of the receiver (one at a time), or nothing; as a mapping also
    those of a source with the same value in payload or header."""
    lane: Literal["dedicated", "shared"] = "dedicated"
    """Topics of its own, or those that it shares with others. A change is a move, which ends when the old lane is
    finished."""
    partitions: Count = 1
    """Partitions of its own topics; may grow, not shrink."""
    codes: CodesEntry = CodesEntry()
    """Status codes that mean something else with this receiver."""
    senders: Patterns | None = None
    """Sources whose messages may name it: exact, or a beginning with `*`; to others its name is unknown. Default: all;
    of a receiver with an owner those that it subscribes to, if it does."""
    sources: Patterns = ()
    """Sources that it subscribes to: exact, or a beginning with `*`. Together with `event_types`."""
    event_types: Annotated[Patterns, Field(validate_default=True)] = ()
    """Event types that it subscribes to, likewise."""
    filter: Annotated[BoundedFilter | None, Field(validate_default=False)] = None
    """Of what it subscribes to, only what matches."""
    forward_headers: ForwardHeaders = ()
    """Headers of the message that are passed on: exact, or a beginning with `*`."""
    verification: Verification = "none"
    """What its URL has to prove before anything is sent there."""
    enabled: bool = True
    """`false`: it subscribes to nothing, and what names it waits."""
    owner: OwnerId | None = None
    """Opaque id of its owner, to whom limited keys are bound."""
    labels: Labels = Field(default_factory=dict)
    """Free labels, to find it by."""

    @field_validator("post_endpoint")
    @classmethod
    def _has_tls(cls, url: str, info: ValidationInfo) -> str:
        return check_https(url, info.data.get("tls"))

    @field_validator("status")
    @classmethod
    def _needs_endpoint(cls, status: StatusEntry | None, info: ValidationInfo) -> StatusEntry | None:
        if status is not None and info.data.get("status_endpoint", "") is None:
            raise ValueError("needs a status_endpoint to ask")
        return status

    @field_validator("partitions")
    @classmethod
    def _one_if_shared_or_in_line(cls, partitions: int, info: ValidationInfo) -> int:
        if partitions != 1 and info.data.get("lane") == "shared":
            raise ValueError("the shared lane has its own partitions; leave this out, or take 'lane: dedicated'")
        if partitions != 1 and order_by(info.data.get("ordering", "source")) == "receiver":
            raise ValueError("one at a time over the whole receiver (ordering: receiver) takes one partition")
        return partitions

    @field_validator("forward_headers")
    @classmethod
    def _not_its_own(cls, patterns: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        own = {name.lower() for name in info.data.get("headers", ())}
        if both := sorted(own.intersection(patterns)):
            raise ValueError(f"{both[0]!r} contradicts headers, which set it; leave one of the two out")
        return patterns

    @field_validator("verification")
    @classmethod
    def _can_be_proved(cls, kind: Verification, info: ValidationInfo) -> Verification:
        check_provable(kind, _secrets_in(info), info.data.get("post_endpoint"), info.data.get("status_endpoint"))
        return kind

    @field_validator("filter")
    @classmethod
    def _of_a_subscription(cls, filter_: FilterEntry | None, info: ValidationInfo) -> FilterEntry | None:
        if filter_ is not None and not info.data.get("sources", True):
            raise ValueError("narrows a subscription, and there is none: give sources and event_types")
        return filter_

    @field_validator("event_types")
    @classmethod
    def _with_sources(cls, event_types: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if "sources" in info.data and bool(event_types) != bool(info.data["sources"]):
            raise ValueError("sources and event_types subscribe together; give both or neither ('*' stands for all)")
        return event_types


class SourceEntry(Entry):
    """How results come back to a source, how its webhooks come in if they are not in our own form, and how many."""

    callback: (
        Annotated[
            Annotated[CallbackEntry, Tag("(endpoint)")]
            | Annotated[Literal["kafka"], BeforeValidator(_kafka), Tag("(word)")],
            Discriminator(lambda value: "(word)" if isinstance(value, str) else "(endpoint)"),
        ]
        | None
    ) = None
    """Where results are POSTed; `kafka`: they stay on the topic `to_sender` for a consumer of the sender's own;
    default: the sender asks the API."""
    answers: Literal["all", "non_empty", "none"] = "all"
    """Which answers are returned."""
    failures: bool = True
    """Whether failures are reported, as notices."""
    inbound: InboundEntry | None = None
    """Webhooks that are taken as their maker sends them."""
    quota: QuotaText | None = None
    """Messages over HTTP within a time, such as `6000/1m`; default RELAY_SOURCE_QUOTA."""


class ReceiversModel(Entry):
    """receivers.yaml as a whole."""

    sources: Annotated[
        dict[SourceId, Annotated[SourceEntry, BeforeValidator(_empty_if_none)]], BeforeValidator(_empty_if_none)
    ] = Field(default_factory=dict)
    """Senders by their source id; `*` stands for all others."""
    receivers: Annotated[dict[ReceiverName, ReceiverEntry], BeforeValidator(_empty_if_none)] = Field(
        default_factory=dict
    )
    """Receivers by name."""

    @field_validator("sources")
    @classmethod
    def _inbound_of_one(cls, sources: dict[str, SourceEntry]) -> dict[str, SourceEntry]:
        if "*" in sources and sources["*"].inbound is not None:
            raise ValueError("'*' cannot have inbound: its secret would speak for every source; name the source")
        return sources


def _secrets_in(info: ValidationInfo) -> tuple[str, ...] | None:
    """None where they are wrong themselves."""
    secret: str | tuple[str, ...] | None = info.data.get("secret")
    return (secret,) if isinstance(secret, str) else secret
