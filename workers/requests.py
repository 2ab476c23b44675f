"""Requests that several steps make: status GETs, and pings of endpoints that are offline."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from relay.domain.exchange import Exchange
from relay.domain.hop import Hop
from relay.domain.outcome import Ambiguous, Gone, NotNow, NotProcessed, classify, healthy
from relay.domain.receiver import Endpoint, PollPolicy, Receiver
from relay.domain.requests import ping_request, status_request
from relay.domain.schedule import poll_delay
from relay.domain.shown_exchange import failure_detail
from relay.domain.status import AskLater, read_status
from relay.domain.status_chain import ChainReading, read_step
from relay.engine.decision import Call, Decision, Later
from relay.state.attempts import Change
from workers.dependencies import Dependencies
from workers.journal import RequestPurpose


def ask(
    dependencies: Dependencies,
    about: RequestPurpose,
    hop: Hop,
    receiver: Receiver,
    url: str,
    payload: bytes,
    decide: Callable[[ChainReading], Decision],
) -> Call[Exchange]:
    """Ask `receiver` at `url` about the delivery of `hop`; `decide` says what the reading means for it. `payload`: of
    the message."""
    hop = dependencies.traced(hop, about.kind, about.attempt)
    timeout_s = receiver.post.timeout
    request = status_request(url, receiver, user_agent=dependencies.user_agent, timeout_s=timeout_s, hop=hop)

    def read(exchange: Exchange) -> Decision:
        reading = read_answer(exchange, receiver, hop, payload, now=dependencies.clock.time())
        if isinstance(reading, AskLater):
            ids = (hop.delivery.source_id, hop.delivery.message_id)
            words = failure_detail(exchange, receiver.post, url=url, method="GET", ids=ids)
            reading = replace(reading, detail=f"{reading.detail}; {words}" if reading.detail else words)
        return decide(reading)

    return dependencies.call(about, request, read)


def read_answer(exchange: Exchange, receiver: Receiver, hop: Hop, payload: bytes, *, now: float) -> ChainReading:
    """The meaning of the response to a status GET about the delivery of `hop`. `now`: Unix seconds."""
    if receiver.status_steps:
        return read_step(exchange, receiver, hop, payload, now=now)
    return read_status(exchange, status_map=receiver.status_map, now=now)


def ask_again_s(wish_s: float | None, asked: int, policy: PollPolicy) -> float:
    """Seconds until the next GET after `asked` of them: the receiver's wish, else the policy's next step.

    A wish may be shorter than that step, but not than the first: `Retry-After: 0` must not become a busy loop.
    """
    return poll_delay(asked, policy) if wish_s is None else max(wish_s, policy.base)


def ping(
    dependencies: Dependencies, endpoint_id: str, endpoint: Endpoint, token: bytes, life: str = ""
) -> Call[Exchange]:
    """The step that pings the endpoint behind `endpoint_id`: whether it accepts requests again, without an attempt of a
    message. `token`: unique per ping; it becomes the id. `life`: of the receiver's name."""
    request = ping_request(endpoint, token.hex(), now=dependencies.clock.wall(), user_agent=dependencies.user_agent)
    about = RequestPurpose("ping", endpoint_id, endpoint, life=life)
    return dependencies.call(about, request, partial(_on_reply, dependencies, endpoint))


def _on_reply(dependencies: Dependencies, endpoint: Endpoint, exchange: Exchange) -> Later:
    outcome = classify(exchange, codes=endpoint.codes, now=dependencies.clock.time())
    match outcome:
        case Gone(status):
            return _ping_result("gone", True, status, inf)
        case NotNow(retry_after_s, status):
            return _ping_result("not now", False, status, retry_after_s or 0.0)
        case Ambiguous(kind=kind) | NotProcessed(kind=kind):
            # also a failure of the relay's own, which says nothing about the endpoint's health, is no answer
            fine, detail = healthy(outcome) is True, failure_detail(exchange, endpoint)
            return _ping_result(kind, fine, outcome.status, detail=detail)
        case _:
            return _ping_result("answered", True, outcome.status)


def _ping_result(
    reason: str, fine: bool, status: int | None, pause_s: float = 0.0, *, detail: str | None = None
) -> Later:
    return Later(0.0, reason, Change.RELEASED, last_status=status, healthy=fine, pause_s=pause_s, detail=detail)
