"""Classifies the response to a POST, for the delivery and for the receiver's health."""

from collections.abc import Sequence
from typing import Final, Literal, assert_never

from msgspec import Struct

from relay.domain.errors import ExpressionError
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.expression import Variables, work_budget
from relay.domain.pattern import step_budget
from relay.domain.receiver import CodeClasses, OutcomeClass, OutcomeRule
from relay.domain.schedule import requested_wait

CodeClass = Literal["accepted", "delivered", "not_now", "ambiguous", "not_processed", "rejected", "gone"]
"""Classes of attempts in records and statistics: an `answered` one counts as `delivered`."""

_TABLE: Final[dict[int, OutcomeClass]] = {
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

_RECEIVED: Final = frozenset[OutcomeClass]({"accepted", "answered", "delivered"})
"""Classes in which the receiver has the message."""
UNCLEAR: Final = "unclear"
CONTROL_HEADER: Final = "webhook-delivery"


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
    """The answer follows later. `ask_after_s`: requested delay of the first status GET; `location`: that of a 202, as
    received."""

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
    """The receiver may or may not have the message. `kind`: of the NoResponse; `status`; or UNCLEAR if the receiver has
    it, but a rule about its response could not be evaluated. `error`: why not."""

    retry_after_s: float | None
    status: int | None
    kind: str
    error: str = ""


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


class Ruling(Struct, frozen=True, gc=False):
    """The rule that decided about a response, in words. `code_class`: the class that it gave. `disables`: the receiver
    has the message, and wants no other one."""

    rule: str
    code_class: CodeClass
    disables: bool = False


def judge(
    response: Response, rules: Sequence[OutcomeRule], variables: Variables, *, codes: CodeClasses, now: float
) -> tuple[Outcome, Ruling | None]:
    """The outcome by the first of `rules` that is true; without one, as `classify`, and None.

    A rule that cannot be evaluated counts as not true if the status alone is a failure. Otherwise the receiver has
    the message, and its response must not be guessed at. The patterns of all rules have one budget.
    """
    usual = class_of(response.status, codes)
    with work_budget, step_budget:
        for rule in rules:
            try:
                applies = rule.when.is_true(variables)
            except ExpressionError as error:
                if usual in _RECEIVED:
                    return Ambiguous(None, response.status, UNCLEAR, str(error)), Ruling(str(rule), "ambiguous")
                continue
            if applies:
                return _by_rule(rule, response, now), Ruling(str(rule), recorded_class(rule.is_))
    return _of_response(response, usual, now), None


def controlled(response: Response, outcome: Outcome, ruling: Ruling | None) -> tuple[Outcome, Ruling | None]:
    """`outcome` and `ruling` of a response with the header CONTROL_HEADER, which may end the delivery: `abort-message`
    forbids further attempts, and `disable` further requests, as a 410 does. Other values mean nothing.

    Source: Standard Webhooks, proposal of delivery control.
    """
    said, status = response.headers[CONTROL_HEADER].strip().lower(), response.status
    rule = f"{CONTROL_HEADER}: {said}"
    if isinstance(outcome, Answered | Delivered | Accepted):
        usual: CodeClass = "accepted" if isinstance(outcome, Accepted) else "delivered"
        return outcome, Ruling(rule, usual, disables=True) if said == "disable" else ruling
    match said:
        case "disable":
            return Gone(status), Ruling(rule, "gone")
        case "abort-message":
            return Rejected(status), Ruling(rule, "rejected")
    return outcome, ruling


def _by_rule(rule: OutcomeRule, response: Response, now: float) -> Outcome:
    """A rule that says `delivered` means that the body is no answer."""
    return Delivered(response.status) if rule.is_ == "delivered" else _of_response(response, rule.is_, now)


def _of_response(response: Response, code_class: OutcomeClass, now: float) -> Outcome:
    status = response.status
    if code_class == "answered" or (code_class == "delivered" and (response.body or response.truncated)):
        return Answered(status, response.headers.get("content-type"), response.body, response.truncated)
    if code_class == "delivered":
        return Delivered(status)
    wait_s = requested_wait(response.headers, now)
    match code_class:
        case "accepted":
            # that of a 201 is what was created, which a GET finds in every state: it would count as the answer
            location = response.headers.get("location") if status == 202 else None
            return Accepted(status, response.body, wait_s, location)
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


def recorded_class(outcome_class: OutcomeClass) -> CodeClass:
    return "delivered" if outcome_class == "answered" else outcome_class


def class_of(status: int, codes: CodeClasses) -> OutcomeClass:
    """The class of a status code: the receiver's own lists first, then the table."""
    if status in codes:
        return codes[status]
    if status in _TABLE:
        return _TABLE[status]
    if 200 <= status < 300:
        return "delivered"
    if 300 <= status < 600:
        return "not_processed"
    return "ambiguous"  # not an HTTP status: RFC 9110, section 15, says to treat it as a 500


def usual_rule(status: int, codes: CodeClasses) -> str:
    """Which rule decides about a status code if no rule of `outcomes` does, in words."""
    return f"codes.{codes[status]}: {status}" if status in codes else f"the usual meaning of {status}"


def healthy(outcome: Outcome) -> bool | None:
    """Whether `outcome` counts as success or failure for the receiver's breaker; None if it counts as neither."""
    match outcome:
        case Answered() | Delivered() | Accepted() | Rejected() | Gone() | Ambiguous(kind="unclear"):
            return True
        case NotNow(status=429):
            return None
        case NotProcessed(kind=kind) if kind in _OURS:
            return None
        case NotNow() | Ambiguous() | NotProcessed():
            return False
    assert_never(outcome)


def _fault(status: int) -> str:
    if status < 300:
        return "unwanted"
    if status < 400:
        return "redirect"
    return "client_error" if status < 500 else "server_error"
