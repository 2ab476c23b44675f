"""Response with a message's payload, as its sender gave it. It may be hostile: browsers save it, and do not run it."""

import re
from typing import Final

from aiohttp import web

from relay.api.access import OPEN
from relay.api.context import ApiContext
from relay.api.history.visibility import VisibleMessage, received_at
from relay.api.problems import NOT_FOUND, PAYLOAD_GONE, Problem
from relay.api.responses import foreign_response
from relay.api.route import Body, DocumentedResponse, Example, route
from relay.api.status import StatusReader, message_in
from relay.domain.answer_token import TokenExpired, TokenInvalid, read_for_payload
from relay.domain.identity import DeliveryId, MessageId, webhook_id
from relay.domain.message import Message
from relay.domain.requests import DEFAULT_CONTENT_TYPE
from relay.history.port import ArrivalFact
from relay.log.port import LogReader

TRUNCATED: Final = "relay-payload-truncated"
"""Header with the value `true` if only the beginning of the payload is kept."""

PAYLOAD: Final = DocumentedResponse(
    200, "The bytes of the payload.", Body({"*/*": None}), {TRUNCATED: "`true` if only the beginning is stored."}
)

_SAYABLE: Final = re.compile(r"[\t\x20-\x7e]+")


async def payload_response(log: LogReader, identity: MessageId, seen: VisibleMessage) -> web.Response:
    """The payload of a message that the caller may see. Raises a Problem if it is gone."""
    message = await message_on_log(log, identity, seen)
    if message is not None:
        return _response(identity, message)
    return _kept(identity, None if seen.found is None else seen.found.arrival)


async def message_on_log(log: LogReader, identity: MessageId, seen: VisibleMessage) -> Message | None:
    """The message with its payload. None if its record is gone. Raises a Problem if the payload was erased."""
    if seen.erased:
        raise Problem(PAYLOAD_GONE, "It was erased on request.")
    if seen.known is not None:
        return seen.known.message
    if seen.found is None:
        return None
    [record] = await log.read([(seen.found.arrival.at, None)])
    return message_in(record, identity)


def _kept(identity: MessageId, arrival: ArrivalFact | None) -> web.Response:
    """The part that the history keeps. Raises a Problem if it keeps none."""
    if arrival is None or arrival.body is None:
        size = "" if arrival is None else f"It had {arrival.size} bytes. "
        raise Problem(PAYLOAD_GONE, f"{size}Its record is no longer in the log, and the history did not store it.")
    kept = Message(*identity, None, content_type=arrival.content_type, payload=arrival.body)
    response = _response(identity, kept)
    if len(arrival.body) < arrival.size:
        response.headers[TRUNCATED] = "true"
    return response


def _response(identity: MessageId, message: Message) -> web.Response:
    content_type = message.content_type or DEFAULT_CONTENT_TYPE
    return foreign_response(
        message.payload,
        content_type if _SAYABLE.fullmatch(content_type) else "application/octet-stream",
        {"Content-Disposition": f'attachment; filename="{webhook_id(*identity)}"'},
    )


class PayloadsResource:
    """Payloads of thin events, at the URLs that their receivers got; without a secret for their tokens there are none.

    The token in the URL proves that the relay gave this delivery to the caller, so no key is required. It reads nothing
    else, and nothing once the receiver's name has another owner.
    """

    noun = "messages"

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._context = context
        self._reader = reader

    @route(
        "GET",
        "/v1/payloads/{token}",
        scope=OPEN,
        reads_itself=True,
        answers=(PAYLOAD,),
        problems=(PAYLOAD_GONE,),
        example=Example(200, path={"token": "chmNS5X53mOY0DZTEvpdNgAxNzAwMDAwMDYwAGNpAGdpdGh1YgBzZW50LTE"}),
    )
    async def get_thin_payload(self, request: web.Request) -> web.Response:
        """Get the payload of a thin event.

        The URL is the delivery's `relay-payload-url`; its token is the proof of who reads. 410 once it has expired, or
        its receiver was removed.
        """
        delivery, life = self._delivery(request.match_info["token"])
        identity = MessageId(delivery.source_id, delivery.message_id)
        seen = await self._seen(delivery)
        self._check_life(delivery, life, seen)
        response = await payload_response(self._context.log, identity, seen)
        response.headers["Cache-Control"] = "no-store"
        self._context.meter.payload_read(delivery.receiver)
        return response

    def _delivery(self, token: str) -> tuple[DeliveryId, str]:
        try:
            return read_for_payload(self._context.answer_secrets, token, self._context.clock.time())
        except TokenExpired:
            raise Problem(PAYLOAD_GONE, "This URL has expired.") from None
        except TokenInvalid:
            raise Problem(NOT_FOUND, "There is no such payload URL.") from None

    async def _seen(self, delivery: DeliveryId) -> VisibleMessage:
        name, *ids = delivery
        identity = MessageId(*ids)
        known, history = await self._reader.find(identity), self._context.history
        found = None if known is not None or history is None else await history.message(identity)
        if known is None and found is None:
            await self._reader.check_restored(identity)
        erased = self._context.is_erased(identity, (name,), received_at(known, found))
        return VisibleMessage(known, found, None, erased)

    def _check_life(self, delivery: DeliveryId, life: str, seen: VisibleMessage) -> None:
        """Raises a Problem unless the receiver's name still belongs to the one that got the URL."""
        receiver = self._context.directory.receiver(delivery.receiver)
        at = seen.known.at if seen.known is not None else seen.found.arrival.at if seen.found is not None else None
        if receiver is None or not receiver.life.has(life, at):
            raise Problem(PAYLOAD_GONE, "The receiver of this message was removed.")
