"""Why a message has not arrived, and what to do about it, in plain words, for pages, commands and API alike. Pure.

What is looked at are words that the API has: what a delivery waits for, why it failed, what its last attempt met.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from relay.domain.progress import WaitKind
from relay.domain.reasons import is_of_callback


class Cause(NamedTuple):
    """`title`: what it is; `advice`: what to do, empty: nothing."""

    title: str
    advice: str


WAITS: Final[Mapping[WaitKind, Cause]] = {
    "retry": Cause(
        "Waiting to try again", "It is tried again by itself. If the cause is mended, there is nothing to do."
    ),
    "rate": Cause("Waiting for its turn", "The receiver's rate limit is used up; it goes on by itself."),
    "paused": Cause(
        "The receiver is paused",
        "Nothing is sent to it until the pause is over, or somebody resumes it (`relay receivers resume`).",
    ),
    "offline": Cause(
        "The receiver is down", "Only pings are sent. When one is answered, everything goes on by itself."
    ),
    "breaker": Cause(
        "The circuit breaker is open",
        "The receiver failed too often, so it is left alone for a moment. Mend the receiver; one attempt is let through"
        " by itself, and if it is taken, all others follow.",
    ),
    "order": Cause(
        "Behind another message",
        "Messages of one source are sent in order. See to the one in front, and this one follows.",
    ),
    "in_doubt": Cause(
        "Nobody knows whether it arrived", "The receiver is asked first, or it is sent again, as its settings say."
    ),
    "answer": Cause("The receiver is at work", "It has the message; its answer is still to come."),
    "callback": Cause("On the way to the sender", "The sender's callback is tried again by itself."),
    "no_worker": Cause(
        "No worker serves its lane",
        "Nobody reads the topic that it waits on. Start a worker for it (`relay run`, or `relay worker`); it then goes"
        " on by itself.",
    ),
    "configuration": Cause(
        "Its settings cannot be used",
        "A secret that they name is not set where the workers run, or a newer release wrote them. Set it for every"
        " process and start them again, or change the settings; what waits then goes on, in order.",
    ),
    "settling": Cause("An attempt may still arrive", "It is looked into when that time is over."),
    "switched_off": Cause("The receiver is switched off", "Set `enabled: true` of the receiver, and it goes on."),
    "queued": Cause("In the queue", "A worker takes it in its turn; there is nothing to do."),
    "verification": Cause(
        "The receiver's URL is not verified",
        "It has to prove that it wants this (`relay receivers verify` tries at once); then everything goes on by"
        " itself.",
    ),
}

ERRORS: Final[Mapping[str, Cause]] = {
    "blocked": Cause(
        "The address is blocked",
        "It is a private address, and those may not be called. Change the receiver's URL, or allow the network with"
        " RELAY_ALLOW_PRIVATE_NETWORKS.",
    ),
    "dns": Cause("The host name is not known", "Check the receiver's URL."),
    "refused": Cause("The connection was refused", "Nobody listens there: check the URL's port, and that it runs."),
    "tls": Cause("The TLS handshake failed", "Check the receiver's certificate, and the authority in its settings."),
    "connect_timeout": Cause("No connection in time", "A firewall may drop it, or the receiver is overloaded."),
    "timeout": Cause("No response in time", "It may be at work all the same: see its `timeout`."),
    "disconnected": Cause("It closed the connection without a response", "See the receiver's own log."),
    "protocol": Cause("It does not speak HTTP", "Check the receiver's URL: scheme and port."),
    "invalid_url": Cause("The URL cannot be called", "Change the receiver's URL."),
    "invalid_header": Cause("A header cannot be sent", "Change the receiver's headers, or those of the message."),
    "failed": Cause("The relay failed", "This is a fault of the relay: report it."),
    "no_token": Cause("The token endpoint gave no token", "Check the receiver's OAuth 2 settings."),
    "unauthorized": Cause("The token was refused", "Check the receiver's OAuth 2 settings."),
    "late": Cause("It missed its slot of the rate", "Nothing was sent; the relay sends it in a later slot."),
    "unreachable": Cause("There is no route to it", "Check the network of this machine."),
    "dns_silent": Cause("No name server answers", "Check the network of this machine."),
    "no_proxy": Cause("The proxy does not answer", "Check RELAY_EGRESS_PROXY."),
    "no_resources": Cause("This process has no descriptor or memory left", "Give it more of them."),
    "no_local_address": Cause("This machine has no port left for it", "Spread the receivers over more machines."),
}
"""Why nothing came back, by the kind of `NoResponse`."""

_WHO: Final = (
    "It does not accept who we are. Usually the secret here is not the one that it checks with: compare them, or"
    " rotate the secret and give it the new one."
)
STATUSES: Final[Mapping[int, str]] = {
    400: "It says that the request is wrong: its answer should say why.",
    401: _WHO,
    403: _WHO,
    404: "There is nothing at that URL: change the receiver's URL.",
    405: "It takes no POST at that URL: change the receiver's URL.",
    410: "It says that it is gone for good.",
    413: "The payload is too large for it.",
    422: "It cannot do anything with what the payload says: its answer should say why.",
    429: "It wants less at once: give it a `rate_limit`.",
    500: "It failed inside: see its own log.",
    502: "What stands before it could not reach it.",
    503: "It has too much to do, or is being maintained.",
    504: "What stands before it waited too long for it.",
}
"""What a status says of a receiver, or of a sender's callback."""
_REDIRECTED: Final = "It redirects, which is not followed: make the receiver's URL the one that it leads to."

ENDINGS: Final[Mapping[str, str]] = {
    "invalid": (
        "What came on the topic is no message: it lacks an id or a source, or cannot be read. Send it right, "
        "with an id of its own."
    ),
    "unknown_receiver": (
        "No receiver of that name is known: check its spelling, and that it is declared. A dead letter of it "
        "can be replayed once it is."
    ),
    "id_conflict": (
        "A message with this id came before, and was another one: other payload, type or receivers. An id "
        "stands for one message; give the new one an id of its own."
    ),
    "too_large": "Send less at once: a smaller payload, or fewer messages in a batch. `detail` says how much is taken.",
    "rejected": (
        "The receiver answered that it will never take this message. See its answer in the dead letter; once "
        "the receiver, or the message, is mended, replay it."
    ),
    "gone": (
        "The receiver said that it is gone (410), and is sent nothing any more. If it is back, resume it, and replay."
    ),
    "exhausted": (
        "Every attempt that the receiver's settings allow has failed. Once it works again, replay what failed."
    ),
    "expired": "The delivery became older than the receiver's settings allow. Once the receiver works, replay it.",
    "ambiguous": (
        "An attempt may or may not have arrived, and the receiver's settings forbid to send it twice. Ask the "
        "receiver; replay it if it has nothing."
    ),
    "backlog_full": "Too many messages waited for the receiver. Once it keeps up again, replay what failed.",
    "answer_timeout": (
        "The receiver accepted the message, and did not answer in time. Ask the receiver; a replay sends the "
        "message again."
    ),
    "receiver_forgot": "The receiver accepted the message, and later knew nothing of it. Replay it.",
    "callback_rejected": (
        "The sender's callback refused the result for good. Mend it, and replay the dead letter: only the "
        "result is sent again."
    ),
    "callback_exhausted": (
        "The sender's callback could not be reached for too long, or too many results waited for it. Once it works, "
        "replay the dead letter: only the result is sent again."
    ),
    "poison": (
        "The message could not be worked on, again and again. This is a fault of the relay: report it; a "
        "newer version may take it when it is replayed."
    ),
    "lost": (
        "Kafka lost the record in which the message waited. Its content is gone: have the sender send it again, under "
        "a new id."
    ),
    "discarded": "Somebody decided that this delivery ends. A replay takes that back.",
}
"""What to do about a delivery that was given up, by its reason."""
_TRIED_OUT: Final = frozenset({"exhausted", "expired", "callback_exhausted", "callback_rejected"})
"""Reasons that are no cause: that is what the last attempt met."""


def advice_on_wait(kind: WaitKind, *, reason: str | None = None, last_status: int | None = None) -> str:
    """What to do about a delivery that waits, or whose result does. `reason`, `last_status`: of its last attempt."""
    usual = WAITS[kind].advice
    if kind not in ("retry", "breaker", "offline", "callback"):
        return usual
    cause = _met(reason, last_status)
    if kind == "callback":
        cause = of_callback(cause)
    return " ".join(filter(None, (cause, usual)))


def advice_on_end(reason: str | None, last_status: int | None = None) -> str:
    """What to do about a delivery that was given up, or whose result was."""
    if reason is None:
        return ""
    usual = ENDINGS.get(reason, "")  # a newer version may have more
    if reason not in _TRIED_OUT:
        return usual
    cause = _met(None, last_status)
    if is_of_callback(reason):
        cause = of_callback(cause)
    return " ".join(filter(None, (cause, usual)))


def of_callback(advice: str) -> str:
    """What is advised about a receiver, as it is said of a sender's callback."""
    return advice.replace("the receiver's", "the callback's")


def _met(reason: str | None, status: int | None) -> str:
    if reason is not None and reason in ERRORS:
        return ERRORS[reason].advice
    if status is None:
        return ""
    return _REDIRECTED if 300 <= status < 400 else STATUSES.get(status, "")
