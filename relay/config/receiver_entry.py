"""Entry of receivers.yaml for a receiver. The values here are the defaults."""

import re
from math import inf
from typing import Annotated, Any, ClassVar
from urllib.parse import urljoin

from pydantic import AfterValidator, Discriminator, Field, StrictInt, Tag

from relay.config.batch_entry import BatchEntry, check_batch, check_rate_limit_unit
from relay.config.encryption import texts_in
from relay.config.endpoint_entry import EndpointEntry, check_https, check_signature_headers, secrets_in
from relay.config.entry_types import (
    Count,
    Entry,
    FieldData,
    Labels,
    OwnerId,
    PollEntry,
    PositiveDuration,
    Text,
    Url,
    check_url,
    checked,
    field_check,
    unless_reference,
)
from relay.config.expression_entry import (
    MOST_RULES,
    MOST_STEPS,
    Origins,
    OutcomeEntry,
    RequestEntry,
    StatusStepEntry,
    check_request,
    check_steps,
)
from relay.config.filter_entry import BoundedFilter, CoalesceEntry, FilterEntry, OrderingValue, order_by
from relay.config.presets import FromPreset
from relay.config.references import has_reference
from relay.domain.headers import check_pattern
from relay.domain.jwe import check_key, key_text
from relay.domain.receiver import (
    AmbiguityRule,
    AnswerRule,
    Encryption,
    LaneKind,
    PayloadForm,
    RateLimitUnit,
    Verification,
)
from relay.domain.signing import is_private_key
from relay.domain.status import check_template
from relay.domain.template import OPENING
from relay.domain.urls import same_origin


def check_provable(
    kind: Verification,
    secrets: tuple[str, ...] | None,
    post_endpoint: str | None,
    status_endpoint: str | None,
    allow_origins: tuple[str, ...] = (),
) -> None:
    """Raises ValueError if such a handshake is not possible, or would not prove every URL that is used later. A value
    is None if the field is absent or invalid."""
    if kind == "none":
        return
    if kind == "hmac" and secrets is not None and all(map(is_private_key, secrets)):
        raise ValueError("'hmac' needs a secret that both sides have, so not a private key (whsk_)")
    if allow_origins:
        raise ValueError(f"{kind!r} only proves the origin of post_endpoint: leave allow_origins out")
    urls = (post_endpoint, status_endpoint)
    if None in urls or any(map(has_reference, filter(None, urls))):
        return
    if not same_origin(status_endpoint or "", post_endpoint or ""):
        raise ValueError(
            f"{kind!r} only proves the origin of post_endpoint: status_endpoint has to have the same, or be left out"
        )


def _check_origin(place: str, url: str, data: FieldData) -> None:
    """Raises ValueError if the fixed part of `url` leads to an origin that is not the receiver's."""
    own, others = data.get("post_endpoint"), data.get("allow_origins")
    if own is None or others is None or url.startswith(OPENING) or any(map(has_reference, (url, own, *others))):
        return
    if not any(same_origin(urljoin(own, url), each) for each in (own, *others)):
        raise ValueError(f"{place}: its origin is neither that of post_endpoint nor in allow_origins")


def _check_template(value: str) -> None:
    check_template(value)
    check_url(re.sub(r"\{[^{}]*\}", "x", value))


def _check_pointer(value: str) -> None:
    if value and not value.startswith("/"):
        raise ValueError(f"{value!r} is not a JSON pointer; it begins with /")


def _check_pattern(value: str) -> None:
    if not value or "*" in value[:-1]:
        raise ValueError(f"{value!r} is not a pattern; write the exact text, or a prefix followed by *")


def _check_whole(seconds: float) -> None:
    if seconds % 1:
        raise ValueError(f"{seconds:g} s is not a whole number of seconds, which the header has")


WholeSeconds = Annotated[PositiveDuration, checked(_check_whole)]
StatusTemplate = Annotated[Text, unless_reference(_check_template)]
Pointer = Annotated[str, checked(_check_pointer)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Patterns = Annotated[tuple[Annotated[Text, checked(_check_pattern)], ...], Field(strict=False)]
ForwardHeaders = Annotated[
    tuple[Annotated[str, AfterValidator(check_pattern)], ...], Field(strict=False, max_length=32)
]
Partitions = Annotated[Count, Field(le=1_000)]
Code = Annotated[StrictInt, Field(ge=200, le=599)]
Codes = Annotated[tuple[Code, ...], Field(strict=False)]


class StatusEntry(Entry):
    """How to read a status endpoint that always returns 200."""

    pointer: Pointer
    """JSON pointer to the state in the response."""
    done: Annotated[Texts, Field(min_length=1)]
    """States in which the answer is available."""
    running: Texts = ()
    """States in which the relay polls again later."""
    unknown: Texts = ()
    """States of a message that the receiver never received, like a 404."""
    result: Pointer | None = None
    """JSON pointer to the answer; default: the whole body."""

    @field_check("running", "unknown")
    def _in_one_list(cls, states: tuple[str, ...], data: FieldData) -> None:
        for other in ("done", "running"):
            both = sorted(set(states) & set(data.get(other, ())))
            if both:
                raise ValueError(f"{both[0]!r} is listed under {other} as well")


class CodesEntry(Entry):
    """Status codes that this receiver assigns to another class."""

    accepted: Codes = ()
    """Codes that mean that the answer follows later."""
    answered: Codes = ()
    """Codes of responses that are the answer, even if they are empty."""
    delivered: Codes = ()
    """Codes that mean that the receiver has the message."""
    not_now: Codes = ()
    """Codes that pause all requests to the receiver for a while; a 429 does not count as an attempt."""
    ambiguous: Codes = ()
    """Codes after which the receiver may have the message: the relay polls or resends, as `on_ambiguous` says."""
    not_processed: Codes = ()
    """Codes that mean that the receiver does not have the message: the relay retries."""
    rejected: Codes = ()
    """Codes that mean that the receiver will never accept the message: it is a dead letter at once."""
    gone: Codes = ()
    """Codes that mean that the receiver no longer exists: it is paused, and the message is a dead letter."""

    @field_check("answered", "delivered", "not_now", "ambiguous", "not_processed", "rejected", "gone")
    def _in_one_class(cls, codes: tuple[int, ...], data: FieldData) -> None:
        for other, taken in data.items():
            both = sorted(set(codes) & set(taken))
            if both:
                raise ValueError(f"{both[0]} is listed under {other} as well")


def _may_accept(rules: tuple[OutcomeEntry, ...], codes: CodesEntry) -> bool:
    """Whether some response can mean that the answer follows."""
    others = {code for name in type(codes).model_fields if name != "accepted" for code in getattr(codes, name)}
    left = {202, *codes.accepted} - others
    for rule in rules:
        if rule.is_ == "accepted":
            return True
        left = {status for status in left if not rule.holds_for(status)}
    return bool(left)


def _check_jwk(jwk: dict[str, Any]) -> None:
    if not any(has_reference(text) for _, text in texts_in(jwk)):
        check_key(jwk)


Jwk = Annotated[dict[str, Any], checked(_check_jwk)]


class EncryptEntry(Entry):
    """Public keys of the receiver, with which payloads are encrypted."""

    jwk: (
        Annotated[
            Annotated[Jwk, Tag("(mapping)")]
            | Annotated[tuple[Jwk, ...], Field(strict=False, min_length=1, max_length=16), Tag("(list)")],
            Discriminator(lambda value: "(list)" if isinstance(value, list | tuple) else "(mapping)"),
        ]
        | None
    ) = None
    """Public key (JWK); a list during rotation, of which the first is used."""
    jwks_url: Annotated[Url | None, Field(validate_default=True)] = None
    """URL of a JWK Set, of which the first usable key is used."""

    @field_check("jwks_url")
    def _one_of_both(cls, url: str | None, data: FieldData) -> None:
        if "jwk" in data and (url is None) == (data["jwk"] is None):
            raise ValueError("give either jwk or jwks_url")

    def settings(self) -> Encryption:
        """What the entry says; it has no references."""
        keys = (self.jwk,) if isinstance(self.jwk, dict) else self.jwk or ()
        return Encryption(tuple(map(key_text, keys)), self.jwks_url)


class ReceiverEntry(FromPreset, EndpointEntry):
    """A receiver as declared in the file."""

    PRESETS: ClassVar = "receiver"

    post_endpoint: Url
    """URL to which messages are POSTed."""
    status_endpoint: StatusTemplate | None = None
    """URL that the relay polls by GET for the state of a message. `{message_id}`, `{source_id}`, `{webhook_id}` and
    `{response.FIELD}` of the POST's JSON response are filled in."""
    status: StatusEntry | None = None
    """How to read a status endpoint that returns 200 in every state."""
    allow_origins: Origins = ()
    """Origins besides that of `post_endpoint` to which a URL with expressions may lead. Credentials go only to that of
    `post_endpoint`."""
    request: Annotated[RequestEntry | None, checked(check_request)] = None
    """Request in the receiver's own form; default: a POST of the message's own bytes."""
    outcomes: Annotated[tuple[OutcomeEntry, ...], Field(strict=False, max_length=MOST_RULES)] = ()
    """Rules about responses. The first whose `when` is true decides; then `codes`, then the usual table."""
    status_steps: Annotated[
        tuple[StatusStepEntry, ...], Field(strict=False, max_length=MOST_STEPS), checked(check_steps)
    ] = ()
    """Steps in which the receiver is asked for the answer, in place of `status_endpoint` and `status`."""
    poll: PollEntry = PollEntry()
    """When the status endpoint is polled."""
    answer: AnswerRule = "optional"
    """Whether a missing answer after a 202 is a failure, for receivers without a `status_endpoint`."""
    answer_deadline: PositiveDuration = 3600.0
    """Maximum time from a 202 to the answer."""
    on_ambiguous: AmbiguityRule = "resend"
    """How to handle an attempt with an unknown outcome if the status endpoint cannot resolve it: send it again, or make
    it a dead letter (at most once)."""
    ordering: OrderingValue = "source"
    """Which messages are kept in order: those of a source, all of the receiver (one at a time), or none; as a mapping
    also those of a source with the same value in payload or header."""
    coalesce: CoalesceEntry | None = None
    """Of the messages with one `key` that arrive within a `window` only the newest is sent."""
    lane: LaneKind = "dedicated"
    """Whether it has topics of its own or shares them with others. A change is complete once the old lane is done."""
    partitions: Partitions = 1
    """Number of partitions of its own topics, which can grow but not shrink; at most 1,000."""
    codes: Annotated[CodesEntry, Field(validate_default=True)] = CodesEntry()
    """Status codes with another meaning for this receiver."""
    senders: Patterns | None = None
    """Sources whose messages may name the receiver: exact, or a prefix with `*`; for others it does not exist. Default:
    all, but for a receiver with an owner and a subscription only the sources that it subscribes to."""
    sources: Patterns = ()
    """Sources to which it subscribes: exact, or a prefix with `*`; together with `event_types`."""
    event_types: Annotated[Patterns, Field(validate_default=True)] = ()
    """Event types to which it subscribes: exact, or a prefix with `*`; together with `sources`."""
    filter: Annotated[BoundedFilter | None, Field(validate_default=False)] = None
    """Filter that the messages of its subscription have to match."""
    forward_headers: ForwardHeaders = ()
    """Headers of the message that are forwarded to it: exact, or a prefix with `*`."""
    payload: PayloadForm = "full"
    """`thin`: JSON with the message's ids, type and time, and a URL at which the payload can be read for a while, in
    place of the payload. `metadata`: the same without the URL."""
    encrypt: EncryptEntry | None = None
    """Encrypts the payload for the receiver (JWE); default: it is sent as it is."""
    respond_async: WholeSeconds | None = None
    """Time after which it is asked, by `Prefer: respond-async, wait=N`, to respond with a 202 and to answer later;
    default: it is not asked."""
    batch: Annotated[BatchEntry | None, AfterValidator(check_batch)] = None
    """Sends several messages in one POST; default: one in each."""
    rate_limit_unit: Annotated[RateLimitUnit, AfterValidator(check_rate_limit_unit)] = "posts"
    """What `rate_limit` counts: POSTs, or the messages in them."""
    verification: Verification = "none"
    """Handshake that its URL has to pass before anything is sent there."""
    enabled: bool = True
    """`false` ends its subscriptions, and messages that name it wait."""
    owner: OwnerId | None = None
    """Opaque id of its owner, to which the permissions of API keys can be limited."""
    labels: Labels = Field(default_factory=dict)
    """Labels of your choice, by which receivers can be found."""

    @field_check("post_endpoint")
    def _has_tls(cls, url: str, data: FieldData) -> None:
        check_https(url, data.get("tls"))

    @field_check("status")
    def _needs_endpoint(cls, status: StatusEntry | None, data: FieldData) -> None:
        if status is not None and data.get("status_endpoint", "") is None:
            raise ValueError("needs a status_endpoint to poll")

    @field_check("status_steps")
    def _in_place_of_endpoint(cls, steps: tuple[StatusStepEntry, ...], data: FieldData) -> None:
        if steps and data.get("status_endpoint") is not None:
            raise ValueError("takes the place of status_endpoint and status; leave one of the two forms out")
        for at, step in enumerate(steps):
            _check_origin(f"[{at}].url", step.url, data)

    @field_check("request")
    def _leads_to_its_origins(cls, request: RequestEntry | None, data: FieldData) -> None:
        if request is not None and request.url is not None:
            _check_origin("url", request.url, data)
        if request is not None:
            check_signature_headers(request.headers, data)

    @field_check("codes")
    def _leave_an_answer(cls, codes: CodesEntry, data: FieldData) -> None:
        if data.get("answer") == "required" and not _may_accept(data.get("outcomes", ()), codes):
            raise ValueError("contradicts 'answer: required': no response would mean that an answer follows")

    @field_check("partitions")
    def _one_if_shared_or_in_line(cls, partitions: int, data: FieldData) -> None:
        if partitions != 1 and data.get("lane") == "shared":
            raise ValueError("the shared lane has its own partitions; leave this out, or use 'lane: dedicated'")
        if partitions != 1 and order_by(data.get("ordering", "source")) == "receiver":
            raise ValueError("'ordering: receiver' sends one message at a time and needs exactly one partition")

    @field_check("forward_headers")
    def _not_its_own(cls, patterns: tuple[str, ...], data: FieldData) -> None:
        own = {name.lower() for name in data.get("headers", ())}
        if both := sorted(own.intersection(patterns)):
            raise ValueError(f"{both[0]!r} contradicts headers, which set it; leave one of the two out")

    @field_check("payload")
    def _without_a_form(cls, payload: PayloadForm, data: FieldData) -> None:
        if payload != "full" and data.get("request") is not None:
            raise ValueError(f"{payload!r} contradicts request, whose expressions may send the payload; leave one out")

    @field_check("encrypt")
    def _of_the_payload(cls, encrypt: EncryptEntry | None, data: FieldData) -> None:
        if encrypt is not None and data.get("request") is not None:
            raise ValueError("contradicts request, whose expressions may send parts of the payload; leave one out")
        if encrypt is not None and data.get("payload", "full") != "full":
            raise ValueError(f"contradicts payload: {data['payload']!r} sends none of it; leave one out")

    @field_check("respond_async")
    def _before_the_timeout(cls, wait: float | None, data: FieldData) -> None:
        timeout = data.get("timeout", inf)
        if wait is not None and wait >= timeout:
            raise ValueError(f"{wait:g} s is not less than timeout, {timeout:g} s, which ends the request")
        if wait is not None and any(name.lower() == "prefer" for name in data.get("headers", ())):
            raise ValueError("contradicts headers, which set 'prefer'; leave one of the two out")

    @field_check("verification")
    def _can_be_proved(cls, kind: Verification, data: FieldData) -> None:
        origins = data.get("allow_origins", ())
        check_provable(kind, secrets_in(data), data.get("post_endpoint"), data.get("status_endpoint"), origins)

    @field_check("filter")
    def _of_a_subscription(cls, filter_: FilterEntry | None, data: FieldData) -> None:
        if filter_ is not None and not data.get("sources", True):
            raise ValueError("applies to a subscription, and there is none: give sources and event_types")

    @field_check("event_types")
    def _with_sources(cls, event_types: tuple[str, ...], data: FieldData) -> None:
        if "sources" in data and bool(event_types) != bool(data["sources"]):
            raise ValueError("sources and event_types subscribe together; give both or neither ('*' stands for all)")
