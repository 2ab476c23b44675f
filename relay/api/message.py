"""GET of a message: what became of it, or, with `wait`, the receiver's answer once it is there."""

from typing import Annotated, Any, Final

from aiohttp import web
from msgspec import Meta

from relay.api.access import MESSAGE, forbidden, may_read, may_see_of
from relay.api.json_body import json_response
from relay.api.problems import (
    NOT_FOUND,
    RETRY_AFTER_S,
    UNAVAILABLE,
    Problem,
    invalid,
)
from relay.api.reading import message_in_path, message_location
from relay.api.route import (
    MESSAGE_ID,
    SOURCE_ID,
    Body,
    DocumentedResponse,
    Example,
    Parameter,
    ReceiverName,
    json_of,
    route,
)
from relay.api.status import KnownMessage, StatusReader
from relay.api.view import of_receivers
from relay.api.wait_query import ANSWER_HEADERS, PREFER_PARAMETER, WAIT, WAIT_PARAMETER, WaitAsked, wait_asked
from relay.api.wait_response import ANSWER_GONE, FAILURES
from relay.api.waiters import ASK_AGAIN_S, Waiters
from relay.domain.identity import DeliveryId, MessageId
from relay.schema.messages import MessageView

_UNKNOWN: Final = "No such message is known: it never came, is still on its way, or was long ago."
_LOST: Final = "What was known of finished messages was lost, and is being read back from the log."


_NOUN: Final = "messages"
_VIEW_OR_ANSWER: Final = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [{"$ref": "#/components/schemas/MessageView"}, {}]})
]


class MessageResource:
    """One message of a source: all of it for callers that may read the source, for others the deliveries to their
    receivers. `longest_s`: how long a request may wait."""

    def __init__(self, reader: StatusReader, waiters: Waiters, longest_s: float) -> None:
        self._reader = reader
        self._waiters = waiters
        self._longest_s = longest_s

    @route(
        "GET",
        "/v1/sources/{source_id}/messages/{message_id}",
        scope=MESSAGE,
        id="getMessage",
        noun=_NOUN,
        parameters=(
            SOURCE_ID,
            MESSAGE_ID,
            Parameter("receiver", "query", ReceiverName, "Only the delivery to this one."),
            WAIT_PARAMETER,
            PREFER_PARAMETER,
        ),
        answers=(
            DocumentedResponse(
                200,
                "The message and its deliveries; with `wait`, the receiver's answer as it is.",
                Body({"application/json": _VIEW_OR_ANSWER, "*/*": None}),
                ANSWER_HEADERS,
            ),
            DocumentedResponse(
                202,
                "With `wait`: the answer takes longer.",
                json_of(MessageView),
                {"Location": "The path of the message.", "Retry-After": "Seconds after which to ask again."},
            ),
        ),
        problems=(ANSWER_GONE, *FAILURES),
        example=Example(200, path={"source_id": "github", "message_id": "sent-1"}),
    )
    async def get(self, request: web.Request) -> web.Response:
        """What became of a message."""
        asked, identity = wait_asked(request, self._longest_s), message_in_path(request)
        delivery = None if asked is None else await self._only(request, identity, asked)
        if asked is None or delivery is None:
            return json_response(200, await self._view(request, identity, request.query.get("receiver")))
        waited = await self._waiters.wait(request, delivery, asked)
        if waited.response is not None:
            return waited.response
        view, location = await self._view(request, identity), message_location(identity)
        response = json_response(202, view, Location=location, Retry_After=str(ASK_AGAIN_S))
        response.headers.update(waited.headers)
        return response

    async def _only(self, request: web.Request, identity: MessageId, asked: WaitAsked) -> DeliveryId | None:
        """The delivery to wait for. None: nothing is known of the message, or it has several, and need not be waited
        for. Raises a Problem where it has to be."""
        known = await self._reader.find(identity)
        if known is None:
            return None
        deliveries = self._seen(request, known)
        if len(deliveries) == 1:
            return deliveries[0]
        if asked.preferred or not (deliveries or may_read(request, identity.source_id)):
            return None
        detail = f"wait is for a message to one receiver; this one goes to {len(deliveries)}: ask without it"
        raise invalid(detail, parameter=WAIT)

    async def _view(self, request: web.Request, identity: MessageId, receiver: str | None = None) -> MessageView:
        """`receiver`: without the deliveries to others."""
        known, whole = await self._reader.find(identity), may_read(request, identity.source_id)
        deliveries = [] if known is None else self._seen(request, known)
        if known is not None and (whole or deliveries):
            wanted = [each for each in deliveries if receiver in (None, each.receiver)]
            if receiver is not None and not wanted:
                raise Problem(NOT_FOUND, f"The message has no delivery to {receiver[:80]!r} that you may see.")
            view = await self._reader.view_of(known, wanted)
            return view if whole else of_receivers(view)
        raise await unseen(self._reader, identity, whole=whole)

    def _seen(self, request: web.Request, known: KnownMessage) -> list[DeliveryId]:
        """Those that the caller may see."""
        deliveries = self._reader.deliveries(known)
        if may_read(request, known.message.source_id):
            return deliveries
        return [delivery for delivery in deliveries if may_see_of(request, delivery.receiver, "", known.at)]


async def unseen(reader: StatusReader, identity: MessageId, *, whole: bool) -> Problem:
    """The answer where nothing of a message can be shown: to who may not see all of it, the same whether or not there
    is such a message. Raises StateUnavailable."""
    if await reader.has_gap([f"s:{identity.source_id}"]):
        return Problem(UNAVAILABLE, _LOST, headers={"Retry-After": str(RETRY_AFTER_S)})
    return Problem(NOT_FOUND, _UNKNOWN) if whole else forbidden(MESSAGE)
