"""POST and GET of a message: for senders without Kafka, whose messages are on the same topic as those of Kafka."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, assert_never

from aiohttp import web
from msgspec import Meta, structs

from relay.api.access import INGEST, MESSAGE, forbidden, may_read, may_see_of
from relay.api.body import read_body
from relay.api.context import ApiContext
from relay.api.incoming import ENDPOINT_PARAMETERS, LATER_WAIT, read_message
from relay.api.intake import INTAKE_PROBLEMS, AcceptedMessage, IncomingMessage, Intake, Repeated
from relay.api.parameter import MessageIdText, Parameter, ReceiverName
from relay.api.problems import (
    ENDPOINT_NOT_ALLOWED,
    ID_CONFLICT,
    NO_SECRETS_KEY,
    NOT_FOUND,
    OVER_QUOTA,
    RESERVED_SOURCE,
    Problem,
    invalid,
)
from relay.api.quotas import Quotas
from relay.api.reading import message_in_path, message_location, source_in_path
from relay.api.responses import json_response
from relay.api.route import UNAUDITED, Body, DocumentedResponse, Example, json_of, route
from relay.api.status import StatusReader
from relay.api.view import KnownMessage, of_receivers, of_source
from relay.api.waiters import (
    ANSWER_GONE,
    ANSWER_HEADERS,
    ANSWERED,
    FAILURES,
    WAIT,
    WAIT_PARAMETERS,
    RequestedWait,
    Waiters,
    WaitResult,
    requested_wait,
)
from relay.domain.coordinate import Coordinate
from relay.domain.errors import Unavailable
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.message import MAX_RECEIVERS, MAX_TEXT_BYTES, Message
from relay.domain.trace import MOST_STATE
from relay.schema.messages import MessageView
from relay.state.rows import MessageRow, MessageStage

_UNKNOWN: Final = "No such message is known: it was never received, has not been read yet, or is too old."


_VIEW_OR_ANSWER: Final = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [{"$ref": "#/components/schemas/MessageView"}, {}]})
]


class MessageResource:
    """One message of a source: all of it for callers that may read the source, for others the deliveries to their
    receivers. `longest_s`: how long a request may wait."""

    noun = "messages"

    def __init__(self, reader: StatusReader, waiters: Waiters, longest_s: float) -> None:
        self._reader = reader
        self._waiters = waiters
        self._longest_s = longest_s

    @route(
        "GET",
        "/v1/sources/{source_id}/messages/{message_id}",
        scope=MESSAGE,
        parameters=(
            Parameter("receiver", ReceiverName, "Only the delivery to this receiver."),
            *WAIT_PARAMETERS,
        ),
        answers=(
            DocumentedResponse(
                200,
                "The message and its deliveries. With `wait`, the receiver's answer, unchanged.",
                Body({"application/json": _VIEW_OR_ANSWER, "*/*": None}),
                ANSWER_HEADERS,
            ),
            DocumentedResponse(
                202,
                "With `wait`: the answer takes longer.",
                json_of(MessageView),
                {"Location": "The path of the message.", "Retry-After": "Seconds after which to repeat the request."},
            ),
        ),
        problems=(ANSWER_GONE, *FAILURES),
    )
    async def get_message(self, request: web.Request, receiver: str | None) -> web.Response:
        """Get the state of a message."""
        asked, identity = requested_wait(request, self._longest_s), message_in_path(request)
        delivery = None if asked is None else await self._only(request, identity, receiver, asked)
        if asked is None or delivery is None:
            return json_response(200, await self._view(request, identity, receiver))
        waited = await self._waiters.wait(request, delivery, asked)
        if waited.response is not None:
            return waited.response
        view = await self._view(request, identity, receiver)
        return json_response(202, view, Location=message_location(identity), **waited.headers)

    async def _only(
        self, request: web.Request, identity: MessageId, receiver: str | None, asked: RequestedWait
    ) -> DeliveryId | None:
        """The delivery to wait for. None: it is not known, or the message has several, and need not be waited for.
        Raises a Problem where it has to be."""
        known = await self._reader.find(identity)
        if known is None:
            return None
        deliveries = self._seen(request, known)
        if receiver is not None:
            return next((each for each in deliveries if each.receiver == receiver), None)
        if len(deliveries) == 1:
            return deliveries[0]
        if asked.preferred or not (deliveries or may_read(request, identity.source_id)):
            return None
        detail = f"wait is for one receiver; this message goes to {len(deliveries)}: name one with receiver"
        raise invalid(detail, parameter=WAIT)

    async def _view(self, request: web.Request, identity: MessageId, receiver: str | None) -> MessageView:
        """`receiver`: without the deliveries to others."""
        known, whole = await self._reader.find(identity), may_read(request, identity.source_id)
        deliveries = [] if known is None else self._seen(request, known)
        if known is not None and (whole or deliveries):
            wanted = [each for each in deliveries if receiver in (None, each.receiver)]
            if receiver is not None and not wanted:
                raise Problem(NOT_FOUND, f"The message has no delivery to {receiver[:80]!r} that you may see.")
            view = await self._reader.view_of(known, wanted)
            return of_source(view, partial(may_read, request)) if whole else of_receivers(view)
        raise await unseen(self._reader, identity, whole=whole)

    def _seen(self, request: web.Request, known: KnownMessage) -> list[DeliveryId]:
        """The deliveries that the caller may see."""
        deliveries = self._reader.deliveries(known)
        if may_read(request, known.message.source_id):
            return deliveries
        return [delivery for delivery in deliveries if may_see_of(request, delivery.receiver, "", known.at)]


async def unseen(reader: StatusReader, identity: MessageId, *, whole: bool) -> Problem:
    """The answer where nothing of a message can be shown: to who may not see all of it, the same whether or not there
    is such a message. Raises StateUnavailable."""
    await reader.check_restored(identity)
    return Problem(NOT_FOUND, _UNKNOWN) if whole else forbidden(MESSAGE)


class _Taken(NamedTuple):
    """A message that is on the log, without its payload, so that waiting requests hold no memory for it."""

    known: KnownMessage
    repeated: bool
    warning: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Idempotent-Replayed": "true"} if self.repeated else {}


_TEXT: Final = Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
_Names = Annotated[list[ReceiverName], Meta(min_length=1, max_length=MAX_RECEIVERS)]
RECEIVERS: Final = Parameter("receiver", _Names, "Receivers of the message. Default: all that subscribe.")
TYPE: Final = Parameter("type", _TEXT, "Event type of the message. Also as `ce-type`.")
TIMING: Final = (
    Parameter(
        "deliver_at", _TEXT, "Earliest time of the delivery: RFC 3339 or Unix seconds. Also as `relay-deliver-at`."
    ),
    Parameter("delay", _TEXT, "How long to wait before the delivery, at most `30d`. Also as `relay-delay`."),
    Parameter(
        "deadline",
        _TEXT,
        "Time after which no attempt starts: RFC 3339, Unix seconds or a duration. Also as `relay-deadline`. The "
        "message is then a dead letter (`expired`).",
    ),
    Parameter(
        "supersede",
        MessageIdText,
        "Key of the message, which replaces older ones of this source and key that were not sent. Also as "
        "`relay-supersede`.",
    ),
    Parameter(
        "coalesce",
        _TEXT,
        'JSON such as `{"key": "a", "window": "10s"}`: of the messages with this key within the window only the newest '
        "is sent. Also as `relay-coalesce`.",
    ),
)
TRACE: Final = (
    Parameter("traceparent", _TEXT, "Trace context, which is passed on to receiver and callback.", "header"),
    Parameter("tracestate", str, f"The same; dropped if it is longer than {MOST_STATE} characters.", "header"),
)
RATE: Final = {
    "RateLimit": "What is left of the quotas that hold.",
    "RateLimit-Policy": "The quotas that hold, in messages.",
}


class MessagesResource:
    """The messages of a source."""

    noun = "messages"

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
        reads_itself=True,
        parameters=(
            RECEIVERS,
            TYPE,
            *TIMING,
            *ENDPOINT_PARAMETERS,
            *WAIT_PARAMETERS,
            Parameter(
                LATER_WAIT,
                Annotated[int, Meta(ge=0, le=999_999_999)],
                "Seconds for which later requests wait for the answer: a `GET` with `wait` then gets it at once, "
                "otherwise up to a second later.",
                "header",
            ),
            Parameter("ce-id", MessageIdText, "Id of the message. Default: a random one.", "header"),
            Parameter("webhook-id", MessageIdText, "The same as `ce-id`.", "header"),
            Parameter("Idempotency-Key", MessageIdText, "The same as `ce-id`.", "header"),
            Parameter("ce-type", _TEXT, "Event type of the message.", "header"),
            Parameter("ce-time", _TEXT, "Time of the event (RFC 3339).", "header"),
            *TRACE,
        ),
        body=Body({"application/json": None, "text/plain": str, "application/octet-stream": None}, required=False),
        answers=(
            DocumentedResponse(
                202,
                "The message was accepted.",
                json_of(MessageView),
                {
                    "Location": "The path of the message.",
                    "Idempotent-Replayed": "`true` for a duplicate.",
                    "Retry-After": "With `wait`: the answer takes longer.",
                    **RATE,
                },
            ),
            ANSWERED,
        ),
        problems=(
            *(*INTAKE_PROBLEMS, RESERVED_SOURCE, ID_CONFLICT, OVER_QUOTA),
            *(ENDPOINT_NOT_ALLOWED, NO_SECRETS_KEY, ANSWER_GONE, *FAILURES),
        ),
        example=Example(
            202,
            query={"receiver": "ci"},
            headers={"ce-id": "my-first"},
            body={"hello": "world"},
        ),
    )
    async def send_message(self, request: web.Request) -> web.Response:
        """Send a message.

        202 once it is on the log: from then on it is not lost. The body is the payload, of any type, and is passed on
        byte for byte. The same id again is a duplicate, and changes nothing.
        """
        asked = requested_wait(request, self._context.limits.wait_s)
        taken = await self._posted(request, asked)
        if asked is None:
            return self._accepted(request, taken, await self._view(taken))
        waited = await self._waited(request, taken, asked)
        if waited.response is not None:
            waited.response.headers.update(taken.headers)
            return waited.response
        view = await self._view_after(taken)
        return self._accepted(request, taken, view, waited.headers)

    async def accept(self, incoming: IncomingMessage) -> MessageView:
        """The message as it is known once the log has it; a `duplicate` with what became of the first. Raises a Problem
        where it is not taken, and LogUnavailable."""
        return await self._view(await self._take(incoming))

    async def _posted(self, request: web.Request, asked: RequestedWait | None) -> _Taken:
        context, source_id = self._context, source_in_path(request)
        payload = await read_body(request, context.max_payload_bytes)
        wait_s = 0 if asked is None else ceil(asked.seconds)
        incoming = read_message(request, source_id, payload, context, wait_s=wait_s)
        if asked is not None and not asked.preferred and len(incoming.message.receivers or ()) > 1:
            raise invalid("wait requires a message to one receiver; this one names several", parameter=WAIT)
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
        known = self._without_payload(message, None, None, routed=routed)
        return replace(known, excluded=row is not None and row.excluded)

    def _without_payload(
        self, message: Message, received_ms: int | None, at: Coordinate | None, *, routed: bool
    ) -> KnownMessage:
        names = self._reader.recipients(message)
        return KnownMessage(structs.replace(message, payload=b""), received_ms, routed, at, names)

    async def _waited(self, request: web.Request, taken: _Taken, asked: RequestedWait) -> WaitResult:
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
        """The message's current state: it may have been routed meanwhile. It was accepted, so the response is a success
        even if the state cannot be read."""
        with suppress(Unavailable):
            known = await self._reader.find(taken.known.message.id) or taken.known
            return await self._reader.view_of(known, duplicate=taken.repeated)
        return await self._view(taken)

    def _accepted(
        self, request: web.Request, taken: _Taken, view: MessageView, headers: Mapping[str, str] = MappingProxyType({})
    ) -> web.Response:
        view = of_source(view, partial(may_read, request))
        if taken.warning is not None:
            view = replace(view, warnings=(taken.warning,))
        location = message_location(taken.known.message.id)
        return json_response(202, view, Location=location, **taken.headers, **headers)
