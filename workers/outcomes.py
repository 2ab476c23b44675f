"""What the response to a POST means for its delivery, and what has to be known before one is sent."""

from msgspec import structs

from relay.domain.errors import ExpressionError
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.expression import Variables
from relay.domain.outcome import CONTROL_HEADER, Accepted, Ambiguous, Outcome, Ruling, classify, controlled, judge
from relay.domain.receiver import Receiver
from relay.domain.request_form import RequestForm
from relay.domain.requests import own_request
from relay.domain.secrecy import redacted
from relay.domain.shown_exchange import failure_detail
from relay.domain.status import StatusTemplateError, status_url, unaskable
from relay.domain.status_chain import ChainPosition, first_position
from relay.domain.urls import location_url
from relay.domain.variables import delivery_variables, response_variables
from relay.state.rows import Result
from workers.delivery import Delivery, can_be_asked


def unfillable(work: Delivery, form: RequestForm) -> str | None:
    """Why the receiver's own form of requests cannot be filled in for the first attempt; None if it can."""
    try:
        own_request(form, work.receiver.post, _variables(work, 1))
    except ExpressionError as error:
        return str(error)
    return None


def outcome_of(work: Delivery, exchange: Exchange, now: float) -> tuple[Outcome, Ruling | None]:
    """The meaning of what followed the POST of `work`, and the receiver's own rule that decided. `now`: Unix
    seconds."""
    receiver, ruling = work.receiver, None
    if not receiver.outcomes or not isinstance(exchange, Response):
        outcome = classify(exchange, codes=receiver.post.codes, now=now)
    else:
        variables = {**_variables(work, work.attempts), **response_variables(exchange)}
        outcome, ruling = judge(exchange, receiver.outcomes, variables, codes=receiver.post.codes, now=now)
    if isinstance(exchange, Response) and CONTROL_HEADER in exchange.headers:
        return controlled(exchange, outcome, ruling)
    return outcome, ruling


def _variables(work: Delivery, attempt: int) -> Variables:
    return delivery_variables(work.hop, work.record.value or b"", attempt=attempt)


def failure(work: Delivery, outcome: Outcome, request: Request, exchange: Exchange, ruling: Ruling | None) -> str:
    """Why the attempt failed, with the rule that decided so."""
    post = work.receiver.post
    detail = failure_detail(exchange, post, url=request.url, method=request.method)
    if ruling is None:
        return detail
    why = outcome.error if isinstance(outcome, Ambiguous) and outcome.error else f"by {ruling.rule}"
    return redacted(f"{why}; {detail}", post.secrets)


def unaskable_later(work: Delivery, receiver: Receiver) -> str | None:
    """Why the receiver could not be asked about this delivery if its response were lost; None if it could, or if it
    never can."""
    if receiver.status_steps:
        return _first_position(work)[1] if can_be_asked(receiver) else None
    return None if receiver.status_endpoint is None else unaskable(receiver.status_endpoint, work.hop.delivery)


def _first_position(work: Delivery, response: Response | None = None) -> tuple[ChainPosition | None, str | None]:
    """The first position of the status chain, or why it cannot begin."""
    hop = structs.replace(work.hop, attempt=work.attempts)
    try:
        return first_position(work.receiver, hop, work.record.value or b"", response), None
    except ExpressionError as error:
        return None, str(error)


def accepted(work: Delivery, outcome: Accepted, exchange: Exchange) -> Result:
    """The answer arrives later: the URL to poll, and when. Without one it can still use the answer URL, or else the
    deadline ends it."""
    receiver, delivery = work.receiver, work.hop.delivery
    if receiver.status_steps:
        at, fault = _first_position(work, exchange if isinstance(exchange, Response) else None)
        if at is None:
            return Result("accepted", outcome.status, detail=fault, ask_after_s=outcome.ask_after_s)
        return Result("accepted", outcome.status, status_url=at.url, ask_after_s=outcome.ask_after_s, chain=at.text)
    url = location_url(receiver.post.url, outcome.location) if outcome.location else None
    if url is None and receiver.status_endpoint is not None:
        try:
            url = status_url(receiver.status_endpoint, delivery, response_body=outcome.body)
        except StatusTemplateError as error:
            return Result("accepted", outcome.status, detail=str(error), ask_after_s=outcome.ask_after_s)
    fault = "its Location leads to no URL at the origin of post_endpoint" if url is None and outcome.location else None
    return Result("accepted", outcome.status, status_url=url, detail=fault, ask_after_s=outcome.ask_after_s)
