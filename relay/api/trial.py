"""Trials of receivers and callbacks.

`POST /v1/receivers/{name}/try` shows what the relay would do with a payload and a response, and sends nothing. `POST
/v1/receivers/{name}/test` and `/v1/sources/{source_id}/callback/test` send one signed `relay.ping`, or to a receiver a
given payload, now, and return the response.

The requests are made, and responses read, by the functions of the workers. A request is sent as every delivery is, and
is none: it does not count for breaker, rate or statistics. Secrets are masked, and bodies cut."""

import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from math import ceil
from typing import Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, structs

from relay.api.access import ADMIN, RECEIVER, may_read
from relay.api.bounds import bounds_of
from relay.api.context import ApiContext
from relay.api.problems import INVALID, INVALID_RECEIVER, TOO_MANY, UNVERIFIED, Problem, busy, invalid, no_receiver
from relay.api.receivers import callback_of, name_of
from relay.api.responses import view_as
from relay.api.route import UNAUDITED, Example, json_of, route
from relay.api.shares import Shares, Turns, sharer_of
from relay.domain.errors import InvalidRecord, Unavailable
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.headers import read_headers
from relay.domain.json_pointer import NOT_JSON
from relay.domain.message import Message, message_headers, parse_message
from relay.domain.outcome import Accepted, Ambiguous, Answered, Delivered, Gone, NotNow, NotProcessed, Outcome, Rejected
from relay.domain.receiver import Endpoint, Receiver, Source
from relay.domain.requests import ping_request, trial_body
from relay.domain.secrecy import redacted
from relay.domain.shown_exchange import (
    failure_detail,
    shown_body,
    shown_request_headers,
    shown_response_headers,
    shown_url,
)
from relay.domain.status import AskLater, NeverSeen, StatusGone, StillRunning
from relay.domain.status_chain import ChainReading, NoAnswer, StepFinished
from relay.schema.attempts import (
    FailureView,
    OutcomeWord,
    PastedResponse,
    ReadingView,
    ReadingWord,
    RequestView,
    ResponseView,
    SampleMessage,
    TrialView,
    TryView,
    WantedTrial,
)
from relay.telemetry.logging import get_logger
from workers.trial import DeliveryTrial

SOURCE: Final = "try-it"
MOST_BYTES: Final = 2 * 1024 * 1024
"""Maximum size of the body: a payload, and responses."""
_OUTCOMES: Final[dict[type[Outcome], OutcomeWord]] = {
    Answered: "answered",
    Delivered: "delivered",
    Accepted: "accepted",
    NotNow: "not_now",
    Ambiguous: "ambiguous",
    NotProcessed: "not_processed",
    Gone: "gone",
    Rejected: "rejected",
}
_READINGS: Final[dict[type[ChainReading], ReadingWord]] = {
    StepFinished: "finished",
    Answered: "answer",
    StillRunning: "running",
    NeverSeen: "unknown",
    StatusGone: "gone",
    AskLater: "nothing",
    NoAnswer: "invalid",
}
_STATUS_LINE: Final = re.compile(r"HTTP/\S+ (\d{3})(?: .*)?")
_HEAD_END: Final = re.compile(r"\r?\n\r?\n")
_FORM: Final = "has to begin with the status line, as curl -i prints it, or be JSON: {status, headers, body}"


def request_view(request: Request, endpoint: Endpoint, ids: Collection[str | None] = ()) -> RequestView:
    """The request with its secrets masked. `ids`: of the message, which are shown."""
    return {
        "method": request.method,
        "url": shown_url(request.url, endpoint, ids),
        "headers": shown_request_headers(request.headers, endpoint),
        "body": redacted(request.body.decode(errors="replace"), endpoint.secrets),
    }


def usable_receiver(context: ApiContext, name: str) -> Receiver:
    """The receiver. Raises a Problem if there is none, or if its settings cannot be used here."""
    receiver = context.directory.receiver(name)
    if receiver is not None and receiver.unusable is None:
        return receiver
    refused = context.directory.refusal(name)
    if refused is not None:
        raise Problem(INVALID_RECEIVER, f"The receiver cannot be sent anything: {refused}")
    raise no_receiver(name)


def message_of(receiver: Receiver, wanted: SampleMessage, new_id: str) -> Message:
    """The message to try, as the relay would read it. `new_id`: for one without an id. Raises a Problem."""
    if (wanted.payload is UNSET) == (wanted.text is None):
        raise invalid("Give either payload, a JSON value, or text.", pointer="/payload")
    payload = (wanted.text or "").encode() if wanted.payload is UNSET else bytes(wanted.payload)
    try:
        message = Message(
            wanted.source or next(filter(_is_exact, receiver.sources), SOURCE),
            wanted.id or f"try-{new_id}",
            (receiver.name,),
            wanted.type or next(filter(_is_exact, receiver.event_types), None),
            content_type=wanted.content_type,
            payload=payload,
            headers=read_headers(wanted.headers),
        )
        return parse_message(payload, message_headers(message))
    except InvalidRecord as error:
        raise invalid(error.detail) from None


def _is_exact(pattern: str) -> bool:
    return not pattern.endswith("*")


def trial_of(context: ApiContext, request: web.Request, receiver: Receiver, message: Message) -> DeliveryTrial:
    """The trial as the caller may see it: `keep` and the callback of a source only with the right to read that
    source."""
    is_shown = may_read(request, message.source_id)
    source = context.directory.source(message.source_id) if is_shown else Source(message.source_id)
    begun = DeliveryTrial(receiver, source, message, now=context.clock.wall(), user_agent=context.user_agent)
    if not is_shown:
        begun.trial.notes.append(f"this key may not read the source {message.source_id}: no keep, no callback")
    if context.answer_secrets:
        begun.trial.notes.append("a delivery also carries relay-answer-url, if the relay has a public URL")
    return begun


def respond(begun: DeliveryTrial, wanted: WantedTrial) -> None:
    """Continue with the responses that were pasted. Raises a Problem."""
    statuses = [response_of(each, f"/status_responses/{at}") for at, each in enumerate(wanted.status_responses)]
    if wanted.response is not None:
        begun.respond(response_of(wanted.response, "/response"), statuses)
    elif statuses:
        raise invalid("Give the response to the POST, too.", pointer="/response")


def try_view(begun: DeliveryTrial) -> TryView:
    trial, receiver, message, callback = begun.trial, begun.receiver, begun.message, begun.source.callback
    secrets = (*receiver.post.secrets, *(callback.secrets if callback is not None else ()))
    ids = (message.source_id, message.message_id)
    return {
        "name": receiver.name,
        "source_id": message.source_id,
        "message_id": message.message_id,
        "request": None if trial.request is None else request_view(trial.request, receiver.post, ids),
        "outcome": None if trial.outcome is None else _OUTCOMES[type(trial.outcome)],
        "rule": trial.rule,
        "readings": [_reading_view(each, secrets) for each in trial.readings],
        "next": None if trial.next is None else request_view(trial.next, receiver.post, ids),
        "callback": None if trial.callback is None or callback is None else request_view(trial.callback, callback, ids),
        "errors": [{"place": each.place, "detail": redacted(each.detail, secrets)} for each in trial.faults],
        "notes": [redacted(each, secrets) for each in trial.notes],
    }


def _reading_view(reading: ChainReading, secrets: tuple[str, ...]) -> ReadingView:
    detail = ""
    match reading:
        case AskLater(kind=kind, detail=said):
            detail = said or kind.replace("_", " ")
        case NoAnswer(said):
            detail = said
    return {"meaning": _READINGS[type(reading)], "detail": redacted(detail, secrets)}


def response_of(given: str | PastedResponse, pointer: str) -> Response:
    """Raises a Problem."""
    if isinstance(given, str):
        given = _pasted(given.strip("\r\n"), pointer)
    body = given.body if isinstance(given.body, str) else msgspec.json.encode(given.body).decode()
    if not 100 <= given.status <= 999:
        raise invalid(f"the status {given.status} is not an HTTP status", pointer=pointer)
    return Response(given.status, {name.lower(): value for name, value in given.headers.items()}, body.encode())


def _pasted(text: str, pointer: str) -> PastedResponse:
    if not text.lstrip().startswith("HTTP/"):
        try:
            return msgspec.json.decode(text, type=PastedResponse)
        except NOT_JSON as error:
            raise invalid(f"The response {_FORM}: {error}.", pointer=pointer) from None
    text = text.lstrip()
    begin = 0
    for end in _HEAD_END.finditer(text):
        if not text.startswith("HTTP/", end.end()):
            break
        begin = end.end()  # of what follows an interim response, as 100
    head, *rest = _HEAD_END.split(text[begin:], maxsplit=1)
    first, *lines = head.splitlines()
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise invalid(f"The response {_FORM}; it begins with {first[:80]!r}.", pointer=pointer)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip()] = value.strip()
    return PastedResponse(int(status[1]), headers, rest[0] if rest else "")


SHOWN_BYTES: Final = 4_096
"""Maximum bytes of a body that are shown."""


def response_view(exchange: Exchange, endpoint: Endpoint) -> ResponseView | None:
    """The response; None if there was no status line."""
    if isinstance(exchange, NoResponse):
        return None
    body, truncated = shown_body(exchange, endpoint, SHOWN_BYTES)
    headers = shown_response_headers(exchange.headers, endpoint)
    return view_as(ResponseView, exchange, headers=headers, body=body, truncated=truncated)


def failure_view(exchange: Exchange, endpoint: Endpoint, request: Request) -> FailureView | None:
    """The failure; None if there was a response."""
    if isinstance(exchange, Response):
        return None
    detail = failure_detail(exchange, endpoint, url=request.url, method=request.method)
    return {"kind": exchange.kind, "detail": detail, "sent": exchange.sent}


MOST_AT_ONCE: Final = 8
"""Tests in progress in one process, over all callers."""
LONGEST_S: Final = 60.0
"""Maximum duration of a test request, regardless of the receiver's own timeout."""
_log = get_logger("relay.api")


class TrialResource:
    """The routes; see the module's first lines."""

    noun = "receivers"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
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

    @route(
        "POST",
        "/v1/receivers/{name}/try",
        scope=RECEIVER,
        audit=UNAUDITED,
        body=json_of(WantedTrial),
        most_bytes=MOST_BYTES,
        answer="What the relay would do.",
        problems=(INVALID_RECEIVER,),
        example=Example(200, body={"payload": {"ref": "refs/heads/main"}}),
    )
    async def try_receiver(self, request: web.Request, name: str, body: WantedTrial) -> TryView:
        """Show what the relay would do with a payload, without sending anything.

        The request to the receiver; of a pasted response its meaning, the rule that decided, and the status GET that
        follows; and the callback to the sender. What cannot be made is in `errors`, field by field.
        """
        receiver = usable_receiver(self._context, name)
        message = message_of(receiver, body, self._context.new_id())
        begun = trial_of(self._context, request, receiver, message)
        respond(begun, body)
        return try_view(begun)

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
            async with self._shares.turn(sharer_of(request), bounds_of(request).check_again):
                start = clock.monotonic()
                timeout_s = min(sent.timeout_s, LONGEST_S)
                exchange = await self._context.transport.exchange(structs.replace(sent, timeout_s=timeout_s))
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
