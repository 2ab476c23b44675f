"""The message that an HTTP request describes: CloudEvents attributes as `ce-` headers, the payload as the body."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aiohttp import web

from relay.api.context import ApiContext
from relay.api.intake import IncomingMessage
from relay.api.parameter import Parameter
from relay.api.problems import ENDPOINT_NOT_ALLOWED, INVALID, NO_SECRETS_KEY, UNSUPPORTED, Problem, invalid, invalid_at
from relay.api.reading import attributes, percent_decoded, plain_header, query_of
from relay.api.waiters import WAIT
from relay.config.encryption import secret_place
from relay.config.entry_types import check_url
from relay.domain.errors import InvalidRecord
from relay.domain.headers import FORWARDED, Pairs, read_headers
from relay.domain.identity import MessageId, check_id, is_receiver_name
from relay.domain.message import MAX_RECEIVERS, Message, message_headers, parse_message
from relay.domain.one_off import OneOff
from relay.domain.recipients import receiver_name
from relay.domain.signing import check_secret, is_private_key
from relay.domain.timing import FIELDS, HEADERS, read_timing
from relay.domain.trace import fit_traceparent, fit_tracestate
from relay.domain.urls import same_origin

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_STRING: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')  # RFC 9651, section 3.3.3
LATER_WAIT: Final = "relay-wait"
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_CLOUDEVENTS: Final = "application/cloudevents"
"""Structured modes begin so: as the type of a payload it would have FromSender look for attributes in there."""

ENDPOINT: Final = "endpoint"
SECRET: Final = "signing_secret"  # noqa: S105 - its name
ENDPOINT_HEADERS: Final = {"relay-endpoint": ENDPOINT, "relay-signing-secret": SECRET}
ENDPOINT_PARAMETERS: Final = (
    Parameter(
        ENDPOINT,
        str,
        "URL to which it is delivered, in place of a receiver; its origin is in `RELAY_ADHOC_ENDPOINTS`. Also as "
        "`relay-endpoint`.",
    ),
    Parameter(
        SECRET,
        str,
        "Signs the request to that URL; without one it is not signed. Better as the header `relay-signing-secret`, as "
        "proxies log URLs.",
    ),
)


def read_message(
    request: web.Request, source_id: str, payload: bytes, context: ApiContext, *, wait_s: int = 0
) -> IncomingMessage:
    """The message that query and headers describe.

    It is encoded and decoded once, so that FromSender can read every message that is accepted here.
    """
    query = query_of(request, "receiver", "type", WAIT, *FIELDS, ENDPOINT, SECRET)
    _check_fixed_attributes(request, source_id)
    given_id = _message_id(request)
    message_id, endpoint = given_id or context.new_id(), given_fields(request, query, ENDPOINT_HEADERS)
    own = one_off_in(context, endpoint, MessageId(source_id, message_id)) if endpoint else None
    if own is not None:
        check_alone(query)
    traceparent, tracestate = trace_in(request)
    message = Message(
        source_id=source_id,
        message_id=message_id,
        receivers=receivers_in(query) if own is None else (receiver_name(own.url),),
        event_type=one_type((*attributes(request, "ce-type"), *query.get("type", ()))),
        time=next(iter(attributes(request, "ce-time")), None),
        content_type=content_type_of(request),
        payload=payload,
        traceparent=traceparent,
        tracestate=tracestate,
        wait_s=wait_s or _later_wait(request),
        headers=own_headers(request),
        timing=read_timing(given_fields(request, query)),
        one_off=own,
    )
    return as_incoming(message, fresh=given_id is None)


def _later_wait(request: web.Request) -> int:
    """Seconds for which later requests wait for the answer. Raises a Problem."""
    text = request.headers.get(LATER_WAIT, "0")
    if not _SECONDS.fullmatch(text):
        raise invalid(f"{LATER_WAIT} must be a whole number of seconds, such as 20", header=LATER_WAIT)
    return int(text)


def trace_in(request: web.Request) -> tuple[str | None, str | None]:
    """`traceparent` and `tracestate`. The values of a repeated `tracestate` make a list
    (https://www.w3.org/TR/trace-context/#tracestate-header)."""
    state = fit_tracestate(",".join(request.headers.getall("tracestate", ())))
    return fit_traceparent(request.headers.get("traceparent")), state


def own_headers(request: web.Request) -> Pairs:
    """The message's own, in `relay-header-...` of the request; the values of a repeated one make a list, as HTTP has
    it (RFC 9110, 5.3). Raises InvalidRecord."""
    names = {name.lower() for name in request.headers if name[: len(FORWARDED)].lower() == FORWARDED}
    return read_headers({name[len(FORWARDED) :]: ", ".join(request.headers.getall(name)) for name in sorted(names)})


def given_fields(
    request: web.Request, query: Mapping[str, Sequence[str]], headers: Mapping[str, str] = HEADERS
) -> dict[str, object]:
    """The fields of a message that the query and these headers set; by default its timing. Raises a Problem if they
    contradict each other."""
    found: dict[str, object] = {}
    for header, name in headers.items():
        given = {*query.get(name, ()), *request.headers.getall(header, ())}
        if len(given) > 1:
            raise invalid(f"{name} and header {header} contradict each other, or are repeated", parameter=name)
        if given:
            found[name] = given.pop()
    return found


def as_incoming(message: Message, *, fresh: bool) -> IncomingMessage:
    """`message` in its wire form, and as that is read. `fresh`: its id was made here. Raises InvalidRecord."""
    headers = message_headers(message)
    return IncomingMessage(parse_message(message.payload, headers), headers, fresh=fresh)


def key_of(request: web.Request) -> str | None:
    """The decoded `Idempotency-Key` of the request, if it has one."""
    keys = set(_keys(request))
    with invalid_at(header=IDEMPOTENCY_KEY):
        for key in keys:
            check_id(key, f"header {IDEMPOTENCY_KEY}")
    if len(keys) > 1:
        raise invalid(f"{IDEMPOTENCY_KEY} is repeated, with different values", header=IDEMPOTENCY_KEY)
    return keys.pop() if keys else None


def idempotency_key(value: str) -> str | None:
    """The key in an `Idempotency-Key` header: a structured-field string or, as real clients send it, bare. None if it
    begins like a string but is not valid."""
    if not value.startswith('"'):
        return value
    string = _STRING.fullmatch(value)
    return None if string is None else re.sub(r"\\(.)", r"\1", string[1])


def _check_fixed_attributes(request: web.Request, source_id: str) -> None:
    """The path already says the source, and there is one version."""
    for name, only in (("ce-source", source_id), ("ce-specversion", "1.0")):
        if any(value != only for value in attributes(request, name)):
            raise invalid(f"header {name} must be {only} here, or be left out", header=name)


def _message_id(request: web.Request) -> str | None:
    given = [("ce-id", value) for value in attributes(request, "ce-id")]
    given += [("webhook-id", value) for value in attributes(request, "webhook-id")]
    given += [(IDEMPOTENCY_KEY, value) for value in _keys(request)]
    for name, value in given:
        with invalid_at(header=name):
            check_id(value, f"the message id in header {name}")
    if len({value for _, value in given}) > 1:
        names = list(dict.fromkeys(name for name, _ in given))
        detail = f"contradicting message ids in {', '.join(names)}"
        raise invalid(detail, header=names[-1])
    return given[0][1] if given else None


def _keys(request: web.Request) -> list[str]:
    keys = [idempotency_key(value) for value in request.headers.getall(IDEMPOTENCY_KEY, ())]
    decoded = [None if key is None else percent_decoded(key) for key in keys]
    if None in decoded:
        raise invalid(f"{IDEMPOTENCY_KEY} is neither bare nor a quoted string", header=IDEMPOTENCY_KEY)
    return [key for key in decoded if key is not None]


def receivers_in(query: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """Names, once each; None for the subscribers. `?receiver=a&receiver=b` or `?receiver=a,b`."""
    given = query.get("receiver")
    if given is None:
        return None
    with invalid_at(parameter="receiver"):
        return receiver_names(given)


def receiver_names(given: Iterable[str]) -> tuple[str, ...]:
    """Names, once each; each of `given` may be several with commas. Raises InvalidRecord for an invalid name, for none,
    and for too many."""
    names = tuple(dict.fromkeys(name.strip(" \t") for each in given for name in each.split(",")))
    for name in names:
        if not is_receiver_name(name):
            raise InvalidRecord("invalid", f"{name[:80]!r} is not a receiver name ([a-z0-9][a-z0-9-]*, <= 63)")
    if not 0 < len(names) <= MAX_RECEIVERS:
        raise InvalidRecord("invalid", f"{len(names)} receivers are named; it may be 1 to {MAX_RECEIVERS}, or no list")
    return names


def one_type(given: Iterable[str]) -> str | None:
    """The type that all of `given` agree on; empty ones say nothing. Raises a Problem where they differ."""
    types = {text for text in given if text}
    if len(types) > 1:
        raise invalid("ce-type and ?type= contradict each other", parameter="type")
    return next(iter(types), None)


def content_type_of(request: web.Request) -> str | None:
    """The content type of a payload. Raises a Problem for a CloudEvent, which has attributes of its own."""
    content_type = plain_header(request, "Content-Type")
    if content_type is not None and is_structured(content_type):
        detail = (
            "CloudEvents structured mode is not taken here: send the attributes as ce- headers, or a batch to "
            "the same path with :batch behind it"
        )
        raise invalid(detail, kind=UNSUPPORTED, header="Content-Type")
    return content_type


def is_structured(content_type: str) -> bool:
    """Whether a payload of this type would not be taken for a payload."""
    return content_type[: len(_CLOUDEVENTS)].lower() == _CLOUDEVENTS


def one_off_in(context: ApiContext, given: Mapping[str, object], identity: MessageId) -> OneOff | None:
    """The message's own endpoint; None if it has none. `given`: the fields of the request. Raises a Problem."""
    url, secret = given.get(ENDPOINT), given.get(SECRET)
    if url is None:
        if secret is not None:
            raise invalid(
                "signing_secret is given without endpoint: receivers have their own secrets", parameter=SECRET
            )
        return None
    checked = _checked(str(url))
    if not any(same_origin(checked, origin) for origin in context.adhoc_endpoints):
        raise Problem(ENDPOINT_NOT_ALLOWED, _not_allowed(context.adhoc_endpoints))
    return OneOff(checked, None if secret is None else _sealed(context, str(secret), identity))


def _checked(url: str) -> str:
    try:
        return check_url(url)
    except ValueError as error:
        raise invalid(f"endpoint: {error}", parameter=ENDPOINT) from None


def _not_allowed(origins: Sequence[str]) -> str:
    if not origins:
        return "Messages may not bring endpoints along: RELAY_ADHOC_ENDPOINTS names no origins. Register a receiver."
    return "The origin of endpoint is not among those of RELAY_ADHOC_ENDPOINTS. Register a receiver, or add the origin."


def _sealed(context: ApiContext, secret: str, identity: MessageId) -> str:
    """The secret as it is written to the log."""
    try:
        check_secret(secret)
    except ValueError as error:
        raise invalid(f"signing_secret: {error}", parameter=SECRET) from None
    if is_private_key(secret):
        raise invalid("signing_secret: a private key is only for registered receivers", parameter=SECRET)
    if not context.ring.can_encrypt:
        raise Problem(NO_SECRETS_KEY, "signing_secret needs RELAY_SECRETS_KEY, with which secrets are encrypted.")
    return context.ring.encrypted(secret, secret_place(*identity))


def check_alone(query: Mapping[str, Sequence[str]]) -> None:
    """Raises a Problem if the query names receivers, too."""
    if "receiver" in query:
        detail = "receiver and endpoint exclude each other: give one of them"
        errors = tuple({"detail": detail, "parameter": name} for name in (ENDPOINT, "receiver"))
        raise Problem(INVALID, detail, errors=errors)
