"""`POST /v1/receivers/{name}/test` and `/v1/sources/{source_id}/callback/test`: sends one signed `relay.ping`, or to a
receiver a given payload, now, and returns the response.

It is sent as every delivery is, and is none: it does not count for breaker, rate or statistics. The exchange is shown
with its secrets masked, and cut."""

import secrets
from contextlib import suppress
from math import ceil
from typing import Final, Literal

from aiohttp import web
from msgspec import structs

from relay.api.access import ADMIN, RECEIVER
from relay.api.context import ApiContext
from relay.api.problems import INVALID, INVALID_RECEIVER, TOO_MANY, UNVERIFIED, Problem, busy, invalid
from relay.api.receivers import callback_of, name_of
from relay.api.route import Example, route
from relay.api.shares import Shares, caller_of
from relay.api.trial import MOST_BYTES, message_of, request_view, trial_of, try_view, usable_receiver
from relay.delivery.port import Transport
from relay.domain.errors import Unavailable
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.requests import ping_request, trial_body
from relay.domain.shown_exchange import failure_detail, shown_body, shown_response_headers
from relay.schema.attempts import FailureView, ResponseView
from relay.schema.trials import SampleMessage, TrialView
from relay.telemetry.logging import get_logger
from workers.trial import DeliveryTrial

SHOWN_BYTES: Final = 4_096
"""Maximum bytes of a body that are shown."""


def response_view(exchange: Exchange, endpoint: Endpoint) -> ResponseView | None:
    """The response; None if there was no status line."""
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
    """The failure; None if there was a response."""
    if isinstance(exchange, Response):
        return None
    detail = failure_detail(exchange, endpoint, url=request.url, method=request.method)
    return {"kind": exchange.kind, "detail": detail, "sent": exchange.sent}


MOST_AT_ONCE: Final = 8
"""Tests in progress in one process, over all callers."""
LEAST_BETWEEN_S: Final = 1.0
"""From the end of a test of an endpoint to the begin of the next one."""
LONGEST_S: Final = 60.0
"""Maximum duration of a test request, regardless of the receiver's own timeout."""
_log = get_logger("relay.api")


class Turns:
    """Limits how often an endpoint is tested, by its owner. Pure."""

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
    """The two routes; see the module's first lines. `transport`: the one of deliveries."""

    noun = "receivers"

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
        most_bytes=MOST_BYTES,
        answer="The request and its outcome.",
        problems=(INVALID, INVALID_RECEIVER, UNVERIFIED),
    )
    async def test_receiver(self, request: web.Request, name: str, body: SampleMessage) -> TrialView:
        """Send a receiver one signed ping, or a payload, and return its response.

        A `relay.ping`, sent as deliveries are, also to one that is paused or offline; it counts for nothing. One at a
        time, and one a second; else 429. With a `payload` (or `text`), the request of its delivery is sent instead, and
        the receiver may start something for it; `trial` has the meaning of the response, as in `POST .../try`. A
        receiver whose settings have a `request` has to be given one.
        """
        receiver = self._receiver(name)
        begun = (
            None
            if body == SampleMessage()
            else trial_of(self._context, request, receiver, message_of(receiver, body, self._context.new_id()))
        )
        sent = self._ping(receiver.post, "receiver", receiver.name) if begun is None else _request_of(begun)
        view, exchange = await self._tested(request, f"r:{receiver.name}", receiver.post, sent)
        if begun is not None:
            begun.respond(exchange)
            view["trial"] = try_view(begun)
        status, failure = _result(view)
        _log.info("receiver_tested", receiver=receiver.name, status=status, failure=failure)
        return view

    @route(
        "POST",
        "/v1/sources/{source_id}/callback/test",
        scope=ADMIN,
        audit="callback.tested",
        noun="callbacks",
        answer="The request and its outcome.",
        problems=(INVALID,),
        example=Example(200, path={"source_id": "calls"}),
    )
    async def test_callback(self, request: web.Request, source_id: str) -> TrialView:
        """Send a callback one signed ping, and return its response.

        A `relay.ping`, sent as results are, also to one that is paused or offline; it counts for nothing. One at a
        time, and one a second; else 429. A callback whose settings have a `request` is sent none: a ping cannot fill it
        in.
        """
        endpoint = callback_of(self._context, source_id)
        ping = self._ping(endpoint, "source", source_id)
        view, _ = await self._tested(request, f"s:{source_id}", endpoint, ping)
        status, failure = _result(view)
        _log.info("callback_tested", source=source_id, status=status, failure=failure)
        return view

    def _receiver(self, name: str) -> Receiver:
        receiver = self._context.directory.receiver(name)
        if receiver is not None and not receiver.verified:
            raise Problem(UNVERIFIED, f"The receiver {name} gets nothing until its URL has passed verification.")
        return usable_receiver(self._context, name)

    def _ping(self, endpoint: Endpoint, of: Literal["receiver", "source"], name: str) -> Request:
        if endpoint.request is not None:
            instead = "give a `payload`" if of == "receiver" else "replay a result"
            raise invalid(f"The settings have a `request`, which no ping can fill in: {instead}.")
        now, user_agent, body = self._context.clock.wall(), self._context.user_agent, trial_body(of, name)
        return ping_request(endpoint, secrets.token_hex(16), now=now, user_agent=user_agent, body=body)

    async def _tested(
        self, request: web.Request, owner: str, endpoint: Endpoint, sent: Request
    ) -> tuple[TrialView, Exchange]:
        """A success lets its breaker probe soon. Raises a Problem if it may not be tested now."""
        clock = self._context.clock
        wait_s = self._turns.take(owner, clock.monotonic())
        if wait_s > 0:
            raise busy("A test of it is in progress, or has just ended.", TOO_MANY, ceil(wait_s))
        try:
            async with self._shares.turn(caller_of(request)):
                start = clock.monotonic()
                timeout_s = min(sent.timeout_s, LONGEST_S)
                exchange = await self._transport.exchange(structs.replace(sent, timeout_s=timeout_s))
                took_s = clock.monotonic() - start
        finally:
            self._turns.end(owner, clock.monotonic())
        if isinstance(exchange, Response) and 200 <= exchange.status < 300:
            with suppress(Unavailable):
                await self._context.state.probe_soon([owner])
        view: TrialView = {
            "name": name_of(owner),
            "request": request_view(sent, endpoint),
            "response": response_view(exchange, endpoint),
            "failure": failure_view(exchange, endpoint, sent),
            "duration_ms": round(took_s * 1000, 1),
        }
        return view, exchange


def _result(view: TrialView) -> tuple[int | None, str | None]:
    """Status, or the kind of failure."""
    response, failure = view["response"], view["failure"]
    return response and response["status"], failure and failure["kind"]


def _request_of(begun: DeliveryTrial) -> Request:
    """Raises a Problem if no delivery can be made of the payload."""
    if begun.trial.request is None or begun.trial.faults:
        said = "; ".join(f"{each['place']}: {each['detail']}".removeprefix(": ") for each in try_view(begun)["errors"])
        raise invalid(f"The request cannot be built from this payload: {said}", pointer="/payload")
    return begun.trial.request
