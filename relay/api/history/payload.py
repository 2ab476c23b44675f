"""Response with a message's payload, as its sender gave it. It may be hostile: browsers save it, and do not run it."""

import re
from typing import Final

from aiohttp import web

from relay.api.history.visibility import VisibleMessage
from relay.api.problems import PAYLOAD_GONE, Problem
from relay.api.responses import foreign_response
from relay.api.route import Body, DocumentedResponse
from relay.domain.coordinate import Coordinate
from relay.domain.errors import InvalidRecord
from relay.domain.identity import MessageId, webhook_id
from relay.domain.message import Message, parse_message
from relay.domain.requests import DEFAULT_CONTENT_TYPE
from relay.history.port import ArrivalFact
from relay.log.port import LogReader, Record

TRUNCATED: Final = "relay-payload-truncated"
"""Header with the value `true` if only the beginning of the payload is kept."""

PAYLOAD: Final = DocumentedResponse(
    200, "The bytes of the payload.", Body({"*/*": None}), {TRUNCATED: "`true` if only the beginning is stored."}
)

_SAYABLE: Final = re.compile(r"[\t\x20-\x7e]+")
_UNKNOWN_TYPE: Final = "application/octet-stream"


async def payload_response(log: LogReader, identity: MessageId, seen: VisibleMessage) -> web.Response:
    """The payload of a message that the caller may see. Raises a Problem if it is gone."""
    check_not_erased(seen)
    if seen.known is not None:
        return _response(identity, seen.known.message)
    arrival = None if seen.found is None else seen.found.arrival
    message = None if arrival is None else await message_at(log, identity, arrival.at)
    return _kept(identity, arrival) if message is None else _response(identity, message)


def check_not_erased(seen: VisibleMessage) -> None:
    """Raises a Problem."""
    if seen.erased:
        raise Problem(PAYLOAD_GONE, "It was erased on request.")


async def message_at(log: LogReader, identity: MessageId, at: Coordinate) -> Message | None:
    """The message on the log. None if its record is gone: a topic that was created again has another record there, or
    none."""
    [record] = await log.read([(at, None)])
    return message_in(record, identity)


def message_in(record: Record | None, identity: MessageId) -> Message | None:
    """The message in the record that was read at its place; None as above."""
    try:
        message = None if record is None else parse_message(record.value, record.headers)
    except InvalidRecord:
        return None
    return message if message is not None and message.id == identity else None


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
        content_type if _SAYABLE.fullmatch(content_type) else _UNKNOWN_TYPE,
        {"Content-Disposition": f'attachment; filename="{webhook_id(*identity)}"'},
    )
