"""Why something does not go on or ended, in plain words, and what mends it. Pure; values of the API go in.

The words of the API (`detail`, `advice`) say what happened; these say what it means to whoever looks at a page.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from relay.api.problem_advice import ADVICE


class Mend(NamedTuple):
    """What can be done about it from a page: a call of the API, or with an empty `method` the page at `path`."""

    label: str
    method: str
    path: str


class Cause(NamedTuple):
    """`title`: what it is; `advice`: what to do, empty: nothing."""

    title: str
    advice: str


WAITS: Final[Mapping[str, Cause]] = {
    "retry": Cause(
        "Waiting to try again", "It is tried again by itself. If the cause is mended, there is nothing to do."
    ),
    "rate": Cause("Waiting for its turn", "The receiver's rate limit is used up; it goes on by itself."),
    "paused": Cause("The receiver is paused", "Nothing is sent to it until it is resumed."),
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
        "Nobody reads the topic that it waits on. Start a worker for it; it then goes on by itself.",
    ),
    "settling": Cause("An attempt may still arrive", "It is looked into when that time is over."),
    "switched_off": Cause("The receiver is switched off", "Switch it on (enabled), and it goes on."),
    "verification": Cause(
        "The receiver's URL is not verified", "It has to prove that it wants this; then everything goes on by itself."
    ),
}
_UNKNOWN_WAIT: Final = Cause("Waiting", "")

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
    "timeout": Cause("No response in time", "It may be at work all the same: its timeout can be changed."),
    "disconnected": Cause("It closed the connection without a response", "See the receiver's own log."),
    "protocol": Cause("It does not speak HTTP", "Check the receiver's URL: scheme and port."),
    "invalid_url": Cause("The URL cannot be called", "Change the receiver's URL."),
    "no_token": Cause("The token endpoint gave no token", "Check the receiver's OAuth 2 settings."),
    "unauthorized": Cause("The token was refused", "Check the receiver's OAuth 2 settings."),
    "unreachable": Cause("There is no route to it", "Check the network of this machine."),
    "dns_silent": Cause("No name server answers", "Check the network of this machine."),
    "no_proxy": Cause("The proxy does not answer", "Check RELAY_EGRESS_PROXY."),
}
STATUSES: Final[Mapping[int, str]] = {
    400: "It says that the request is wrong: its answer should say why.",
    401: "It does not accept who we are. Usually the secret here is not the one that it checks with: compare them, or"
    " rotate the secret and give it the new one.",
    403: "It does not accept who we are. Usually the secret here is not the one that it checks with: compare them, or"
    " rotate the secret and give it the new one.",
    404: "There is nothing at that URL: change the receiver's URL.",
    405: "It takes no POST at that URL: change the receiver's URL.",
    410: "It says that it is gone for good.",
    413: "The payload is too large for it.",
    422: "It cannot do anything with what the payload says: its answer should say why.",
    429: "It wants less at once: give it a rate limit.",
    500: "It failed inside: see its own log.",
    502: "What stands before it could not reach it.",
    503: "It has too much to do, or is being maintained.",
    504: "What stands before it waited too long for it.",
}
"""What a status says of a receiver, or of a sender's callback."""


def wait_cause(wait: Mapping[str, Any]) -> Cause:
    """`wait`: a `waiting_for`. What the API advises comes first."""
    known = WAITS.get(wait["kind"], _UNKNOWN_WAIT)
    return Cause(known.title, wait.get("advice") or known.advice)


def end_advice(reason: str | None) -> str:
    """What to do about a delivery that was given up."""
    return ADVICE.get((reason or "").replace("_", "-"), "").replace("`", "")


def attempt_cause(attempt: Mapping[str, Any]) -> Cause:
    """What an attempt met, in words; without advice where all is well."""
    response, error = attempt["response"], attempt["error"]
    if response is not None:
        status = int(response["status"])
        return Cause(status_words(status), "" if attempt["outcome"] == "done" else STATUSES.get(status, ""))
    if error is not None:
        known = ERRORS.get(error["kind"], Cause(str(error["kind"]).replace("_", " "), ""))
        of_callback = attempt["kind"] == "callback"
        return Cause(
            known.title, known.advice.replace("the receiver's", "the callback's") if of_callback else known.advice
        )
    return Cause(str(attempt["outcome"]), "")


def status_words(status: int) -> str:
    """`503 Service Unavailable`."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
