"""Payloads of thin events, at the URLs that their receivers got.

The token in the URL proves that the relay gave this delivery to the caller, so no key is required. It reads nothing
else, and nothing once the receiver's name has another owner.
"""

from aiohttp import web

from relay.api.access import OPEN
from relay.api.context import ApiContext
from relay.api.history.payload import PAYLOAD, payload_response
from relay.api.history.visibility import VisibleMessage, received_at
from relay.api.problems import NOT_FOUND, PAYLOAD_GONE, Problem
from relay.api.route import Example, Parameter, route
from relay.api.status import StatusReader
from relay.domain.answer_token import TokenExpired, TokenInvalid, read_for_payload
from relay.domain.identity import DeliveryId, MessageId


class PayloadsResource:
    """The payload URLs; without a secret for their tokens there are none."""

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._context = context
        self._reader = reader

    @route(
        "GET",
        "/v1/payloads/{token}",
        scope=OPEN,
        id="getThinPayload",
        noun="messages",
        reads_itself=True,
        parameters=(Parameter("token", "path", str, "The token of the URL, unchanged."),),
        answers=(PAYLOAD,),
        problems=(PAYLOAD_GONE,),
        example=Example(200, path={"token": "chmNS5X53mOY0DZTEvpdNgAxNzAwMDAwMDYwAGNpAGdpdGh1YgBzZW50LTE"}),
    )
    async def get(self, request: web.Request) -> web.Response:
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
        erased = self._context.is_erased(identity, (name,), received_at(known, found))
        return VisibleMessage(known, found, None, erased)

    def _check_life(self, delivery: DeliveryId, life: str, seen: VisibleMessage) -> None:
        """Raises a Problem unless the receiver's name still belongs to the one that got the URL."""
        receiver = self._context.directory.receiver(delivery.receiver)
        at = seen.known.at if seen.known is not None else seen.found.arrival.at if seen.found is not None else None
        if receiver is None or not receiver.life.has(life, at):
            raise Problem(PAYLOAD_GONE, "The receiver of this message was removed.")
