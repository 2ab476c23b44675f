"""The message that an HTTP request describes: CloudEvents attributes as `ce-` headers, the payload as the body."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aiohttp import web

from relay.api import one_off
from relay.api.context import ApiContext
from relay.api.intake import IncomingMessage
from relay.api.one_off import check_alone, one_off_in
from relay.api.problems import UNSUPPORTED, Problem, invalid
from relay.api.reading import attributes, percent_decoded, plain_header, query_of
from relay.api.waiters import WAIT
from relay.domain.errors import InvalidRecord
from relay.domain.headers import FORWARDED, Pairs, read_headers
from relay.domain.identity import MessageId, check_id, is_receiver_name
from relay.domain.message import MAX_RECEIVERS, Message, message_headers, parse_message
from relay.domain.origin_receiver import receiver_name
from relay.domain.timing import FIELDS, HEADERS, Timing, read_timing
from relay.domain.trace import fit_tracestate

_IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_STRING: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')  # RFC 9651, section 3.3.3
_CLOUDEVENTS: Final = "application/cloudevents"
"""Structured modes begin so: as the type of a payload it would have FromSender look for attributes in there."""


def read_message(
    request: web.Request, source_id: str, payload: bytes, context: ApiContext, *, wait_s: int = 0
) -> IncomingMessage:
    """The message that query and headers describe.

    It is encoded and decoded once, so that FromSender can read every message that is accepted here.
    """
    query = query_of(request, "receiver", "type", WAIT, *FIELDS, *one_off.FIELDS)
    _check_fixed_attributes(request, source_id)
    given_id = _message_id(request)
    message_id, endpoint = given_id or context.new_id(), given_fields(request, query, one_off.HEADERS)
    own = one_off_in(context, endpoint, MessageId(source_id, message_id)) if endpoint else None
    if own is not None:
        check_alone(query)
    message = Message(
        source_id=source_id,
        message_id=message_id,
        receivers=receivers_in(query) if own is None else (receiver_name(own.url),),
        event_type=one_type((*attributes(request, "ce-type"), *query.get("type", ()))),
        time=next(iter(attributes(request, "ce-time")), None),
        content_type=content_type_of(request),
        payload=payload,
        traceparent=plain_header(request, "traceparent"),
        tracestate=tracestate_in(request),
        wait_s=wait_s,
        headers=own_headers(request),
        timing=timing_of(given_fields(request, query)),
        one_off=own,
    )
    return as_incoming(message, fresh=given_id is None)


def tracestate_in(request: web.Request) -> str | None:
    """The values of a repeated one make a list (https://www.w3.org/TR/trace-context/#tracestate-header)."""
    return fit_tracestate(",".join(request.headers.getall("tracestate", ())))


def own_headers(request: web.Request) -> Pairs:
    """The message's own, in `relay-header-...` of the request; the values of a repeated one make a list, as HTTP has
    it (RFC 9110, 5.3). Raises a Problem."""
    names = {name.lower() for name in request.headers if name[: len(FORWARDED)].lower() == FORWARDED}
    if not names:
        return ()
    try:
        return read_headers({name[len(FORWARDED) :]: ", ".join(request.headers.getall(name)) for name in sorted(names)})
    except InvalidRecord as error:
        raise invalid(error.detail) from None


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


def timing_of(fields: Mapping[str, object]) -> Timing | None:
    """Raises a Problem."""
    try:
        return read_timing(fields)
    except InvalidRecord as error:
        raise invalid(error.detail) from None


def as_incoming(message: Message, *, fresh: bool) -> IncomingMessage:
    """`message` in its wire form, and as that is read. `fresh`: its id was made here."""
    headers = message_headers(message)
    try:
        return IncomingMessage(parse_message(message.payload, headers), headers, fresh=fresh)
    except InvalidRecord as error:
        raise invalid(error.detail) from error


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
    given += [(_IDEMPOTENCY_KEY, value) for value in _keys(request)]
    for name, value in given:
        try:
            check_id(value, f"the message id in header {name}")
        except InvalidRecord as error:
            raise invalid(error.detail, header=name) from None
    if len({value for _, value in given}) > 1:
        names = list(dict.fromkeys(name for name, _ in given))
        detail = f"contradicting message ids in {', '.join(names)}"
        raise invalid(detail, header=names[-1])
    return given[0][1] if given else None


def _keys(request: web.Request) -> list[str]:
    keys = [idempotency_key(value) for value in request.headers.getall(_IDEMPOTENCY_KEY, ())]
    decoded = [None if key is None else percent_decoded(key) for key in keys]
    if None in decoded:
        raise invalid(f"{_IDEMPOTENCY_KEY} is neither bare nor a quoted string", header=_IDEMPOTENCY_KEY)
    return [key for key in decoded if key is not None]


def receivers_in(query: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """Names, once each; None for the subscribers. `?receiver=a&receiver=b` or `?receiver=a,b`."""
    given = query.get("receiver")
    if given is None:
        return None
    try:
        return receiver_names(given)
    except InvalidRecord as error:
        raise invalid(error.detail, parameter="receiver") from None


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
        raise Problem(UNSUPPORTED, detail, errors=({"detail": detail, "header": "Content-Type"},))
    return content_type


def is_structured(content_type: str) -> bool:
    """Whether a payload of this type would not be taken for a payload."""
    return content_type[: len(_CLOUDEVENTS)].lower() == _CLOUDEVENTS
