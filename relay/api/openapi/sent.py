"""The requests that the relay sends: the top-level `webhooks` of the document. Receivers and senders serve these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from relay.domain.own_events import FAILED, Change, IncidentEvent, MessagesFailed, ReceiverEvent, Turn
from relay.domain.result_delivery import MEDIA_TYPE, Notice
from relay.schema.messages import Nonce, Ping


@dataclass(frozen=True, slots=True)
class SentHeader:
    """A header of the requests that the relay sends, in the OpenAPI document. `always`: each request of this kind has
    it."""

    name: str
    description: str
    always: bool = True


@dataclass(frozen=True, slots=True)
class Sent:
    """A POST of the relay's. `answers`: what each status means. `body`: its type; None: any bytes of type `media`."""

    name: str
    summary: str
    description: str
    headers: Sequence[SentHeader]
    answers: Mapping[str, str]
    body: Any = None
    media: Sequence[str] = ("application/json",)


_SIGNED: Final = (
    SentHeader("webhook-timestamp", "Unix seconds of this attempt."),
    SentHeader(
        "webhook-signature",
        "`signature: standard`, as usual: Standard Webhooks 1.0 (`v1`, `v1a`), one for each secret.",
        always=False,
    ),
    SentHeader("x-hub-signature-256", "`signature: github`; with SHA-512 it is `x-hub-signature`.", always=False),
    SentHeader("stripe-signature", "`signature: stripe`.", always=False),
    SentHeader("content-digest", "`signature: http-message`: RFC 9530, with SHA-256.", always=False),
    SentHeader("signature-input", "`signature: http-message`: RFC 9421, one for each secret.", always=False),
    SentHeader("signature", "`signature: http-message`: RFC 9421, one for each secret.", always=False),
)
_TRACE: Final = (
    SentHeader(
        "traceparent", "W3C Trace Context: that of the message, or of the relay's own span in its trace.", always=False
    ),
    SentHeader("tracestate", "W3C Trace Context: the sender's `tracestate`.", always=False),
)
_AS_EVENT: Final = tuple(
    SentHeader(name, f"`callback.cloudevents`: {what}.", always=False)
    for name, what in (
        ("ce-specversion", "1.0"),
        ("ce-id", "as `webhook-id`"),
        ("ce-source", "`/receivers/` and the receiver"),
        ("ce-type", "`relay.answer`, `relay.failure` or `relay.progress`"),
        ("ce-subject", "the source of the message"),
        ("ce-correlationid", "the message id"),
        ("ce-causationid", "the message id"),
    )
)
_AGENT: Final = SentHeader("user-agent", "`relay/` and its version.")
_TYPE: Final = SentHeader("content-type", "Content type of the body.")
_RETRIED: Final = {
    "2XX": "Accepted.",
    **dict.fromkeys(("400", "413", "415", "422"), "Rejected: the delivery fails for good at once."),
    "410": "The endpoint is gone: nothing is sent there until it is resumed.",
    **dict.fromkeys(("429", "503"), "Nothing is sent there for the time in `Retry-After`; then it is retried."),
    "default": "Retried later, with growing delays. Redirects are not followed.",
}


def _of_the_relay(webhook_id: str, event_type: str) -> tuple[SentHeader, ...]:
    """Headers of a request that brings no message."""
    return (
        SentHeader("webhook-id", webhook_id),
        *_SIGNED,
        SentHeader("ce-specversion", "1.0."),
        SentHeader("ce-id", "As `webhook-id`."),
        SentHeader("ce-source", "`relay`."),
        SentHeader("ce-type", f"`{event_type}`."),
        _AGENT,
        _TYPE,
    )


DELIVERY: Final = Sent(
    "delivery",
    "A message, to one of its receivers",
    "POSTed to the receiver's `post_endpoint` until it is accepted, at least once: `webhook-id` is the same on every "
    "attempt. Its payload is passed on byte for byte, with its own headers that `forward_headers` allows. With "
    "`batch` several are in one POST, whose `webhook-id` is the batch's (`batch_...`), with the header `relay-batch`.",
    (
        SentHeader(
            "webhook-id", "`msg_` and 26 characters, derived from source and message id: use it to recognise repeats."
        ),
        *_SIGNED,
        SentHeader("ce-specversion", "1.0: CloudEvents, binary mode."),
        SentHeader("ce-id", "The message id, percent-encoded as in CloudEvents."),
        SentHeader("ce-source", "The source id."),
        SentHeader("ce-type", "The event type of the message, if it has one.", always=False),
        SentHeader("ce-time", "Time of the event, if the sender set it.", always=False),
        SentHeader("relay-attempt", "Number of the POST in this generation, beginning with 1."),
        SentHeader("relay-generation", "Generation of the delivery: 0, and 1 more for each replay."),
        SentHeader("relay-deadline", "Unix seconds at which the delivery is given up.", always=False),
        SentHeader(
            "relay-sequence",
            "Grows along the order key. With `ordering: receiver` it has no gaps.",
            always=False,
        ),
        SentHeader("relay-gap", "Numbers that do not come: `first=12; last=14; reason=expired`, ....", always=False),
        SentHeader(
            "relay-out-of-order",
            "`true`: it failed for longer than `ordering.patience`, and later messages were sent before it.",
            always=False,
        ),
        SentHeader("relay-answer-url", "URL to which the answer may be POSTed later.", always=False),
        SentHeader("prefer", "`respond_async`: `respond-async, wait=N` (RFC 7240).", always=False),
        SentHeader(
            "relay-payload-url",
            "`payload: thin`: URL at which the payload can be read for a limited time.",
            always=False,
        ),
        *_TRACE,
        _AGENT,
        _TYPE,
    ),
    {
        **_RETRIED,
        "2XX": "Accepted, and the body is the answer.",
        "202": "Accepted. The answer follows later: by the status endpoint, or by a POST to `relay-answer-url`.",
    },
    media=("application/json", "*/*"),
)
RESULT: Final = Sent(
    "result",
    "A receiver's answer, to the sender's callback",
    "POSTed to the source's `callback` until it is accepted. The body is the receiver's answer, unchanged.",
    (
        SentHeader("webhook-id", "`ans_`, 26 characters, the receiver, and the generation."),
        *_SIGNED,
        SentHeader("relay-source", "The source, percent-encoded."),
        SentHeader("relay-message-id", "The message id, percent-encoded."),
        SentHeader("relay-receiver", "Name of the receiver."),
        SentHeader("relay-attempt", "1 for the first POST of this result."),
        SentHeader("relay-outcome", "`answered`, or `delivered`: accepted without an answer.", always=False),
        SentHeader("relay-answer-status", "The status of the answer.", always=False),
        SentHeader("relay-answer-truncated", "`true` if the answer was truncated.", always=False),
        *_AS_EVENT,
        *_TRACE,
        _AGENT,
        SentHeader("content-type", "Content type of the answer, if it had one.", always=False),
    ),
    _RETRIED,
    media=("*/*",),
)
FAILURE: Final = Sent(
    "failure",
    "A delivery failed for good, to the sender's callback",
    "POSTed to the source's `callback`, unless it has `failures: false`.",
    (
        SentHeader("webhook-id", "`fail_`, 26 characters, the receiver, and the generation."),
        *_SIGNED,
        SentHeader("relay-source", "The source, percent-encoded."),
        SentHeader("relay-message-id", "The message id, percent-encoded."),
        SentHeader("relay-receiver", "Receiver of the failed delivery; `-` if the message never had one."),
        SentHeader("relay-attempt", "1 for the first POST of this notice."),
        SentHeader("relay-outcome", "`failed`."),
        SentHeader("relay-reason", "The reason: one word of a fixed list."),
        *_AS_EVENT,
        *_TRACE,
        _AGENT,
        _TYPE,
    ),
    _RETRIED,
    Notice,
    (MEDIA_TYPE,),
)
PING: Final = Sent(
    "ping",
    "A ping, to an endpoint that was down",
    "Sent instead of messages until one is answered with a 2xx, or as a test. Ignore its content.",
    _of_the_relay("`ping_` and random characters.", "relay.ping"),
    {
        "2XX": "The endpoint is back, and messages follow.",
        "410": "The endpoint is gone.",
        "default": "The endpoint is still down.",
    },
    Ping,
)
VERIFICATION: Final = Sent(
    "verification",
    "A verification, to a receiver with `verification: hmac`",
    "Sent before anything else. Check its signature, and answer with a nonce of your own and the signature of both, as "
    "in docs/verifying.md.",
    _of_the_relay("`verify_` and the nonce.", "relay.verification"),
    {
        "200": "With the right body, the receiver is verified, and messages follow.",
        "default": "It is not verified; retried later.",
    },
    Nonce,
)
_OWN_EVENTS: Final[Mapping[Turn | Change | Literal["message.failed"], tuple[str, str]]] = {
    "receiver.offline": (
        "A receiver has been down for long, to subscribers",
        "It gets only pings until it answers one, and after `offline.disable_after` nothing.",
    ),
    "receiver.back": ("A receiver has answered a ping, to subscribers", "Its backlog follows, in order."),
    "receiver.disabled": (
        "A receiver was down for too long, to subscribers",
        "Nothing is sent to it until it is resumed.",
    ),
    "receiver.gone": (
        "A receiver returned 410, to subscribers",
        "Nothing is sent to it until it is resumed.",
    ),
    "receiver.moved": (
        "A hot receiver leaves the shared lane, to subscribers",
        "It gets a lane of its own until it is calm; the order of its messages is kept.",
    ),
    "receiver.returned": (
        "A receiver that was hot returns to the shared lane, to subscribers",
        "The order of its messages is kept.",
    ),
    "message.failed": (
        "Messages failed for good, to subscribers",
        "The messages of one receiver that failed within ten seconds, with ten as examples.",
    ),
    "incident.opened": (
        "A cause of failures was found, to subscribers",
        "It has the party at fault, the waiting messages, and a link. Sent once per occurrence, and if it is reopened.",
    ),
    "incident.resolved": ("An incident is over, to subscribers", "It was resolved by a person, or without help."),
}


def _own_event(name: Turn | Change | Literal["message.failed"]) -> Sent:
    summary, description = _OWN_EVENTS[name]
    whom = "Sent to receivers with `relay` in `sources`; to one with an `owner` only about receivers of that owner."
    headers = tuple(_OF_OWN_EVENTS.get(header.name, header) for header in DELIVERY.headers)
    body = MessagesFailed if name == FAILED else IncidentEvent if name.startswith("incident.") else ReceiverEvent
    return Sent(name, summary, f"{description} {whom}", headers, _RETRIED, body)


_OF_OWN_EVENTS: Final = {
    header.name: header
    for header in (
        SentHeader("ce-id", "Derived from the type, the receiver, and the occurrence."),
        SentHeader("ce-source", "`relay`."),
        SentHeader("ce-type", "The name of this event."),
        SentHeader("ce-time", "Time at which it was noticed."),
    )
}
SENT: Final = (DELIVERY, RESULT, FAILURE, PING, VERIFICATION, *map(_own_event, _OWN_EVENTS))
