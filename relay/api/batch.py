"""POST of many messages of one source: for senders whose rate a request for each message would not do.

The costs of HTTP, of the log and of the state are shared by all items; each is judged for itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Final, assert_never

import msgspec
from aiohttp import web
from msgspec import Meta

from relay.api.access import INGEST
from relay.api.batch_items import MAX_ITEMS, Defaults, Item, Refused, read_events, read_lines
from relay.api.context import ApiContext
from relay.api.incoming import one_type, own_headers, receivers_in, tracestate_in
from relay.api.intake import AcceptedMessage, Fate, IncomingMessage, Intake, Repeated
from relay.api.json_body import json_response
from relay.api.messages import RATE, RECEIVERS, TRACE, TYPE
from relay.api.problems import (
    OVER_QUOTA,
    UNSUPPORTED,
    Problem,
    document_of,
    invalid,
)
from relay.api.quotas import Quotas
from relay.api.reading import plain_header, query_of, read_body, source_in_path
from relay.api.route import (
    SOURCE_ID,
    UNAUDITED,
    Body,
    DocumentedResponse,
    Example,
    json_of,
    route,
)
from relay.domain.message import MAX_TEXT_BYTES
from relay.schema.messages import BatchLine, BatchView, CloudEvent, ItemView

MAX_BATCH_BYTES: Final = 16 * 1024**2
"""Of a body: 1,000 items of 16 kB, some times the few kB that payloads have. All of it is held in memory."""

_READERS: Final[Mapping[str, Callable[[bytes, Defaults], list[Item]]]] = {
    "application/x-ndjson": read_lines,
    "application/cloudevents-batch+json": read_events,
}
_ACCEPTED: Final = 202


_NOUN: Final = "messages"


class BatchResource:
    """`POST /v1/sources/{source_id}/messages:batch`."""

    def __init__(self, context: ApiContext, intake: Intake, quotas: Quotas) -> None:
        self._context = context
        self._intake = intake
        self._quotas = quotas
        self._body_cap = largest_body(context.max_payload_bytes)

    @route(
        "POST",
        "/v1/sources/{source_id}/messages:batch",
        scope=INGEST,
        audit=UNAUDITED,
        id="sendMessages",
        noun=_NOUN,
        parameters=(SOURCE_ID, RECEIVERS, TYPE, *TRACE),
        body=Body(
            {
                "application/x-ndjson": str,
                "application/cloudevents-batch+json": Annotated[list[CloudEvent], Meta(max_length=MAX_ITEMS)],
            },
            items={"application/x-ndjson": BatchLine},
        ),
        answers=(DocumentedResponse(200, "What became of each.", json_of(BatchView), RATE),),
        problems=(OVER_QUOTA,),
        example=Example(
            200,
            path={"source_id": "github"},
            query={"receiver": "ci"},
            body='{"message_id": "b-1", "payload": {"n": 1}}\n{"message_id": "b-2", "payload": {"n": 2}}\n',
            content_type="application/x-ndjson",
        ),
    )
    async def post(self, request: web.Request) -> web.Response:
        """Send up to 1000 messages.

        JSON lines, or a CloudEvents batch. 200 with a result for each, in their order: each is judged for itself, and
        `status` is what it would have been answered alone. Any other answer is about all of them.
        """
        read = _READERS.get(request.content_type)
        if read is None:
            raise _unsupported()
        defaults = _defaults(request, self._context)
        items = read(await read_body(request, self._body_cap), defaults)
        readable = [item for item in items if isinstance(item, IncomingMessage)]
        await self._quotas.charge(request, defaults.source_id, len(readable))
        fates = await self._intake.take(defaults.source_id, readable)
        return _response(list(_views(items, fates, request)))


def largest_body(max_payload_bytes: int) -> int:
    """Bytes of a body at most: a single message of the greatest size fits in, whatever its encoding adds (base64: a
    third)."""
    return max(MAX_BATCH_BYTES, 2 * max_payload_bytes)


def _unsupported() -> Problem:
    types = ", ".join(_READERS)
    detail = f"A batch has to be one of: {types}"
    errors = ({"detail": detail, "header": "Content-Type"},)
    return Problem(UNSUPPORTED, detail, errors=errors, headers={"Accept-Post": types})


def _defaults(request: web.Request, context: ApiContext) -> Defaults:
    query = query_of(request, "receiver", "type")
    return Defaults(
        source_id=source_in_path(request),
        receivers=receivers_in(query),
        event_type=_short(one_type(query.get("type", ())), parameter="type"),
        traceparent=_short(plain_header(request, "traceparent"), header="traceparent"),
        tracestate=tracestate_in(request),
        max_payload_bytes=context.max_payload_bytes,
        new_id=context.new_id,
        headers=own_headers(request),
    )


def _short(text: str | None, *, header: str | None = None, parameter: str | None = None) -> str | None:
    if text and len(text.encode()) > MAX_TEXT_BYTES:
        raise invalid(
            f"{header or parameter} is longer than {MAX_TEXT_BYTES} bytes", header=header, parameter=parameter
        )
    return text or None


def _views(items: Sequence[Item], fates: Sequence[Fate], request: web.Request) -> Iterator[ItemView]:
    following = iter(fates)
    for index, item in enumerate(items):
        if isinstance(item, Refused):
            yield _view(index, item.message_id, item.problem, request)
        else:
            yield _view(index, item.message.message_id, next(following), request)


def _view(index: int, message_id: str | None, fate: Fate, request: web.Request) -> ItemView:
    match fate:
        case AcceptedMessage(warning=warning):
            warnings = msgspec.UNSET if warning is None else (warning,)
            return ItemView(index, message_id, _ACCEPTED, duplicate=False, warnings=warnings)
        case Repeated():
            return ItemView(index, message_id, _ACCEPTED, duplicate=True)
        case Problem():
            return ItemView(index, message_id, fate.kind.status, duplicate=False, problem=document_of(fate, request))
        case _:
            assert_never(fate)


def _response(items: list[ItemView]) -> web.Response:
    accepted = sum(item.status == _ACCEPTED for item in items)
    duplicates = sum(item.duplicate for item in items)
    view = BatchView(items, accepted, len(items) - accepted, duplicates)
    return json_response(200, view)
