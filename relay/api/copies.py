"""POST of a copy: an edited message that is sent again under a new id, with a reference to the original."""

from typing import Final

from aiohttp import web

from relay.api.access import INGEST, READ, forbidden, may_read
from relay.api.audit import has_changed
from relay.api.context import ApiContext
from relay.api.history.payload import message_on_log
from relay.api.history.visibility import Visibility
from relay.api.incoming import as_incoming, is_structured
from relay.api.intake import INTAKE_PROBLEMS
from relay.api.messages import RATE, MessagesResource
from relay.api.problems import OVER_QUOTA, PAYLOAD_GONE, RESERVED_SOURCE, TOO_LARGE, Problem, invalid
from relay.api.quotas import Quotas
from relay.api.reading import message_in_path, message_location
from relay.api.responses import Reply
from relay.api.route import Example, route
from relay.api.status import StatusReader
from relay.domain.identity import COPY_DIGITS, MessageId, copies_prefix
from relay.domain.message import Message, copied, short_text
from relay.schema.messages import CopyRequest, MessageView

_MOST_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a request: a payload of 1 MiB, escaped for JSON or as base64."""


class CopiesResource:
    """`POST .../copies` of a message."""

    noun = "messages"

    def __init__(self, context: ApiContext, reader: StatusReader, messages: MessagesResource, quotas: Quotas) -> None:
        self._context = context
        self._visibility = Visibility(context, reader)
        self._messages = messages
        self._quotas = quotas

    @route(
        "POST",
        "/v1/sources/{source_id}/messages/{message_id}/copies",
        scope=INGEST,
        audit="message.copied",
        most_bytes=_MOST_BYTES,
        answer="The copy was accepted.",
        status=202,
        headers={"Location": "The path of the copy.", **RATE},
        problems=(*INTAKE_PROBLEMS, RESERVED_SOURCE, OVER_QUOTA, PAYLOAD_GONE),
        example=Example(202, body={"payload": "{}"}),
    )
    async def copy_message(self, request: web.Request, body: CopyRequest) -> Reply[MessageView]:
        """Send a message again as an edited copy.

        The copy is a message of its own with a new id, which begins with the id of the original and `.copy-`. It has
        the original's payload, headers, type and receivers, unless the request has others. `copy_of` of the copy names
        the original; receivers get it as `x-relay-copy-of`, if they forward that header. Besides the right to send,
        this takes the right to read the source.
        """
        identity = message_in_path(request)
        if not may_read(request, identity.source_id):
            raise forbidden(READ)
        payload = self._payload(body)
        incoming = as_incoming(self._copy(await self._original(request, identity), body, payload), fresh=True)
        await self._quotas.charge(request, identity.source_id)
        view = await self._messages.accept(incoming)
        has_changed(request)
        return Reply(view, {"Location": message_location(incoming.message.id)})

    def _payload(self, body: CopyRequest) -> bytes | None:
        """The given payload, or None. Raises a Problem if it cannot be one."""
        if body.payload is not None and body.payload_base64 is not None:
            raise invalid("payload and payload_base64 exclude each other", pointer="/payload_base64")
        payload = body.payload_base64 if body.payload is None else body.payload.encode()
        most = self._context.max_payload_bytes
        if len(payload or b"") > most:
            raise Problem(TOO_LARGE, f"A payload may have at most {most:,} bytes.")
        if body.content_type is not None and is_structured(body.content_type):
            raise invalid("content_type is that of a CloudEvents event, not of a payload", pointer="/content_type")
        return payload

    async def _original(self, request: web.Request, identity: MessageId) -> Message:
        """The message with its payload. Raises a Problem if it is unknown, or its record is gone."""
        seen = await self._visibility.of_message(request, identity)
        original = await message_on_log(self._context.log, identity, seen)
        if original is None:
            raise Problem(PAYLOAD_GONE, "Its record is gone from the log, so it cannot be copied.")
        return original

    def _copy(self, original: Message, body: CopyRequest, payload: bytes | None) -> Message:
        prefix = copies_prefix(original.source_id, original.message_id)
        return copied(
            original,
            prefix + self._context.new_id()[-COPY_DIGITS:],
            payload=payload,
            headers=body.headers,
            event_type=short_text(body.type, "type"),
            content_type=short_text(body.content_type, "content_type"),
            receivers=body.receivers,
        )
