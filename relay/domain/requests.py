"""Builds the relay's HTTP requests: POST to a receiver, status GET, callback to a sender, ping to either, and the
verification handshakes."""

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import quote

import msgspec
from msgspec import structs

from relay.domain.batch import CONTENT_TYPES
from relay.domain.egress import Egress, Tls
from relay.domain.exchange import Request
from relay.domain.expression import Variables
from relay.domain.headers import VISIBLE, check_header_name, header_value, wanted
from relay.domain.hop import Hop
from relay.domain.http_message import HEADERS, sign_message
from relay.domain.identity import callback_id, webhook_id
from relay.domain.jwe import MEDIA_TYPE as ENCRYPTED
from relay.domain.numbering import GAP_HEADER, NumberGap, gap_text
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.request_form import FilledRequest, RequestForm, fill_request
from relay.domain.signing import sign
from relay.domain.trace import trace_headers
from relay.domain.urls import same_origin
from relay.domain.variables import callback_variables, delivery_variables

_Pairs = tuple[tuple[str, str], ...]

DEFAULT_CONTENT_TYPE: Final = "application/json"
PING_TYPE: Final = "relay.ping"
PING_BODY: Final = b'{"type":"relay.ping"}'
VERIFICATION_TYPE: Final = "relay.verification"
ORIGIN_HEADER: Final = "webhook-request-origin"
ANSWER_URL_HEADER: Final = "relay-answer-url"
PAYLOAD_URL_HEADER: Final = "relay-payload-url"
BATCH_HEADER: Final = "relay-batch"
"""How many messages a POST has, if it is a batch."""

# CloudEvents HTTP binding, 3.1.3.2: space, quote, percent and all beyond printable ASCII are percent-encoded
_ATTRIBUTE_SAFE: Final = VISIBLE.replace('"', "").replace("%", "")
_IN_ATTRIBUTE: Final = re.compile(r'[^\x21-\x7e]|["%]')


def attribute_value(text: str) -> str:
    """An id or other text of the sender as a header value: percent-encoded as in CloudEvents; reversible."""
    if text.isalnum() and text.isascii():
        return text
    if _IN_ATTRIBUTE.search(text):
        return quote(text, safe=_ATTRIBUTE_SAFE, errors="replace")
    return text


_repeated = lru_cache(maxsize=16_384)(attribute_value)
"""`attribute_value` with a cache, for sources and types."""


def post_request(
    receiver: Receiver,
    hop: Hop,
    payload: bytes,
    *,
    attempt: int,
    sequence: int | None,
    out_of_order: bool = False,
    gaps: tuple[NumberGap, ...] = (),
    now: float,
    answer_url: str | None,
    payload_url: str | None = None,
    encrypt: Callable[[bytes, str], bytes] | None = None,
    user_agent: str,
) -> Request:
    """The POST of a delivery. `attempt`: 1-based. `sequence`: None if order does not matter. `now`: Unix seconds.
    `out_of_order`: later messages of its order key may have arrived before it. `gaps`: numbers before it that the
    receiver does not get. `payload_url`: for a receiver that gets one in place of the payload. `encrypt`: from (body,
    content type) to the body in their place.

    Raises ValueError if a secret of the receiver cannot sign; ExpressionError if its own form of requests
    cannot be filled in.
    """
    delivery, filled, body, content_type = hop.delivery, None, payload, hop.content_type
    if receiver.post.request is not None:
        variables = delivery_variables(hop, payload, attempt=attempt, answer_url=answer_url)
        filled = own_request(receiver.post.request, receiver.post, variables)
        body = payload if filled.body is None else filled.body
        content_type = filled.content_type or content_type
    identity = webhook_id(delivery.source_id, delivery.message_id)
    if receiver.payload != "full":
        body, content_type = _event_of(hop, identity, payload_url), DEFAULT_CONTENT_TYPE
    content_type = _content_type(content_type)
    if encrypt is not None:
        body, content_type = encrypt(body, content_type), ENCRYPTED
    headers = [
        ("content-type", content_type),
        *_signed(receiver.post, identity, now, body, content_type, filled),
        ("ce-specversion", "1.0"),
        ("ce-id", attribute_value(delivery.message_id)),
        ("ce-source", _repeated(delivery.source_id)),
        ("relay-attempt", str(attempt)),
        ("relay-generation", str(hop.generation)),
    ]
    if hop.event_type is not None:
        headers.append(("ce-type", _repeated(hop.event_type)))
    if hop.time is not None:
        headers.append(("ce-time", attribute_value(hop.time)))
    if hop.accepted_ms:
        headers.append(("relay-deadline", str(int(deadline_of(hop, receiver)))))
    if sequence is not None:
        headers.append(("relay-sequence", str(sequence)))
    if out_of_order:
        headers.append(("relay-out-of-order", "true"))
    if gaps:
        headers.append((GAP_HEADER, gap_text(gaps)))
    if answer_url is not None:
        headers.append((ANSWER_URL_HEADER, header_value(answer_url)))
    if receiver.respond_async is not None:
        headers.append(_prefer(receiver.respond_async))
    if payload_url is not None:
        headers.append((PAYLOAD_URL_HEADER, header_value(payload_url)))
    if hop.traceparent is not None:
        headers += trace_headers(hop.traceparent, hop.tracestate)
    if hop.headers and receiver.forward_headers:
        own = [name for name, _ in receiver.post.headers]
        if "http-message" in receiver.post.signing.styles:
            own += HEADERS
        found = wanted(hop.headers, receiver.forward_headers, own)
        headers += ((name, header_value(value)) for name, value in found)
    if filled is not None:
        return _filled(receiver.post, filled, headers, body, user_agent, origins=(receiver.post.url,))
    return _post(receiver.post, headers, body, user_agent)


def deadline_of(hop: Hop, receiver: Receiver) -> float:
    """Unix seconds."""
    until = hop.accepted_ms / 1000 + receiver.post.retry.max_age
    own = 0.0 if hop.timing is None or hop.generation else hop.timing.deadline
    return min(until, own) if own else until


def batch_request(
    receiver: Receiver, identity: str, events: Sequence[bytes], *, now: float, user_agent: str
) -> Request:
    """The POST of a batch. `identity`: its id. `events`: the JSON of each message. Raises as `post_request` does."""
    content_type = CONTENT_TYPES[receiver.batch.format if receiver.batch is not None else "list"]
    body = b"[%b]" % b",".join(events)
    headers = [
        ("content-type", content_type),
        *_signed(receiver.post, identity, now, body, content_type),
        (BATCH_HEADER, str(len(events))),
    ]
    if receiver.respond_async is not None:
        headers.append(_prefer(receiver.respond_async))
    return _post(receiver.post, headers, body, user_agent)


def _prefer(wait_s: float) -> tuple[str, str]:
    return "prefer", f"respond-async, wait={wait_s:.0f}"  # RFC 7240


def _event_of(hop: Hop, identity: str, payload_url: str | None) -> bytes:
    """The body of a thin event: no part of the payload, nor anything derived from it."""
    _, source_id, message_id = hop.delivery
    known = {"id": message_id, "source": source_id, "type": hop.event_type, "time": hop.time, "webhook_id": identity}
    return json.dumps(known if payload_url is None else {**known, "payload_url": payload_url}).encode()


def own_request(form: RequestForm, endpoint: Endpoint, variables: Variables) -> FilledRequest:
    """The endpoint's own form of requests with values. Raises ExpressionError."""
    return fill_request(form, variables, url=endpoint.url, origins=(endpoint.url, *endpoint.allow_origins))


def trial_body(of: Literal["receiver", "source"], name: str) -> bytes:
    """The body of a test ping, sent on an operator's request. `name`: of the receiver, or the callback's source."""
    return msgspec.json.encode({"type": PING_TYPE, "test": True, of: name})


def ping_request(endpoint: Endpoint, ping_id: str, *, now: float, user_agent: str, body: bytes = PING_BODY) -> Request:
    """A ping of type `relay.ping`, for example to an offline endpoint: like any POST to it, but without a message.

    `ping_id`: unique, of characters that a header may have. Raises ValueError if a secret of the endpoint cannot sign.
    """
    return _own_post(endpoint, f"ping_{ping_id}", PING_TYPE, body, now=now, user_agent=user_agent)


def challenge_request(endpoint: Endpoint, challenge: str, *, user_agent: str, timeout_s: float) -> Request:
    """The GET with a `challenge` to be echoed, added to the URL's query. `challenge`: of characters that a query may
    have."""
    url = f"{endpoint.url}{'&' if '?' in endpoint.url else '?'}challenge={challenge}"
    return _plain("GET", endpoint, url, (), user_agent, timeout_s)


def nonce_request(endpoint: Endpoint, nonce: str, *, now: float, user_agent: str, timeout_s: float) -> Request:
    """The POST of `relay.verification`, signed like messages, to be answered with a signature over both sides' nonces.
    Raises ValueError if a secret of the endpoint cannot sign."""
    body = json.dumps({"type": VERIFICATION_TYPE, "nonce": nonce}).encode()
    asked = _own_post(endpoint, f"verify_{nonce}", VERIFICATION_TYPE, body, now=now, user_agent=user_agent)
    return structs.replace(asked, timeout_s=timeout_s)


def _own_post(endpoint: Endpoint, identity: str, kind: str, body: bytes, *, now: float, user_agent: str) -> Request:
    """The POST of an event of the relay itself, which is not a message."""
    headers = [
        ("content-type", DEFAULT_CONTENT_TYPE),
        *_signed(endpoint, identity, now, body, DEFAULT_CONTENT_TYPE),
        ("ce-specversion", "1.0"),
        ("ce-id", identity),
        ("ce-source", "relay"),
        ("ce-type", kind),
    ]
    return _post(endpoint, headers, body, user_agent)


def consent_request(endpoint: Endpoint, origin: str, rate: int | None, *, user_agent: str, timeout_s: float) -> Request:
    """The OPTIONS request that asks whether the endpoint accepts webhooks from `origin`, a DNS name. `rate`: requested
    number of requests per minute; None to request no number."""
    asked: _Pairs = ((ORIGIN_HEADER, origin),)
    if rate is not None:
        asked += (("webhook-request-rate", str(rate)),)
    return _plain("OPTIONS", endpoint, endpoint.url, asked, user_agent, timeout_s)


def is_of_receiver(url: str, receiver: Receiver) -> bool:
    """Whether `url` is on an origin configured for the receiver."""
    return _has_credentials_of(url, receiver) or any(same_origin(url, one) for one in receiver.post.allow_origins)


def _has_credentials_of(url: str, receiver: Receiver) -> bool:
    """Whether requests to `url` carry the receiver's credentials. No other origin may get them."""
    configured = (receiver.post.url, receiver.status_endpoint)
    return any(endpoint is not None and same_origin(url, endpoint) for endpoint in configured)


def status_request(
    url: str, receiver: Receiver, *, user_agent: str, timeout_s: float, hop: Hop | None = None
) -> Request:
    """The status GET of a delivery, with the receiver's own static headers, and in the trace of `hop`. Without these
    headers for an origin of `allow_origins`.

    Raises ValueError for a URL that is not the receiver's.
    """
    if not is_of_receiver(url, receiver):
        raise ValueError("the status URL is on an origin that is not the receiver's")
    trace = () if hop is None else trace_headers(hop.traceparent, hop.tracestate)
    headers = (_agent(user_agent), *trace)
    if not _has_credentials_of(url, receiver):
        return Request("GET", url, headers, timeout_s=timeout_s, egress=without_credentials(receiver.post.egress))
    headers += _own_headers(receiver.post.headers)
    return Request("GET", url, headers, timeout_s=timeout_s, egress=receiver.post.egress)


def without_credentials(egress: Egress | None) -> Egress | None:
    """The connection settings for an origin that must not get the endpoint's credentials; without pins, too, which are
    for the endpoint's own server."""
    if egress is None:
        return None
    ca = None if egress.tls is None else egress.tls.ca
    return Egress(None if ca is None else Tls(ca), egress.proxy)


def callback_request(
    source_callback: Endpoint, hop: Hop, body: bytes, *, now: float, user_agent: str, attempt: int
) -> Request:
    """The request with an answer, a failure notice, or progress, to the sender's callback. `hop`, `body`: of the
    `to_sender` record.

    Raises ValueError if a secret of the callback cannot sign; ExpressionError if its own form of requests
    cannot be filled in.
    """
    failed, filled, content_type = hop.outcome == "failed", None, hop.content_type
    if source_callback.request is not None:
        filled = own_request(source_callback.request, source_callback, callback_variables(hop, body))
        body = body if filled.body is None else filled.body
        content_type = filled.content_type or content_type
    identity = callback_id(hop.delivery, hop.generation, failed=failed, progress=hop.progress)
    content_type = None if content_type is None else header_value(content_type)
    headers = [
        *_signed(source_callback, identity, now, body, content_type, filled),
        ("relay-source", attribute_value(hop.delivery.source_id)),
        ("relay-message-id", attribute_value(hop.delivery.message_id)),
        ("relay-receiver", header_value(hop.delivery.receiver)),
        ("relay-attempt", str(attempt)),
    ]
    if content_type is not None:
        headers.append(("content-type", content_type))
    if hop.outcome is not None:
        headers.append(("relay-outcome", hop.outcome))
    if hop.answer_status is not None:
        headers.append(("relay-answer-status", str(hop.answer_status)))
    if hop.answer_truncated:
        headers.append(("relay-answer-truncated", "true"))
    if failed and hop.reason is not None:
        headers.append(("relay-reason", header_value(hop.reason)))
    if source_callback.cloudevents:
        headers += _result_event(hop, identity)
    headers += trace_headers(hop.traceparent, hop.tracestate)
    if filled is not None:
        origins = (source_callback.url, *source_callback.allow_origins)
        return _filled(source_callback, filled, headers, body, user_agent, origins=origins)
    return _post(source_callback, headers, body, user_agent)


def _result_event(hop: Hop, identity: str) -> _Pairs:
    """The attributes of a result as CloudEvent, with those of the correlation extension: the message caused it."""
    kind = "failure" if hop.outcome == "failed" else "answer" if hop.progress is None else "progress"
    message_id = attribute_value(hop.delivery.message_id)
    return (
        ("ce-specversion", "1.0"),
        ("ce-id", identity),
        ("ce-source", f"/receivers/{attribute_value(hop.delivery.receiver)}"),
        ("ce-type", f"relay.{kind}"),
        ("ce-subject", _repeated(hop.delivery.source_id)),
        ("ce-correlationid", message_id),
        ("ce-causationid", message_id),
    )


def _signed(
    endpoint: Endpoint,
    identity: str,
    now: float,
    body: bytes,
    content_type: str | None,
    filled: FilledRequest | None = None,
) -> _Pairs:
    """`content_type`: as it is sent. `filled`: the request, if it is in the endpoint's own form."""
    headers = sign(endpoint.signing, webhook_id=identity, timestamp=int(now), body=body)
    if "http-message" not in endpoint.signing.styles:
        return headers
    method, url = ("POST", endpoint.url) if filled is None else (filled.method, filled.url)
    fields = (("webhook-id", identity), *(() if content_type is None else (("content-type", content_type),)))
    signed = sign_message(endpoint.signing, method=method, url=url, fields=fields, body=body, created=int(now))
    return (*headers, *signed)


@lru_cache(maxsize=256)
def _content_type(given: str | None) -> str:
    return header_value(given or DEFAULT_CONTENT_TYPE)


def _post(endpoint: Endpoint, headers: list[tuple[str, str]], body: bytes, user_agent: str) -> Request:
    headers.append(_agent(user_agent))
    headers.extend(_own_headers(endpoint.headers))
    return Request("POST", endpoint.url, tuple(headers), body, endpoint.timeout, endpoint.egress)


def _filled(
    endpoint: Endpoint,
    filled: FilledRequest,
    headers: list[tuple[str, str]],
    body: bytes,
    user_agent: str,
    *,
    origins: Sequence[str],
) -> Request:
    """A request in the endpoint's own form. Its headers take precedence over others of the same name. Credentials of
    the endpoint go only to these `origins`, given as URLs."""
    at_home = any(same_origin(filled.url, each) for each in origins)
    taken = {name.lower() for name, _ in filled.headers}
    headers.append(_agent(user_agent))
    if at_home:
        headers += _own_headers(endpoint.headers)
    sent = (*(pair for pair in headers if pair[0].lower() not in taken), *filled.headers)
    egress = endpoint.egress if at_home else without_credentials(endpoint.egress)
    return Request(filled.method, filled.url, sent, body, endpoint.timeout, egress)


def _plain(
    method: Literal["GET", "OPTIONS"], endpoint: Endpoint, url: str, headers: _Pairs, user_agent: str, timeout_s: float
) -> Request:
    """A request without a body. The endpoint's own headers are added unless `headers` already has one of that name."""
    taken = {name for name, _ in headers}
    own = (each for each in _own_headers(endpoint.headers) if each[0].lower() not in taken)
    return Request(method, url, (*headers, _agent(user_agent), *own), timeout_s=timeout_s, egress=endpoint.egress)


@lru_cache(maxsize=16)
def _agent(user_agent: str) -> tuple[str, str]:
    return "user-agent", header_value(user_agent)


@lru_cache(maxsize=1024)
def _own_headers(headers: _Pairs) -> _Pairs:
    """An endpoint's static headers, without those that would override ours or could not be sent."""
    return tuple((name, header_value(value)) for name, value in headers if _may_own(name))


def _may_own(name: str) -> bool:
    try:
        check_header_name(name)
    except ValueError:
        return False
    return True
