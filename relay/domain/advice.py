"""Advice for operators: why a message has not arrived, and what to do about it. Shared by pages, CLI and API. Pure.

The advice is looked up by the API's own terms: the wait kind, the failure reason, and the result of the last attempt.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from relay.domain.reasons import is_of_callback
from relay.domain.state import WaitKind


class Cause(NamedTuple):
    """`title`: the cause in a few words. `advice`: what to do about it; empty if there is nothing to do."""

    title: str
    advice: str


WAITS: Final[Mapping[WaitKind, Cause]] = {
    "retry": Cause(
        "Waiting to try again", "The relay retries automatically. Once the cause is fixed, there is nothing else to do."
    ),
    "delayed": Cause(
        "Not due yet", "Its sender asked for a later time. Until then it can be cancelled (`relay messages cancel`)."
    ),
    "rate": Cause("Rate limited", "The receiver's rate limit is used up; the message is sent in a later slot."),
    "paused": Cause(
        "The receiver is paused",
        "Nothing is sent to it until the pause ends or an operator resumes it (`relay receivers resume`).",
    ),
    "offline": Cause(
        "The receiver is down", "The relay sends only pings. Deliveries resume as soon as one is answered."
    ),
    "breaker": Cause(
        "The circuit breaker is open",
        "The receiver failed too often, so the relay stopped sending for a while. Fix the receiver; the relay sends one"
        " probe automatically, and if it succeeds, all other messages follow.",
    ),
    "order": Cause(
        "Behind another message",
        "Messages of one source are sent in order. Once the message ahead of it is delivered or given up, this one"
        " follows.",
    ),
    "in_doubt": Cause(
        "It is unknown whether it arrived",
        "The relay first asks the receiver, or sends it again, depending on the receiver's settings.",
    ),
    "answer": Cause("The receiver is processing it", "The receiver has the message and has not answered yet."),
    "callback": Cause("On the way to the sender", "The relay retries the sender's callback automatically."),
    "no_worker": Cause(
        "No worker serves its lane",
        "No worker reads the topic that it waits on. Start a worker for it (`relay run`, or `relay worker`); delivery"
        " then continues automatically.",
    ),
    "configuration": Cause(
        "Its settings cannot be used",
        "A secret that they name is not set where the workers run, or a newer release wrote them. Set the secret for"
        " every process and restart them, or change the settings; waiting messages are then sent in order.",
    ),
    "settling": Cause("An attempt may still arrive", "The relay checks it when that time is over."),
    "switched_off": Cause("The receiver is switched off", "Set `enabled: true` on the receiver to resume deliveries."),
    "queued": Cause("In the queue", "A worker processes it in turn; there is nothing to do."),
    "verification": Cause(
        "The receiver's URL is not verified",
        "The receiver has to pass its verification handshake (`relay receivers verify` runs it at once); deliveries"
        " then start automatically.",
    ),
}

ERRORS: Final[Mapping[str, Cause]] = {
    "blocked": Cause(
        "The address is blocked",
        "It is a private address, which the relay does not call by default. Change the receiver's URL, or allow the"
        " network with RELAY_ALLOW_PRIVATE_NETWORKS.",
    ),
    "dns": Cause("The host name is not known", "Check the receiver's URL."),
    "refused": Cause("The connection was refused", "Nothing listens there: check the URL's port, and that it runs."),
    "tls": Cause("The TLS handshake failed", "Check the receiver's certificate, and the authority in its settings."),
    "connect_timeout": Cause("No connection in time", "A firewall may drop it, or the receiver is overloaded."),
    "timeout": Cause("No response in time", "The receiver may still be processing it: see its `timeout`."),
    "disconnected": Cause("It closed the connection without a response", "Check the receiver's logs."),
    "protocol": Cause("It does not speak HTTP", "Check the receiver's URL: scheme and port."),
    "invalid_url": Cause("The URL cannot be called", "Change the receiver's URL."),
    "invalid_header": Cause("A header cannot be sent", "Change the receiver's headers, or those of the message."),
    "failed": Cause("The relay failed", "This is a bug in the relay: report it."),
    "no_token": Cause("The token endpoint gave no token", "Check the receiver's OAuth 2 settings."),
    "unauthorized": Cause("The token was refused", "Check the receiver's OAuth 2 settings."),
    "late": Cause("It missed its rate limit slot", "Nothing was sent; the relay sends it in a later slot."),
    "unreachable": Cause("There is no route to it", "Check the network of this machine."),
    "dns_silent": Cause("No name server answers", "Check the network of this machine."),
    "no_proxy": Cause("The proxy does not answer", "Check RELAY_EGRESS_PROXY."),
    "no_resources": Cause(
        "This process has no file descriptors or memory left", "Raise its file descriptor or memory limit."
    ),
    "no_local_address": Cause("This machine has no local port left", "Spread the receivers over more machines."),
}
"""Why there was no response, by the kind of `NoResponse`."""

_WHO: Final = (
    "It rejected the relay's credentials. Usually the secret here is not the one that it checks with: compare them, or"
    " rotate the secret and give it the new one."
)
STATUSES: Final[Mapping[int, str]] = {
    400: "It says that the request is invalid: its answer should say why.",
    401: _WHO,
    403: _WHO,
    404: "There is nothing at that URL: change the receiver's URL.",
    405: "It accepts no POST at that URL: change the receiver's URL.",
    410: "It says that it is gone permanently.",
    413: "The payload is too large for it.",
    422: "It cannot process this payload: its answer should say why.",
    429: "It receives too many requests: set a `rate_limit`.",
    500: "It returned 500: check its logs.",
    502: "Its proxy or load balancer could not reach it.",
    503: "It is overloaded or under maintenance.",
    504: "Its proxy or load balancer timed out waiting for it.",
}
"""The meaning of a status, from a receiver or from a sender's callback."""
_REDIRECTED: Final = "It redirects, which the relay does not follow: set the receiver's URL to the redirect's target."

ENDINGS: Final[Mapping[str, str]] = {
    "invalid": (
        "The record on the topic is not a message: it lacks an id or a source, or cannot be read. Correct it and "
        "send it with a new id. If `detail` names an expression, correct the receiver's settings, and replay it."
    ),
    "unknown_receiver": (
        "No receiver has that name: check its spelling, and that it is declared. Its dead letters can be replayed "
        "once it is declared."
    ),
    "id_conflict": (
        "An earlier message with this id had another payload, type or receivers. Every message needs an id of its "
        "own; send the new one with a new id."
    ),
    "too_large": "Send less at once: a smaller payload, or fewer messages in a batch. `detail` has the limit.",
    "rejected": (
        "The receiver permanently rejected this message. See its answer in the dead letter; once the receiver or the "
        "message is fixed, replay it."
    ),
    "gone": (
        "The receiver said that it is gone (410), so the relay stopped sending to it. If it is back, resume and replay."
    ),
    "exhausted": (
        "Every attempt that the receiver's settings allow has failed. Once it works again, replay the dead letters."
    ),
    "expired": (
        "The delivery became older than the receiver's settings or the message's own deadline allow. Once the receiver "
        "works, replay it."
    ),
    "ambiguous": (
        "An attempt may or may not have arrived, and the receiver's settings forbid sending it twice. Check with the "
        "receiver; replay it if it did not arrive."
    ),
    "backlog_full": "Too many messages waited for the receiver. Once it keeps up again, replay the dead letters.",
    "answer_timeout": (
        "The receiver accepted the message but did not answer in time. Check with the receiver; a replay sends the "
        "message again."
    ),
    "receiver_forgot": "The receiver accepted the message, but later had no record of it. Replay it.",
    "callback_rejected": (
        "The sender's callback permanently rejected the result. Fix the callback, then replay the dead letter: only "
        "the result is sent again."
    ),
    "callback_exhausted": (
        "The sender's callback was unreachable for too long, or too many results waited for it. Once it works, "
        "replay the dead letter: only the result is sent again."
    ),
    "poison": (
        "Processing this message failed repeatedly. This is a bug in the relay: report it; a newer version may be "
        "able to process it when it is replayed."
    ),
    "lost": (
        "Kafka lost the record in which the message waited. Its content is gone: have the sender send it again, under "
        "a new id."
    ),
    "discarded": "An operator discarded this delivery. A replay undoes that.",
    "replaced": "A newer message of the same key took its place before it was sent. A replay sends it all the same.",
    "cancelled": "This delivery was cancelled before it was sent. A replay undoes that.",
}
"""What to do about a delivery that was given up, by its reason."""
_TRIED_OUT: Final = frozenset({"exhausted", "expired", "callback_exhausted", "callback_rejected"})
"""Reasons that name no cause; the result of the last attempt does."""


def advice_on_wait(kind: WaitKind, *, reason: str | None = None, last_status: int | None = None) -> str:
    """What to do about a waiting delivery or result. `reason` and `last_status` are those of its last attempt."""
    usual = WAITS[kind].advice
    if kind not in ("retry", "breaker", "offline", "callback"):
        return usual
    cause = _advice_on_attempt(reason, last_status)
    if kind == "callback":
        cause = of_callback(cause)
    return " ".join(filter(None, (cause, usual)))


def advice_on_end(reason: str | None, last_status: int | None = None) -> str:
    """What to do about a delivery or a result that was given up."""
    if reason is None:
        return ""
    usual = ENDINGS.get(reason, "")  # a newer version may have more
    if reason not in _TRIED_OUT:
        return usual
    cause = _advice_on_attempt(None, last_status)
    if is_of_callback(reason):
        cause = of_callback(cause)
    return " ".join(filter(None, (cause, usual)))


def of_callback(advice: str) -> str:
    """Advice about a receiver, reworded for a sender's callback."""
    return advice.replace("the receiver's", "the callback's")


def status_words(status: int) -> str:
    """`503 Service Unavailable`."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _advice_on_attempt(reason: str | None, status: int | None) -> str:
    if reason is not None and reason in ERRORS:
        return ERRORS[reason].advice
    if status is None:
        return ""
    return _REDIRECTED if 300 <= status < 400 else STATUSES.get(status, "")
