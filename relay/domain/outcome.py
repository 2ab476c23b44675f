"""Classifies the response to a POST, for the delivery and for the receiver's health."""

from typing import Final, Literal, assert_never

from msgspec import Struct

from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.receiver import CodeClasses
from relay.domain.schedule import parse_retry_after

CodeClass = Literal["accepted", "delivered", "not_now", "ambiguous", "not_processed", "rejected", "gone"]

_TABLE: Final[dict[int, CodeClass]] = {
    202: "accepted",
    429: "not_now",
    503: "not_now",
    408: "ambiguous",
    500: "ambiguous",
    502: "ambiguous",
    504: "ambiguous",
    410: "gone",
    400: "rejected",
    413: "rejected",
    415: "rejected",
    422: "rejected",
}

_OURS: Final = frozenset(
    {"blocked", "invalid_url", "invalid_header", "failed", "no_resources", "no_local_address", "no_proxy"}
)
"""Kinds of NoResponse that say nothing about the receiver: the relay did not, or could not, send the request."""


class Answered(Struct, frozen=True, gc=False):
    """Delivered, and the body is the answer. `truncated`: only its beginning was received."""

    status: int
    content_type: str | None
    body: bytes
    truncated: bool


class Delivered(Struct, frozen=True, gc=False):
    """Delivered, without an answer."""

    status: int


class Accepted(Struct, frozen=True, gc=False):
    """The answer follows later. `ask_after_s`: requested delay of the first status GET; `location`: as received."""

    status: int
    body: bytes
    ask_after_s: float | None
    location: str | None


class NotNow(Struct, frozen=True, gc=False):
    """The receiver wants no requests for a while. `counted`: whether this used up an attempt."""

    retry_after_s: float | None
    status: int
    counted: bool


class Ambiguous(Struct, frozen=True, gc=False):
    """The receiver may or may not have the message. `kind`: of the NoResponse, or `status`."""

    retry_after_s: float | None
    status: int | None
    kind: str


class NotProcessed(Struct, frozen=True, gc=False):
    """The receiver certainly has not processed the message. `kind`: of the NoResponse, `redirect`, `client_error`,
    `server_error`, or `unwanted` (a 2xx that this receiver's settings do not count as success)."""

    retry_after_s: float | None
    status: int | None
    kind: str


class Gone(Struct, frozen=True, gc=False):
    """The endpoint no longer exists: pause the receiver."""

    status: int


class Rejected(Struct, frozen=True, gc=False):
    """The receiver will never accept this message."""

    status: int


Outcome = Answered | Delivered | Accepted | NotNow | Ambiguous | NotProcessed | Gone | Rejected


def classify(exchange: Exchange, *, codes: CodeClasses, now: float) -> Outcome:
    """The outcome of a POST. `now`: Unix seconds, for the date form of `Retry-After`.

    The status line counts, even if the body was cut off.
    """
    if isinstance(exchange, NoResponse):
        if exchange.sent:
            return Ambiguous(None, None, exchange.kind)
        return NotProcessed(None, None, exchange.kind)
    return _of_response(exchange, class_of(exchange.status, codes), now)


def _of_response(response: Response, code_class: CodeClass, now: float) -> Outcome:
    status = response.status
    wait_s = parse_retry_after(response.headers.get("retry-after"), now)
    match code_class:
        case "accepted":
            return Accepted(status, response.body, wait_s, response.headers.get("location"))
        case "delivered":
            return _delivered(response)
        case "not_now":
            return NotNow(wait_s, status, counted=status != 429)
        case "ambiguous":
            return Ambiguous(wait_s, status, "status")
        case "not_processed":
            return NotProcessed(wait_s, status, _fault(status))
        case "rejected":
            return Rejected(status)
        case "gone":
            return Gone(status)
    assert_never(code_class)


def class_of(status: int, codes: CodeClasses) -> CodeClass:
    """The class of a status code: the receiver's own list first (in the order of its fields), then the table."""
    if status in codes.delivered:
        return "delivered"
    if status in codes.not_now:
        return "not_now"
    if status in codes.ambiguous:
        return "ambiguous"
    if status in codes.not_processed:
        return "not_processed"
    if status in codes.rejected:
        return "rejected"
    if status in codes.gone:
        return "gone"
    if status in _TABLE:
        return _TABLE[status]
    if 200 <= status < 300:
        return "delivered"
    if 300 <= status < 600:
        return "not_processed"
    return "ambiguous"  # not an HTTP status: RFC 9110, section 15, says to treat it as a 500


def healthy(outcome: Outcome) -> bool | None:
    """Whether `outcome` counts as success or failure for the receiver's breaker; None if it counts as neither."""
    match outcome:
        case Answered() | Delivered() | Accepted() | Rejected() | Gone():
            return True
        case NotNow(status=429):
            return None
        case NotProcessed(kind=kind) if kind in _OURS:
            return None
        case NotNow() | Ambiguous() | NotProcessed():
            return False
    assert_never(outcome)


def _delivered(response: Response) -> Answered | Delivered:
    if not response.body and not response.truncated:
        return Delivered(response.status)
    return Answered(response.status, response.headers.get("content-type"), response.body, response.truncated)


def _fault(status: int) -> str:
    if status < 300:
        return "unwanted"
    if status < 400:
        return "redirect"
    return "client_error" if status < 500 else "server_error"
