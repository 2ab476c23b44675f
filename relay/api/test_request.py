"""`POST /v1/receivers/{name}/test`: sends one signed `relay.ping`, or a sample message, now, and returns the response.

It is sent as every delivery is, and is none: it does not count for breaker, rate or statistics. The exchange is shown
with its secrets masked, and cut."""

import secrets
from contextlib import suppress
from math import ceil
from typing import Final

from aiohttp import web
from msgspec import json, structs

from relay.api.access import RECEIVER
from relay.api.context import ApiContext
from relay.api.problems import INVALID, INVALID_RECEIVER, TOO_MANY, UNVERIFIED, Problem, invalid, no_receiver
from relay.api.responses import json_response
from relay.api.route import NAME, DocumentedResponse, Example, json_of, route
from relay.api.shares import Shares, caller_of
from relay.delivery.port import Transport
from relay.domain.errors import Unavailable
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.expression import ExpressionError
from relay.domain.failure import failure_detail
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.redact import shown_body, shown_request_headers, shown_response_headers, shown_url
from relay.domain.requests import ping_request, post_request, trial_body
from relay.domain.secrecy import redacted
from relay.domain.template import UrlRefused
from relay.schema.attempts import FailureView, RequestView, ResponseView, SampleMessage, TrialView
from relay.telemetry.logging import get_logger

TRIAL_SOURCE: Final = "relay"
SHOWN_BYTES: Final = 4_096
"""Of a body."""


def request_view(request: Request, endpoint: Endpoint) -> RequestView:
    return {
        "method": request.method,
        "url": shown_url(request.url, endpoint),
        "headers": shown_request_headers(request.headers, endpoint),
        "body": redacted(request.body.decode(errors="replace"), endpoint.secrets),
    }


def response_view(exchange: Exchange, endpoint: Endpoint) -> ResponseView | None:
    """None if there was no status line."""
    if isinstance(exchange, NoResponse):
        return None
    body, truncated = shown_body(exchange, endpoint, SHOWN_BYTES)
    return {
        "status": exchange.status,
        "headers": shown_response_headers(exchange.headers, endpoint),
        "body": body,
        "truncated": truncated,
    }


def failure_view(exchange: Exchange, endpoint: Endpoint, request: Request) -> FailureView | None:
    """None where a status line came."""
    if isinstance(exchange, Response):
        return None
    detail = failure_detail(exchange, endpoint, url=request.url, method=request.method)
    return {"kind": exchange.kind, "detail": detail, "sent": exchange.sent}


MOST_AT_ONCE: Final = 8
"""Tests in progress in one process, over all callers."""
LEAST_BETWEEN_S: Final = 1.0
"""From the end of a test of a receiver to the begin of the next one."""
LONGEST_S: Final = 60.0
"""A request that is waited for ends, whatever the receiver's own timeout is."""
_log = get_logger("relay.api")


class Turns:
    """Who may be tested now: pure."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._ended: dict[str, float] = {}  # in the order of these moments

    def take(self, name: str, now: float) -> float:
        """0: it may begin, and has to `end`. Otherwise the seconds for which it may not, an estimate."""
        while self._ended and (first := next(iter(self._ended))) and now - self._ended[first] >= LEAST_BETWEEN_S:
            del self._ended[first]
        if name in self._ended:
            return LEAST_BETWEEN_S - (now - self._ended[name])
        if name in self._under_way:
            return LEAST_BETWEEN_S
        self._under_way.add(name)
        return 0.0

    def end(self, name: str, now: float) -> None:
        self._under_way.discard(name)
        self._ended[name] = now


class TrialResource:
    """The route; see the module's first lines. `transport`: the one of deliveries."""

    def __init__(self, context: ApiContext, transport: Transport) -> None:
        self._context = context
        self._transport = transport
        self._turns = Turns()
        self._shares = Shares("test", "places for tests", MOST_AT_ONCE, context.meter)

    @route(
        "POST",
        "/v1/receivers/{name}/test",
        scope=RECEIVER,
        audit="receiver.tested",
        id="testReceiver",
        noun="receivers",
        parameters=(NAME,),
        body=json_of(SampleMessage, required=False),
        answers=(DocumentedResponse(200, "What was sent, and what came of it.", json_of(TrialView)),),
        problems=(INVALID, INVALID_RECEIVER, UNVERIFIED),
        example=Example(200, path={"name": "ci"}),
    )
    async def test(self, request: web.Request, name: str, body: SampleMessage) -> web.Response:
        """Send a receiver one signed ping, or a sample message, and return its response.

        A `relay.ping`, sent as deliveries are, also to one that is paused or offline; it counts for nothing. One at a
        time, and one a second; else 429. A receiver whose settings have a `request` has to be given a `payload`: it
        gets that in its own form, and may start something for it.
        """
        receiver, clock = self._receiver(name), self._context.clock
        trial = self._request(receiver, body)
        wait_s = self._turns.take(receiver.name, clock.monotonic())
        if wait_s > 0:
            detail = "A test of this receiver is under way or just over."
            raise Problem(TOO_MANY, detail, headers={"Retry-After": str(ceil(wait_s))})
        try:
            async with self._shares.turn(caller_of(request)):
                view = await self._tried(receiver, trial)
        finally:
            self._turns.end(receiver.name, clock.monotonic())
        response, failure = view["response"], view["failure"]
        if response is not None and 200 <= response["status"] < 300:
            with suppress(Unavailable):
                await self._context.state.probe_soon([f"r:{receiver.name}"])
        status, kind = response and response["status"], failure and failure["kind"]
        _log.info("receiver_tested", receiver=receiver.name, status=status, failure=kind)
        return json_response(200, view)

    def _receiver(self, name: str) -> Receiver:
        receiver = self._context.directory.receiver(name)
        if receiver is not None and not receiver.verified:
            raise Problem(
                UNVERIFIED, f"The receiver {name} is sent nothing before its URL has proved that it wants it."
            )
        if receiver is not None and receiver.unusable is None:
            return receiver
        refused = self._context.directory.refusal(name)
        if refused is not None:
            raise Problem(INVALID_RECEIVER, f"The receiver cannot be sent anything: {refused}")
        raise no_receiver(name)

    def _request(self, receiver: Receiver, sample: SampleMessage) -> Request:
        now, user_agent, identity = self._context.clock.wall(), self._context.user_agent, secrets.token_hex(16)
        if sample.payload is None and receiver.post.request is None:
            body = trial_body(receiver.name)
            return ping_request(receiver.post, identity, now=now, user_agent=user_agent, body=body)
        if sample.payload is None:
            raise invalid("The receiver's settings have a `request`, which no ping can fill in: give a `payload`.")
        hop = Hop(DeliveryId(receiver.name, TRIAL_SOURCE, f"test_{identity}"), sample.type)
        payload = json.encode(sample.payload)
        try:
            return post_request(
                receiver, hop, payload, attempt=1, sequence=None, now=now, answer_url=None, user_agent=user_agent
            )
        except (ExpressionError, UrlRefused) as error:
            raise invalid(f"The request cannot be made of this payload: {error}", pointer="/payload") from None

    async def _tried(self, receiver: Receiver, trial: Request) -> TrialView:
        clock, post = self._context.clock, receiver.post
        begun = clock.monotonic()
        exchange = await self._transport.exchange(structs.replace(trial, timeout_s=min(trial.timeout_s, LONGEST_S)))
        took_s = clock.monotonic() - begun
        return {
            "name": receiver.name,
            "request": request_view(trial, post),
            "response": response_view(exchange, post),
            "failure": failure_view(exchange, post, trial),
            "duration_ms": round(took_s * 1000, 1),
        }
