"""The requests that the relay sends: the top-level `webhooks` of the document. Receivers and senders serve these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from relay.domain.notice import MEDIA_TYPE, Notice
from relay.domain.own_events import FAILED, Change, IncidentEvent, MessagesFailed, ReceiverEvent, Turn
from relay.schema.webhooks import Nonce, Ping


@dataclass(frozen=True, slots=True)
class SentHeader:
    """`always`: each request of this kind has it."""

    name: str
    description: str
    always: bool = True


@dataclass(frozen=True, slots=True)
class Sent:
    """A POST of the relay's. `body`: its type; None: any bytes of type `media`. `answers`: what each status means."""

    name: str
    summary: str
    description: str
    headers: Sequence[SentHeader]
    answers: Mapping[str, str]
    media: Sequence[str]
    body: Any = None


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
    SentHeader("signature", "Likewise.", always=False),
)
_TRACE: Final = (
    SentHeader("traceparent", "W3C Trace Context: of the message, or of our own span in its trace.", always=False),
    SentHeader("tracestate", "Likewise: the sender's own.", always=False),
)
_AS_EVENT: Final = (
    *(
        SentHeader(name, f"`callback.cloudevents`: {what}.", always=False)
        for name, what in (
            ("ce-specversion", "1.0"),
            ("ce-id", "as `webhook-id`"),
            ("ce-source", "`/receivers/` and the receiver"),
            ("ce-type", "`relay.answer`, `relay.failure` or `relay.progress`"),
            ("ce-subject", "the source of the message"),
            ("ce-correlationid", "the message id"),
            ("ce-causationid", "likewise"),
        )
    ),
)
_AGENT: Final = SentHeader("user-agent", "`relay/` and its version.")
_TYPE: Final = SentHeader("content-type", "Of the body.")
_REFUSED: Final = "Refused: it fails for good at once."
_LEFT_ALONE: Final = "Nothing is sent there for as long as `Retry-After` says; then again."
_RETRIED: Final = {
    "2XX": "It is done.",
    **dict.fromkeys(("400", "413", "415", "422"), _REFUSED),
    "410": "The endpoint is gone: nothing more is sent there until it is resumed.",
    **dict.fromkeys(("429", "503"), _LEFT_ALONE),
    "default": "Sent again later, less and less often. Redirects are not followed.",
}

DELIVERY: Final = Sent(
    "delivery",
    "A message, to one of its receivers",
    "POSTed to the receiver's `post_endpoint` until it is accepted, at least once: `webhook-id` is the same on every "
    "attempt. Its payload is passed on byte for byte, with the headers of its own that `forward_headers` lets by. With "
    "`batch` several are in one POST, whose `webhook-id` is the batch's (`batch_...`), with the header `relay-batch`.",
    (
        SentHeader("webhook-id", "`msg_` and 26 characters, made of source and message id: to recognise repeats."),
        *_SIGNED,
        SentHeader("ce-specversion", "1.0: CloudEvents, binary mode."),
        SentHeader("ce-id", "The message id, percent-encoded where CloudEvents has it so."),
        SentHeader("ce-source", "The source."),
        SentHeader("ce-type", "The type of the message, if it has one.", always=False),
        SentHeader("ce-time", "When it happened, if the sender said so.", always=False),
        SentHeader("relay-attempt", "1 for the first POST of this life of the delivery."),
        SentHeader("relay-generation", "The delivery's life: 0, and one more for each replay."),
        SentHeader("relay-deadline", "Unix seconds at which it is given up.", always=False),
        SentHeader(
            "relay-sequence",
            "Grows along what is kept in order; `ordering: receiver`: a number without holes.",
            always=False,
        ),
        SentHeader("relay-gap", "Numbers that do not come: `first=12; last=14; reason=expired`, ....", always=False),
        SentHeader(
            "relay-out-of-order",
            "`true`: it failed for longer than `ordering.patience`; later ones came.",
            always=False,
        ),
        SentHeader("relay-answer-url", "Where the answer may be POSTed to, where it comes later.", always=False),
        SentHeader("prefer", "`respond_async`: `respond-async, wait=N` (RFC 7240).", always=False),
        SentHeader("relay-payload-url", "`payload: thin`: where the payload can be read for a while.", always=False),
        *_TRACE,
        _AGENT,
        _TYPE,
    ),
    {
        **_RETRIED,
        "2XX": "Accepted, and the body is the answer.",
        "202": "Accepted; the answer comes later: by the status endpoint, or by POST to `relay-answer-url`.",
    },
    ("application/json", "*/*"),
)
RESULT: Final = Sent(
    "result",
    "A receiver's answer, to the sender's callback",
    "POSTed to the source's `callback` until it is taken: the bytes of the receiver's answer.",
    (
        SentHeader("webhook-id", "`ans_`, 26 characters, the receiver, and the generation."),
        *_SIGNED,
        SentHeader("relay-source", "The source, percent-encoded."),
        SentHeader("relay-message-id", "The message id, percent-encoded."),
        SentHeader("relay-receiver", "Whose answer it is."),
        SentHeader("relay-attempt", "1 for the first POST of this result."),
        SentHeader("relay-outcome", "`answered`, or `delivered`: accepted without an answer.", always=False),
        SentHeader("relay-answer-status", "The status of the answer.", always=False),
        SentHeader("relay-answer-truncated", "`true`: the answer was longer than is kept.", always=False),
        *_AS_EVENT,
        *_TRACE,
        _AGENT,
        SentHeader("content-type", "Of the answer, if it had one.", always=False),
    ),
    _RETRIED,
    ("*/*",),
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
        SentHeader("relay-receiver", "Which delivery failed; `-` where the message never had a receiver."),
        SentHeader("relay-attempt", "1 for the first POST of this notice."),
        SentHeader("relay-outcome", "`failed`."),
        SentHeader("relay-reason", "Why, as one word of a closed list."),
        *_AS_EVENT,
        *_TRACE,
        _AGENT,
        _TYPE,
    ),
    _RETRIED,
    (MEDIA_TYPE,),
    Notice,
)
PING: Final = Sent(
    "ping",
    "Are you back?, to an endpoint that was down",
    "A throw-away event in place of messages, until one is answered with 2xx; or a test. Ignore it.",
    (
        SentHeader("webhook-id", "`ping_`, and what is of no meaning."),
        *_SIGNED,
        SentHeader("ce-specversion", "1.0."),
        SentHeader("ce-id", "As `webhook-id`."),
        SentHeader("ce-source", "`relay`."),
        SentHeader("ce-type", "`relay.ping`."),
        _AGENT,
        _TYPE,
    ),
    {"2XX": "It is back: messages follow.", "410": "It is gone.", "default": "It is still down."},
    ("application/json",),
    Ping,
)
VERIFICATION: Final = Sent(
    "verification",
    "Do you want what is sent there?, to a receiver with `verification: hmac`",
    "Before anything else is sent. Check its signature; answer with a nonce of your own and the signature of both, as "
    "docs/verifying.md says.",
    (
        SentHeader("webhook-id", "`verify_` and the nonce."),
        *_SIGNED,
        SentHeader("ce-specversion", "1.0."),
        SentHeader("ce-id", "As `webhook-id`."),
        SentHeader("ce-source", "`relay`."),
        SentHeader("ce-type", "`relay.verification`."),
        _AGENT,
        _TYPE,
    ),
    {"200": "With the right body it is verified: messages follow.", "default": "It is not: asked again later."},
    ("application/json",),
    Nonce,
)
_OWN_EVENTS: Final[Mapping[Turn | Change | Literal["message.failed"], tuple[str, str]]] = {
    "receiver.offline": (
        "A receiver is down for long, to those that subscribe",
        "It is sent nothing but pings until it answers one; or, after `offline.disable_after`, nothing at all.",
    ),
    "receiver.back": ("A receiver has answered a ping, to those that subscribe", "Its backlog follows, in order."),
    "receiver.disabled": (
        "A receiver was down for too long, to those that subscribe",
        "It is sent nothing until it is resumed.",
    ),
    "receiver.gone": (
        "A receiver has said that it is gone, to those that subscribe",
        "It is sent nothing until it is resumed.",
    ),
    "message.failed": (
        "Messages have failed for good, to those that subscribe",
        "Those of one receiver that failed within ten seconds, with ten of them as examples.",
    ),
    "incident.opened": (
        "A cause of failures was found, to those that subscribe",
        "With the party at fault, what it holds up, and a link. Once for each occurrence, and if it is reopened.",
    ),
    "incident.resolved": ("It is over, to those that subscribe", "By a person, or without help."),
}


def _own_event(name: Turn | Change | Literal["message.failed"]) -> Sent:
    summary, description = _OWN_EVENTS[name]
    whom = "To receivers that have `relay` in `sources`; with an `owner`, about receivers of the same owner only."
    headers = tuple(_OF_OWN_EVENTS.get(header.name, header) for header in DELIVERY.headers)
    body = MessagesFailed if name == FAILED else IncidentEvent if name.startswith("incident.") else ReceiverEvent
    return Sent(name, summary, f"{description} {whom}", headers, _RETRIED, ("application/json",), body)


_OF_OWN_EVENTS: Final = {
    header.name: header
    for header in (
        SentHeader("ce-id", "Made of the type, the receiver, and what distinguishes it from others."),
        SentHeader("ce-source", "`relay`."),
        SentHeader("ce-type", "The name of this event."),
        SentHeader("ce-time", "When it was noticed."),
    )
}
SENT: Final = (DELIVERY, RESULT, FAILURE, PING, VERIFICATION, *map(_own_event, _OWN_EVENTS))
