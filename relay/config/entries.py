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
from relay.domain.headers import check_header_name, check_header_value
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


def _kafka(word: str) -> str:
    if word != "kafka":
        raise ValueError(f"{word!r} is not allowed; write a mapping with a url, or the word kafka")
    return word


def _empty_if_none(value: object) -> object:
    return {} if value is None else value  # `receivers:` with nothing but comments below it


StatusTemplate = Annotated[Text, AfterValidator(_template)]
HeaderValue = Annotated[Text, AfterValidator(check_header_value)]
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
    done: Annotated[Texts, Field(min_length=1)]
    running: Texts = ()
    result: Pointer | None = None

    @field_validator("running")
    @classmethod
    def _not_done_as_well(cls, running: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        both = sorted(set(running) & set(info.data.get("done", ())))
        if both:
            raise ValueError(f"{both[0]!r} is listed under done as well")
        return running


class CodesEntry(Entry):
    """Status codes that this receiver moves to another class."""

    delivered: Codes = ()
    not_now: Codes = ()
    ambiguous: Codes = ()
    not_processed: Codes = ()
    rejected: Codes = ()
    gone: Codes = ()

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
    former_secrets: FormerSecrets = ()
    signature: Signature = "standard"
    signature_digest: Literal["sha256", "sha512"] = "sha256"
    bearer_token: HeaderValue | None = None
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    rate_limit: Count | None = None
    window_size: PositiveDuration = 1.0
    max_in_flight: Count = 32
    retry: RetryEntry | None = None
    retry_after: PositiveDuration | None = None
    timeout: PositiveDuration = 15.0
    breaker: BreakerEntry = BreakerEntry()
    offline: OfflineEntry = OfflineEntry()

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

    @field_validator("url")
    @classmethod
    def _has_tls(cls, url: str, info: ValidationInfo) -> str:
        return check_https(url, info.data.get("tls"))


class ReceiverEntry(EndpointEntry):
    """A receiver as the file describes it."""

    post_endpoint: Url
    status_endpoint: StatusTemplate | None = None
    status: StatusEntry | None = None
    poll: PollEntry = PollEntry()
    answer: Literal["optional", "required"] = "optional"
    answer_deadline: PositiveDuration = 3600.0
    on_ambiguous: Literal["resend", "dead_letter"] = "resend"
    ordering: Literal["source", "receiver", "none"] = "source"
    lane: Literal["dedicated", "shared"] = "dedicated"
    partitions: Count = 1
    codes: CodesEntry = CodesEntry()
    sources: Patterns = ()
    event_types: Annotated[Patterns, Field(validate_default=True)] = ()
    filter: Annotated[BoundedFilter | None, Field(validate_default=False)] = None
    forward_headers: ForwardHeaders = ()
    verification: Verification = "none"
    enabled: bool = True
    owner: OwnerId | None = None
    labels: Labels = Field(default_factory=dict)

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
        if partitions != 1 and info.data.get("ordering") == "receiver":
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
    answers: Literal["all", "non_empty", "none"] = "all"
    failures: bool = True
    inbound: InboundEntry | None = None
    quota: QuotaText | None = None


class ReceiversModel(Entry):
    """receivers.yaml as a whole."""

    sources: Annotated[
        dict[SourceId, Annotated[SourceEntry, BeforeValidator(_empty_if_none)]], BeforeValidator(_empty_if_none)
    ] = Field(default_factory=dict)
    receivers: Annotated[dict[ReceiverName, ReceiverEntry], BeforeValidator(_empty_if_none)] = Field(
        default_factory=dict
    )

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
