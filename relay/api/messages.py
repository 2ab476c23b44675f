"""POST of a message: the way in for senders without Kafka. It meets the other way in on the same topic."""

from dataclasses import replace

from aiohttp import web

from relay.api.context import ApiContext
from relay.api.incoming import read_message
from relay.api.problems import ID_CONFLICT, NO_RECEIVER, UNKNOWN_RECEIVER, Problem
from relay.api.reading import SOURCE_PATH, message_location, read_body, source_in_path
from relay.api.status import KnownMessage, StatusReader, json_response
from relay.domain.errors import Unavailable
from relay.domain.identity import MessageId
from relay.domain.message import Message, message_digest, message_headers
from relay.log.port import Coordinate, NewRecord
from relay.state.port import Arrival, MessageRow, MessageStage


class MessagesResource:
    """The messages of a source."""

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._context = context
        self._reader = reader

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post(SOURCE_PATH, self.post)

    async def post(self, request: web.Request) -> web.Response:
        """202 once the log has acknowledged the message.

        The state helps to recognise repeats at once, but is not needed: while it is away, messages are accepted all
        the same, and FromSender recognises a repeat or a conflict when it reads them.
        """
        context = self._context
        message = read_message(request, source_in_path(request), context.new_id)
        message = replace(message, payload=await read_body(request, context.max_payload_bytes))
        known = await self._known(message.id)
        if known is not None:
            return await self._repeated(message, known)
        self._check_receivers(message)
        return await self._accept(message)

    async def _accept(self, message: Message) -> web.Response:
        context = self._context
        received_ms = int(context.clock.time() * 1000)
        record = NewRecord(
            context.topics.from_sender, message.source_id.encode(), message.payload, message_headers(message)
        )
        at = (await context.log.append([record]))[0]
        earlier = await self._remember(message, at)
        if earlier is not None and (earlier.partition, earlier.offset) != (at.partition, at.offset):
            return await self._repeated(message, earlier)  # two at once; FromSender keeps to the earlier one, too
        view = await self._reader.fresh_view(KnownMessage(message, received_ms, routed=False))
        return json_response(202, view, Location=message_location(message.id))

    async def _repeated(self, message: Message, row: MessageRow) -> web.Response:
        if row.digest != message_digest(message):
            raise Problem(
                ID_CONFLICT, "This id came before, with another payload, type or other receivers: choose a new id."
            )
        known = await self._reader.read(message.id, row)
        if known is None:  # its record is gone, but the digest says that it was this very message
            known = KnownMessage(message, None, row.stage is MessageStage.ENQUEUED)
        view = await self._reader.view_of(known, duplicate=True)
        return json_response(202, view, Location=message_location(message.id), Idempotent_Replayed="true")

    async def _known(self, identity: MessageId) -> MessageRow | None:
        try:
            return (await self._context.state.messages([identity]))[0]
        except Unavailable:
            return None

    async def _remember(self, message: Message, at: Coordinate) -> MessageRow | None:
        """What was known before, if anything. The message is accepted whether or not this succeeds."""
        arrival = Arrival(message.id, message_digest(message), at.partition, at.offset, MessageStage.ACCEPTED)
        try:
            return (await self._context.state.arrive([arrival]))[0]
        except Unavailable:
            return None

    def _check_receivers(self, message: Message) -> None:
        directory = self._context.directory
        if message.receivers is None:
            if not directory.subscribers(message.source_id, message.event_type):
                raise Problem(
                    NO_RECEIVER, "No receiver subscribes to this source and type; name receivers with ?receiver=."
                )
            return
        unknown = [name for name in message.receivers if directory.receiver(name) is None]
        if unknown:
            errors = tuple({"detail": f"there is no receiver {name}", "parameter": "receiver"} for name in unknown)
            raise Problem(UNKNOWN_RECEIVER, f"Unknown: {', '.join(unknown)}. Nothing was accepted.", errors=errors)
