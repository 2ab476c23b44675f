"""Entries of receivers.yaml for a source: inbound webhooks, and how results are returned."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from relay.config.endpoint_entry import EndpointEntry, check_https, check_signature_headers
from relay.config.entry_types import (
    MAX_SECRET,
    MAX_SECRETS,
    TEXT_OR_LIST,
    Entry,
    FieldData,
    PositiveDuration,
    QuotaText,
    ReceiverName,
    SomeText,
    Text,
    check_url,
    checked,
    field_check,
)
from relay.config.expression_entry import Origins, RequestEntry, url_template
from relay.config.presets import FromPreset
from relay.config.references import has_reference
from relay.domain.expression import CALLBACK, ROUTING, check_expression
from relay.domain.expression_values import Path
from relay.domain.headers import check_header_value, check_token
from relay.domain.identity import Progress
from relay.domain.inbound import TIMED
from relay.domain.message import MAX_RECEIVERS
from relay.domain.receiver import EventSchemas, InboundDigest, InboundEncoding, InboundKind, Redelivery, WantedAnswers
from relay.domain.signing import check_verifier
from relay.domain.template import has_expression, template

_Secret = Annotated[SomeText, Field(max_length=MAX_SECRET)]
_Secrets = Annotated[
    Annotated[_Secret, Tag("(text)")]
    | Annotated[tuple[_Secret, ...], Field(strict=False, min_length=1, max_length=MAX_SECRETS), Tag("(list)")],
    TEXT_OR_LIST,
]
_Header = Annotated[str, AfterValidator(check_token)]
_Receivers = Annotated[tuple[ReceiverName, ...], Field(strict=False, min_length=1, max_length=MAX_RECEIVERS)]


class InboundEntry(Entry):
    """Third-party webhooks at `POST /v1/in/{source_id}`: their kind, and how they are authenticated."""

    kind: InboundKind
    """Provider or format of the webhooks, which decides how id, type and signature are read."""
    secret: _Secrets
    """Secret that authenticates the webhooks; a list during rotation, any of which is accepted."""
    receivers: _Receivers | None = None
    """Receivers of the webhooks; default: all subscribers."""
    tolerance: PositiveDuration = 300.0
    """Maximum distance of the signed time from now (`stripe`, `slack`, `standard`)."""
    header: Annotated[_Header | None, Field(validate_default=True)] = None
    """Header with the HMAC of the body (`generic`, and signed `cloudevents`)."""
    digest: InboundDigest = "sha256"
    """Hash of that HMAC."""
    encoding: InboundEncoding = "hex"
    """Encoding of that HMAC."""
    prefix: Annotated[str, AfterValidator(check_header_value)] = ""
    """Text before that HMAC in the header, such as `sha256=`."""
    id_header: _Header | None = None
    """Header with the message id (`generic`), by which duplicates are recognized; default: none."""
    type_header: _Header | None = None
    """Header with the event type (`generic`, `standard`); default: none, or for `standard` the `type` of the body."""
    redelivery: Redelivery = "failed"
    """Which messages are delivered again when their id arrives again: failed ones, all, or none."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets, any of which is accepted."""
        return (self.secret,) if isinstance(self.secret, str) else self.secret

    @field_check("secret")
    def _of_its_kind(cls, secret: str | tuple[str, ...], data: FieldData) -> None:
        if data.get("kind") == "standard":
            for one in (secret,) if isinstance(secret, str) else secret:
                if not has_reference(one):
                    check_verifier(one)

    @field_check("tolerance")
    def _of_a_signed_time(cls, tolerance: float, data: FieldData) -> None:
        if data.get("kind", "stripe") not in TIMED:
            raise ValueError(f"this kind signs no time; only {', '.join(sorted(TIMED))} do")

    @field_check("header")
    def _where_the_hmac_is(cls, header: str | None, data: FieldData) -> None:
        kind = data.get("kind", "cloudevents")
        if header is None and kind == "generic":
            raise ValueError("'generic' needs the name of the header with the HMAC")
        if header is not None and kind not in ("generic", "cloudevents"):
            raise ValueError(f"{kind!r} has a header of its own; leave this out")

    @field_check("digest", "encoding", "prefix")
    def _of_that_header(cls, value: str, data: FieldData) -> None:
        if data.get("header", "") is None:
            raise ValueError("applies to the HMAC in a header; give that header's name in the field header")

    @field_check("id_header")
    def _of_generic(cls, name: str | None, data: FieldData) -> None:
        if name is not None and data.get("kind", "generic") != "generic":
            raise ValueError(f"{data['kind']!r} defines where this is; leave it out")

    @field_check("type_header")
    def _where_the_type_is(cls, name: str | None, data: FieldData) -> None:
        if name is not None and data.get("kind", "generic") not in ("generic", "standard"):
            raise ValueError(f"{data['kind']!r} defines where this is; leave it out")


def _callback_url(value: str) -> str:
    return value if has_expression(value) or has_reference(value) else check_url(value)


CallbackUrl = Annotated[Text, AfterValidator(_callback_url)]
KeepName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


def _kafka(word: str) -> str:
    if word != "kafka":
        raise ValueError(f"{word!r} is not allowed; write a mapping with a url, or the word kafka")
    return word


class CallbackEntry(EndpointEntry):
    """Endpoint to which a source's results are POSTed."""

    allow_origins: Origins = ()
    """Origins to which a URL that begins with an expression may lead."""
    url: CallbackUrl
    """URL to which results are POSTed. It may have expressions over `message`, `delivery`, `answer` and `keep`; if it
    begins with one, the origins that it may lead to are in `allow_origins`."""
    request: RequestEntry | None = None
    """Request in the sender's own form; default: a POST of the answer's own bytes."""
    cloudevents: bool = False
    """Sends results as CloudEvents (binary mode), whose `correlationid` and `causationid` are the message's id."""
    progress: Annotated[tuple[Progress, ...], Field(strict=False)] = ()
    """Intermediate results that are reported before the final one: `accepted`, `running`."""

    @field_check("url")
    def _has_tls(cls, url: str, data: FieldData) -> None:
        if has_expression(url):
            url_template(url, CALLBACK, "url", leading=bool(data.get("allow_origins")))
        check_https(url, data.get("tls"))

    @field_check("request")
    def _is_valid(cls, request: RequestEntry | None, data: FieldData) -> None:
        if request is not None:
            request.compiled(CALLBACK)
            check_signature_headers(request.headers, data)

    def paths(self) -> list[Path]:
        """The variables that its expressions need."""
        url = list(template(self.url, CALLBACK).paths)
        return url if self.request is None else url + self.request.compiled(CALLBACK).paths


class SourceEntry(FromPreset):
    """How results are returned to a source, how its third-party webhooks are received, and its quota."""

    PRESETS: ClassVar = "source"

    keep: Annotated[
        dict[KeepName, Annotated[str, checked(lambda text: check_expression(text, ROUTING))]], Field(max_length=32)
    ] = Field(default_factory=dict)
    """Values of each message that the callback's expressions need, by name: expressions over `message` and `payload`,
    worked out when the message is routed; at most 4 KiB together."""

    callback: (
        Annotated[
            Annotated[CallbackEntry, Tag("(endpoint)")]
            | Annotated[Literal["kafka"], BeforeValidator(_kafka), Tag("(word)")],
            Discriminator(lambda value: "(word)" if isinstance(value, str) else "(endpoint)"),
        ]
        | None
    ) = None
    """Endpoint to which results are POSTed, or `kafka` if the sender reads them from the topic `to_sender`; default:
    the sender queries the API."""
    answers: WantedAnswers = "all"
    """Which answers are returned."""
    failures: bool = True
    """Whether failures are reported to the sender, as failure notices."""
    inbound: InboundEntry | None = None
    """How webhooks of a third-party provider are received."""
    event_schemas: EventSchemas = "off"
    """What happens to messages over HTTP with a payload that is not valid by the catalogue's schemas of their event
    type: not checked (`off`), accepted with a warning and counted (`count`), or refused with 422 (`refuse`)."""
    quota: QuotaText | None = None
    """Maximum number of messages over HTTP in a period, such as `6000/1m`; default: RELAY_SOURCE_QUOTA."""

    @field_check("callback")
    def _keeps_what_it_uses(cls, callback: CallbackEntry | Literal["kafka"] | None, data: FieldData) -> None:
        if isinstance(callback, CallbackEntry) and "keep" in data:
            for path in callback.paths():
                if path[0] == "keep" and len(path) > 1 and path[1] not in data["keep"]:
                    raise ValueError(f"uses keep.{path[1]}, which keep does not have")
