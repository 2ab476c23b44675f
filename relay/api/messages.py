"""POST of a message: the way in for senders without Kafka. It meets the other way in on the same topic."""

from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Annotated, Final, NamedTuple, assert_never

from aiohttp import web
from msgspec import Meta, structs

from relay.api.access import INGEST
from relay.api.context import ApiContext
from relay.api.incoming import read_message
from relay.api.intake import AcceptedMessage, IncomingMessage, Intake, Repeated
from relay.api.json_body import json_response
from relay.api.problems import (
    ID_CONFLICT,
    INVALID_JSON,
    NO_RECEIVER,
    OVER_QUOTA,
    RESERVED_SOURCE,
    UNFIT_ID,
    UNKNOWN_RECEIVER,
    Problem,
    invalid,
)
from relay.api.quotas import Quotas
from relay.api.reading import message_location, read_body, source_in_path
from relay.api.route import (
    SOURCE_ID,
    UNAUDITED,
    Body,
    DocumentedResponse,
    Example,
    MessageIdText,
    Parameter,
    ReceiverName,
    json_of,
    route,
)
from relay.api.status import KnownMessage, StatusReader
from relay.api.wait_query import ANSWERED, PREFER_PARAMETER, WAIT, WAIT_PARAMETER, WaitAsked, wait_asked
from relay.api.wait_response import ANSWER_GONE, FAILURES
from relay.api.waiters import ASK_AGAIN_S, Waiters, WaitResult
from relay.domain.coordinate import Coordinate
from relay.domain.errors import Unavailable
from relay.domain.message import MAX_RECEIVERS, MAX_TEXT_BYTES, Message
from relay.domain.trace import MOST_STATE
from relay.schema.messages import MessageView
from relay.state.rows import MessageRow, MessageStage


class _Taken(NamedTuple):
    """A message that is on the log, without its payload, so that waiting requests hold no memory for it."""

    known: KnownMessage
    repeated: bool
    warning: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Idempotent-Replayed": "true"} if self.repeated else {}


_NOUN: Final = "messages"
_TEXT: Final = Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
_Names = Annotated[list[ReceiverName], Meta(min_length=1, max_length=MAX_RECEIVERS)]
RECEIVERS: Final = Parameter("receiver", "query", _Names, "Who receives it; without any: whoever subscribes.")
TYPE: Final = Parameter("type", "query", _TEXT, "The type of event; as `ce-type`.")
TRACE: Final = (
    Parameter("traceparent", "header", _TEXT, "Goes along to receiver and callback."),
    Parameter("tracestate", "header", str, f"Likewise; left out where it is longer than {MOST_STATE} characters."),
)
RATE: Final = {
    "RateLimit": "What is left of the quotas that hold.",
    "RateLimit-Policy": "The quotas that hold, in messages.",
}
_PROBLEMS: Final = (NO_RECEIVER, RESERVED_SOURCE, UNKNOWN_RECEIVER, UNFIT_ID, OVER_QUOTA)


class MessagesResource:
    """The messages of a source."""

    def __init__(
        self, context: ApiContext, reader: StatusReader, intake: Intake, quotas: Quotas, waiters: Waiters
    ) -> None:
        self._context = context
        self._reader = reader
        self._intake = intake
        self._quotas = quotas
        self._waiters = waiters

    @route(
        "POST",
        "/v1/sources/{source_id}/messages",
        scope=INGEST,
        audit=UNAUDITED,
        id="sendMessage",
        noun=_NOUN,
        parameters=(
            SOURCE_ID,
            RECEIVERS,
            TYPE,
            WAIT_PARAMETER,
            PREFER_PARAMETER,
            Parameter("ce-id", "header", MessageIdText, "The message's id; without one it gets one."),
            Parameter("webhook-id", "header", MessageIdText, "As `ce-id`."),
            Parameter("Idempotency-Key", "header", MessageIdText, "As `ce-id`."),
            Parameter("ce-type", "header", _TEXT, "The type of event."),
            Parameter("ce-time", "header", _TEXT, "When it happened."),
            *TRACE,
        ),
        body=Body({"application/json": None, "text/plain": str, "application/octet-stream": None}, required=False),
        answers=(
            DocumentedResponse(
                202,
                "It is on the log.",
                json_of(MessageView),
                {
                    "Location": "The path of the message.",
                    "Idempotent-Replayed": "`true`: it is a duplicate.",
                    "Retry-After": "With `wait`: the answer takes longer.",
                    **RATE,
                },
            ),
            ANSWERED,
        ),
        problems=(*_PROBLEMS, ID_CONFLICT, INVALID_JSON, ANSWER_GONE, *FAILURES),
        example=Example(
            202,
            path={"source_id": "github"},
            query={"receiver": "ci"},
            headers={"ce-id": "my-first"},
            body={"hello": "world"},
        ),
    )
    async def post(self, request: web.Request) -> web.Response:
        """Send a message.

        202 once it is on the log: from then on it is not lost. The body is the payload, of any type, and is passed on
        byte for byte. The same id again is a duplicate, and changes nothing.
        """
        asked = wait_asked(request, self._context.limits.wait_s)
        taken = await self._posted(request, asked)
        if asked is None:
            return self._accepted(taken, await self._view(taken))
        waited = await self._waited(request, taken, asked)
        if waited.response is not None:
            waited.response.headers.update(taken.headers)
            return waited.response
        view = await self._view_after(taken)
        return self._accepted(taken, view, {"Retry-After": str(ASK_AGAIN_S), **waited.headers})

    async def accept(self, incoming: IncomingMessage) -> MessageView:
        """The message as it is known once the log has it; a `duplicate` with what became of the first. Raises a Problem
        where it is not taken, and LogUnavailable."""
        return await self._view(await self._take(incoming))

    async def _posted(self, request: web.Request, asked: WaitAsked | None) -> _Taken:
        context, source_id = self._context, source_in_path(request)
        payload = await read_body(request, context.max_payload_bytes)
        wait_s = 0 if asked is None else ceil(asked.seconds)
        incoming = read_message(request, source_id, payload, context.new_id, wait_s=wait_s)
        if asked is not None and not asked.preferred and len(incoming.message.receivers or ()) > 1:
            raise invalid("wait is for a message to one receiver; this one names several", parameter=WAIT)
        await self._quotas.charge(request, source_id)
        return await self._take(incoming)

    async def _take(self, incoming: IncomingMessage) -> _Taken:
        message = incoming.message
        (fate,) = await self._intake.take(message.source_id, [incoming])
        match fate:
            case AcceptedMessage(received_ms, at, warning):
                known = self._without_payload(message, received_ms, at, routed=False)
                return _Taken(known, repeated=False, warning=warning)
            case Repeated(row):
                return _Taken(await self._first(message, row), repeated=True)
            case Problem():
                raise fate
            case _:
                assert_never(fate)

    async def _first(self, message: Message, row: MessageRow | None) -> KnownMessage:
        known = None if row is None else await self._reader.read(message.id, row)
        if known is not None:
            return known
        # its record is gone, but the digest says that it was this very message
        routed = row is not None and row.stage is MessageStage.ENQUEUED
        return self._without_payload(message, None, None, routed=routed)

    def _without_payload(
        self, message: Message, received_ms: int | None, at: Coordinate | None, *, routed: bool
    ) -> KnownMessage:
        names = self._reader.recipients(message)
        return KnownMessage(structs.replace(message, payload=b""), received_ms, routed, at, names)

    async def _waited(self, request: web.Request, taken: _Taken, asked: WaitAsked) -> WaitResult:
        deliveries = self._reader.deliveries(taken.known)
        if len(deliveries) != 1:
            return WaitResult()
        try:
            return await self._waiters.wait(request, deliveries[0], asked)
        except Problem as problem:
            problem.headers |= taken.headers
            raise

    async def _view(self, taken: _Taken) -> MessageView:
        if taken.repeated:
            return await self._reader.view_of(taken.known, duplicate=True)
        return self._reader.fresh_view(taken.known)

    async def _view_after(self, taken: _Taken) -> MessageView:
        """Its current state. It was accepted, so the response says so even if the state cannot be read."""
        if not taken.repeated:
            with suppress(Unavailable):
                return await self._reader.view_of(taken.known)
        return await self._view(taken)

    def _accepted(self, taken: _Taken, view: MessageView, headers: dict[str, str] | None = None) -> web.Response:
        if taken.warning is not None:
            view = replace(view, warnings=(taken.warning,))
        response = json_response(202, view, Location=message_location(taken.known.message.id))
        response.headers.update(taken.headers | (headers or {}))
        return response
