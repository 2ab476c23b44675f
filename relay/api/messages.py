"""POST of a message: the way in for senders without Kafka. It meets the other way in on the same topic."""

from typing import assert_never

from aiohttp import web

from relay.api.context import ApiContext
from relay.api.incoming import read_message
from relay.api.intake import Accepted, Incoming, Intake, Repeated
from relay.api.problems import Problem
from relay.api.quotas import Quotas
from relay.api.reading import SOURCE_PATH, message_location, read_body, source_in_path
from relay.api.status import KnownMessage, StatusReader, json_response
from relay.api.view import MessageView
from relay.domain.message import Message
from relay.state.rows import MessageRow, MessageStage


class MessagesResource:
    """The messages of a source."""

    def __init__(self, context: ApiContext, reader: StatusReader, intake: Intake, quotas: Quotas) -> None:
        self._context = context
        self._reader = reader
        self._intake = intake
        self._quotas = quotas

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post(SOURCE_PATH, self.post)

    async def post(self, request: web.Request) -> web.Response:
        """202 once the log has acknowledged the message."""
        context, source_id = self._context, source_in_path(request)
        payload = await read_body(request, context.max_payload_bytes)
        incoming = read_message(request, source_id, payload, context.new_id)
        await self._quotas.charge(request, source_id)
        view = await self.accept(incoming)
        replayed = {"Idempotent_Replayed": "true"} if view.duplicate else {}
        return json_response(202, view, Location=message_location(incoming.message.id), **replayed)

    async def accept(self, incoming: Incoming) -> MessageView:
        """The message as it is known once the log has it; a `duplicate` with what became of the first. Raises a Problem
        where it is not taken, and LogUnavailable."""
        message = incoming.message
        (fate,) = await self._intake.take(message.source_id, [incoming])
        match fate:
            case Accepted(received_ms):
                return self._reader.fresh_view(KnownMessage(message, received_ms, routed=False))
            case Repeated(row):
                return await self._repeated(message, row)
            case Problem():
                raise fate
            case _:
                assert_never(fate)

    async def _repeated(self, message: Message, row: MessageRow | None) -> MessageView:
        known = None if row is None else await self._reader.read(message.id, row)
        if known is None:  # its record is gone, but the digest says that it was this very message
            routed = row is not None and row.stage is MessageStage.ENQUEUED
            known = KnownMessage(message, None, routed)
        return await self._reader.view_of(known, duplicate=True)
