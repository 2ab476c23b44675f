"""Advice for operators: why a message has not arrived, and what to do about it. Shared by pages, CLI and API. Pure.

The advice is looked up by the API's own terms: the wait kind, the failure reason, and the result of the last attempt.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from relay.domain.exchange import REDIRECTS
from relay.domain.reasons import REASONS, is_of_callback
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
        "Messages with the same order key are sent in order. Once the message ahead of it is delivered or given up,"
        " this one follows.",
    ),
    "in_doubt": Cause(
        "It is unknown whether it arrived",
        "The relay first asks the receiver, or sends it again, depending on the receiver's settings.",
    ),
    "answer": Cause(
        "The receiver is processing it",
        "Nothing needs to be done: the relay waits for the receiver's response, or for its later answer.",
    ),
    "callback": Cause("On the way to the sender", "The relay retries the sender's callback automatically."),
    "no_worker": Cause(
        "No worker serves its lane",
        "No worker reads the topic that it waits on. Start a worker for it (`relay run`, or `relay worker`); delivery"
        " then continues automatically.",
    ),
    "configuration": Cause(
        "Its settings cannot be used",
        "A secret that the settings name is not set where the workers run, or a newer release wrote them. Set the"
        " secret for every process and restart them, or change the settings; waiting messages are then sent in order.",
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
        "It is a private address or plain http, which the relay does not call by default. Change the receiver's URL, or"
        " allow it with RELAY_ALLOW_PRIVATE_NETWORKS or RELAY_ALLOW_HTTP.",
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
    "token_unavailable": Cause("The token endpoint is failing", "Check the server of the receiver's token endpoint."),
    "unauthorized": Cause("The token was refused", "Check the receiver's OAuth 2 settings."),
    "late": Cause("It missed its rate limit slot or its deadline", "Nothing was sent; until then it is tried again."),
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
    usual = REASONS[reason].advice if reason in REASONS else ""  # a newer version may have more
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
    return _REDIRECTED if status in REDIRECTS else STATUSES.get(status, "")
