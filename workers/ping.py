"""A ping: asks an endpoint in a long outage whether it accepts requests again, without spending a message's attempt."""

from functools import partial
from math import inf

from relay.domain.exchange import Exchange
from relay.domain.outcome import Gone, NotNow, classify, healthy
from relay.domain.receiver import Endpoint
from relay.domain.requests import ping_request
from relay.engine.work import Call, Later
from relay.state.attempts import Change
from workers.dependencies import Outside
from workers.journal import RequestPurpose


def ping(outside: Outside, gate: str, endpoint: Endpoint, token: bytes, life: str = "") -> Call[Exchange]:
    """The step that pings the endpoint behind `gate`. `token`: unique per ping; it becomes the id. `life`: of the
    receiver's name."""
    request = ping_request(endpoint, token.hex(), now=outside.clock.wall(), user_agent=outside.user_agent)
    return outside.call(RequestPurpose("ping", gate, endpoint, life=life), request, partial(_heard, outside, endpoint))


def _heard(outside: Outside, endpoint: Endpoint, exchange: Exchange) -> Later:
    outcome = classify(exchange, codes=endpoint.codes, now=outside.clock.time())
    match outcome:
        case Gone(status):
            return _said("gone", True, status, inf)
        case NotNow(retry_after_s, status):
            return _said("not now", False, status, retry_after_s or 0.0)
        case _:
            # a response that says nothing about the endpoint's health does not count as an answer
            fine = healthy(outcome) is True
            return _said("answered" if fine else "no answer", fine, outcome.status)


def _said(reason: str, fine: bool, status: int | None, pause_s: float = 0.0) -> Later:
    return Later(0.0, reason, Change.RELEASED, last_status=status, healthy=fine, pause_s=pause_s)
