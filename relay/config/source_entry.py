"""Entries of receivers.yaml for a source: inbound webhooks, and how results are returned."""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)

from relay.config.durations import PositiveDuration
from relay.config.endpoint_entry import EndpointEntry, check_https
from relay.config.entry_types import (
    MAX_SECRET,
    MAX_SECRETS,
    TEXT_OR_LIST,
    Entry,
    ReceiverName,
    SomeText,
    Url,
)
from relay.config.quota_text import QuotaText
from relay.config.references import has_reference
from relay.domain.headers import check_header_value, check_token
from relay.domain.inbound import TIMED
from relay.domain.message import MAX_RECEIVERS
from relay.domain.signing import check_verifier

_Secret = Annotated[SomeText, Field(max_length=MAX_SECRET)]
_Secrets = Annotated[
    Annotated[_Secret, Tag("(text)")]
    | Annotated[tuple[_Secret, ...], Field(strict=False, min_length=1, max_length=MAX_SECRETS), Tag("(list)")],
    TEXT_OR_LIST,
]
_Header = Annotated[str, AfterValidator(check_token)]
_Receivers = Annotated[tuple[ReceiverName, ...], Field(strict=False, min_length=1, max_length=MAX_RECEIVERS)]


class InboundEntry(Entry):
    """Webhooks at `POST /v1/in/{source_id}`: who makes them, and how they prove it."""

    kind: Literal["github", "stripe", "slack", "standard", "cloudevents", "generic"]
    """Whose webhooks they are, which decides how id, type and signature are read."""
    secret: _Secrets
    """Proves them; of several each will do, while rotating."""
    receivers: _Receivers | None = None
    """Receivers that get them; default: those that subscribe."""
    tolerance: PositiveDuration = 300.0
    """How far the signed time may be from now (`stripe`, `slack`, `standard`)."""
    header: Annotated[_Header | None, Field(validate_default=True)] = None
    """Header with the HMAC over the body (`generic`; `cloudevents` that are signed)."""
    digest: Literal["sha1", "sha256", "sha512"] = "sha256"
    """Hash of that HMAC."""
    encoding: Literal["hex", "base64"] = "hex"
    """How that HMAC is written."""
    prefix: Annotated[str, AfterValidator(check_header_value)] = ""
    """Text before it, such as `sha256=`."""
    id_header: _Header | None = None
    """Header with the message id (`generic`), so that repeats are recognised; default: none."""
    type_header: _Header | None = None
    """Header with the event type (`generic`); default: none."""
    redelivery: Literal["failed", "always", "never"] = "failed"
    """Which messages are delivered again when their id comes again: those that failed, all, or none."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Each of them will do."""
        return (self.secret,) if isinstance(self.secret, str) else self.secret

    @field_validator("secret")
    @classmethod
    def _of_its_kind(cls, secret: str | tuple[str, ...], info: ValidationInfo) -> str | tuple[str, ...]:
        if info.data.get("kind") == "standard":
            for one in (secret,) if isinstance(secret, str) else secret:
                if not has_reference(one):
                    check_verifier(one)
        return secret

    @field_validator("tolerance")
    @classmethod
    def _of_a_signed_time(cls, tolerance: float, info: ValidationInfo) -> float:
        if info.data.get("kind", "stripe") not in TIMED:
            raise ValueError(f"this kind signs no time; only {', '.join(sorted(TIMED))} do")
        return tolerance

    @field_validator("header")
    @classmethod
    def _where_the_hmac_is(cls, header: str | None, info: ValidationInfo) -> str | None:
        kind = info.data.get("kind", "cloudevents")
        if header is None and kind == "generic":
            raise ValueError("'generic' needs the name of the header with the HMAC")
        if header is not None and kind not in ("generic", "cloudevents"):
            raise ValueError(f"{kind!r} has a header of its own; leave this out")
        return header

    @field_validator("digest", "encoding", "prefix")
    @classmethod
    def _of_that_header(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("header", "") is None:
            raise ValueError("is about the HMAC in a header of your own; give its name as header")
        return value

    @field_validator("id_header", "type_header")
    @classmethod
    def _of_generic(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and info.data.get("kind", "generic") != "generic":
            raise ValueError(f"{info.data['kind']!r} says itself where this is; leave it out")
        return name


def _kafka(word: str) -> str:
    if word != "kafka":
        raise ValueError(f"{word!r} is not allowed; write a mapping with a url, or the word kafka")
    return word


class CallbackEntry(EndpointEntry):
    """Where a source wants its results POSTed."""

    url: Url
    """Where results are POSTed."""

    @field_validator("url")
    @classmethod
    def _has_tls(cls, url: str, info: ValidationInfo) -> str:
        return check_https(url, info.data.get("tls"))


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
