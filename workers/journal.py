"""The journal of requests that the steps make, and how a request becomes an `Attempt` with masked secrets."""

from collections.abc import Mapping
from math import inf
from typing import Final, Protocol

from msgspec import Struct

from relay.domain.attempt import SHOWN_BODY, Attempt, AttemptFailure, AttemptKind, AttemptOutcome, AttemptResponse
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.identity import DeliveryId
from relay.domain.outcome import CodeClass, Ruling, class_of, recorded_class
from relay.domain.receiver import Endpoint
from relay.domain.secrecy import redacted
from relay.domain.shown_exchange import shown_body, shown_request_headers, shown_response_headers, shown_url
from relay.engine.decision import Dead, Decision, Done, Later, Resend
from relay.engine.settlement import taken_back
from relay.state.attempts import Change
from relay.state.rows import Stage

KEPT_BODY: Final = 2 * SHOWN_BODY
"""Bytes of a response's body that are kept until the attempt is recorded."""
_OF_CHANGE: Final[Mapping[Change, AttemptOutcome]] = {
    Change.RETRY: "retry",
    Change.DOUBT: "doubt",
    Change.STEP: "working",
    Change.RELEASED: "released",
}


class RequestPurpose(Struct, frozen=True, gc=False):
    """The target and purpose of a request. `endpoint_id`: as of a work; `endpoint`: knows the secrets to mask.
    `delivery` None: a ping. `attempt`: 1-based, counted per kind. `posts`: the delivery's POSTs before it. `life`:
    the life of its receiver's name; `number`: the delivery's, where those of the receiver are numbered."""

    kind: AttemptKind
    endpoint_id: str
    endpoint: Endpoint
    delivery: DeliveryId | None = None
    generation: int = 0
    attempt: int = 1
    posts: int = 0
    life: str = ""
    number: int | None = None


class Journal(Protocol):
    """Records every request; must not raise, and must not block."""

    def record(
        self, about: RequestPurpose, request: Request, exchange: Exchange, decision: Decision, seconds: float
    ) -> None:
        """The request ended just now, after `seconds`."""
        ...


class EndedRequest(Struct, frozen=True, gc=False):
    """An ended request, reduced to what an `Attempt` needs. `later` None: it is done. `ruling`: as in a decision.
    `unasked`: why its receiver, which accepted it, cannot be asked for the answer."""

    about: RequestPurpose
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    exchange: Exchange
    later: Later | Dead | Resend | None
    started_at: float
    seconds: float
    ruling: Ruling | None = None
    unasked: str | None = None


def ended_request(
    about: RequestPurpose,
    request: Request,
    exchange: Exchange,
    decision: Decision,
    *,
    started_at: float,
    seconds: float,
) -> EndedRequest:
    """Drops the request's body, and the part of the response's body that is never displayed. `started_at`: Unix
    seconds."""
    if isinstance(exchange, Response) and len(exchange.body) > KEPT_BODY:
        exchange = Response(exchange.status, exchange.headers, exchange.body[:KEPT_BODY], truncated=True)
    later, unasked = None, None
    if not isinstance(decision, Done):
        later = decision
    elif decision.stage is Stage.AWAITING and decision.result is not None:
        unasked = decision.result.detail
    ruling = None if isinstance(decision, Resend) else decision.ruling
    sent = request.method, request.url, request.headers
    return EndedRequest(about, *sent, exchange, later, started_at, seconds, ruling, unasked)


def attempt_of(ended: EndedRequest) -> Attempt:
    """The `Attempt` to record, with secrets masked."""
    about, exchange, later = ended.about, ended.exchange, ended.later
    receiver, source_id, message_id = about.delivery or _pinged(about.endpoint_id)
    return Attempt(
        about.kind,
        round(ended.started_at * 1e3) / 1e3,  # several times as fast as with a number of digits
        round(ended.seconds * 1e6) / 1e3,
        ended.method,
        shown_url(ended.url, about.endpoint, (source_id, message_id)),
        shown_request_headers(ended.headers, about.endpoint),
        outcome_of(about.kind, exchange, later),
        receiver,
        source_id,
        message_id,
        about.generation,
        about.attempt,
        _response(exchange, about.endpoint) if isinstance(exchange, Response) else None,
        _failure(exchange, about.endpoint) if isinstance(exchange, NoResponse) else None,
        reason_of(later),
        _detail(ended),
        _next_at(ended),
        _code_class(ended) if about.kind == "post" else None,
        about.life,
        _rule(ended) if about.kind == "post" else None,
        about.number,
        counted=not (about.kind == "post" and isinstance(later, Later) and taken_back(later)),
    )


def _pinged(endpoint_id: str) -> tuple[str | None, str | None, None]:
    """The receiver or the source whose endpoint `endpoint_id` names."""
    kind, _, name = endpoint_id.partition(":")
    return (name, None, None) if kind == "r" else (None, name, None)


def _response(response: Response, endpoint: Endpoint) -> AttemptResponse:
    body, truncated = shown_body(response, endpoint, SHOWN_BODY)
    return AttemptResponse(response.status, shown_response_headers(response.headers, endpoint), body, truncated)


def _failure(failure: NoResponse, endpoint: Endpoint) -> AttemptFailure:
    return AttemptFailure(failure.kind, redacted(failure.detail, endpoint.secrets), failure.sent)


def outcome_of(kind: AttemptKind, exchange: Exchange, decision: Decision | None) -> AttemptOutcome:
    """The outcome of a request of that kind. `decision` None: it is done."""
    match decision:
        case None | Done():
            return "done"
        case Dead():
            return "dead"
        case Resend():
            return "retry"
    if kind == "ping" and decision.pause_s == inf:
        return "dead"
    if kind == "ping" and decision.healthy is not None:
        return "done" if decision.healthy else "retry"
    if kind == "status" and decision.detail is None and isinstance(exchange, Response):
        return "working"
    return _OF_CHANGE[decision.change]


def reason_of(later: Later | Dead | Resend | None) -> str | None:
    """Why it is not done; None if it is."""
    if later is None:
        return None
    return "the receiver never saw it" if isinstance(later, Resend) else later.reason


def _next_at(ended: EndedRequest) -> float | None:
    if not isinstance(ended.later, Later) or not 0 < ended.later.due_in_s < inf:
        return None
    return round(ended.started_at + ended.seconds + ended.later.due_in_s, 3)


def _detail(ended: EndedRequest) -> str | None:
    if isinstance(ended.later, Later | Dead):
        return ended.later.detail or None
    return None if ended.unasked is None else f"the receiver cannot be asked for its answer: {ended.unasked}"


def _code_class(ended: EndedRequest) -> CodeClass:
    if ended.ruling is not None:
        return ended.ruling.code_class
    if isinstance(ended.exchange, Response):
        return recorded_class(class_of(ended.exchange.status, ended.about.endpoint.codes))
    return "ambiguous" if ended.exchange.sent else "not_processed"


def _rule(ended: EndedRequest) -> str | None:
    if ended.ruling is not None:
        return redacted(ended.ruling.rule, ended.about.endpoint.secrets)
    listed = ended.about.endpoint.codes
    if isinstance(ended.exchange, Response) and ended.exchange.status in listed:
        return f"codes.{listed[ended.exchange.status]}"
    return None
