"""Entry of receivers.yaml for a receiver. The values here are the defaults."""

import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    StrictInt,
    ValidationInfo,
    field_validator,
)

from relay.config.durations import PositiveDuration
from relay.config.endpoint_entry import EndpointEntry, check_https, secrets_in
from relay.config.entry_types import (
    Count,
    Entry,
    Labels,
    OwnerId,
    PollEntry,
    Text,
    Url,
    check_url,
)
from relay.config.filter_entry import BoundedFilter, FilterEntry, OrderingValue, order_by
from relay.config.references import has_reference
from relay.domain.ed25519 import is_private_key
from relay.domain.forwarding import check_pattern
from relay.domain.receiver import Verification
from relay.domain.status import check_template, same_origin


def check_provable(
    kind: Verification, secrets: tuple[str, ...] | None, post_endpoint: str | None, status_endpoint: str | None
) -> None:
    """Raises ValueError where such a handshake could not be made, or would not prove all that is asked later. None:
    that field is not given, or wrong itself."""
    if kind == "none":
        return
    if kind == "hmac" and secrets is not None and all(map(is_private_key, secrets)):
        raise ValueError("'hmac' needs a secret that both sides have: one that is no private key (whsk_)")
    urls = (post_endpoint, status_endpoint)
    if None in urls or any(map(has_reference, filter(None, urls))):
        return
    if not same_origin(status_endpoint or "", post_endpoint or ""):
        raise ValueError(
            f"{kind!r} proves the host of post_endpoint alone: status_endpoint has to be there, too, or to be left out"
        )


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


StatusTemplate = Annotated[Text, AfterValidator(_template)]
Pointer = Annotated[str, AfterValidator(_pointer)]
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
        check_provable(kind, secrets_in(info), info.data.get("post_endpoint"), info.data.get("status_endpoint"))
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
