"""Exports lists of messages as CSV or NDJSON: page by page, so that memory does not depend on their number."""

import csv
import io
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from aiohttp import web

from relay.client import ApiError
from relay.pages.visit import Visit
from relay.schema.messages import MessageItem, MessagePage

_LIMIT: Final = 500
"""Messages of a request to the API."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters with which a spreadsheet takes a text for a formula."""
_COLUMNS: Final = (
    *("received_at", "source_id", "message_id", "webhook_id", "type", "size", "content_type", "status", "state"),
    *(
        "receiver",
        "delivery_status",
        "delivery_state",
        "generation",
        "attempts",
        "last_status",
        "reason",
        "detail",
        "updated_at",
    ),
    "preview",
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Accel-Buffering": "no",
}

Lines = Callable[[Iterable[MessageItem]], str]


def safe_cell(text: str) -> str:
    """A cell that no spreadsheet evaluates: `text`, with an apostrophe before the beginning of a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_rows(items: Iterable[MessageItem]) -> str:
    """A row for each delivery; one for a message without any."""
    out = io.StringIO()
    writer = csv.writer(out)
    for item in items:
        for cells in _cells(item):
            writer.writerow([safe_cell("" if value is None else str(value)) for value in cells])
    return out.getvalue()


def _cells(item: MessageItem) -> Iterator[list[object]]:
    deliveries: list[Mapping[str, object]] = [*item["deliveries"]]
    for each in deliveries or [{}]:
        how = {"delivery_status": each.get("status"), "delivery_state": each.get("state")}
        one: Mapping[str, object] = {**each, **how, **item}
        yield [one.get(name) for name in _COLUMNS]


def ndjson_rows(items: Iterable[MessageItem]) -> str:
    """A line for each message, as `GET /v1/messages` returns it."""
    return "".join(msgspec.json.encode(item).decode() + "\n" for item in items)


FORMATS: Final[Mapping[str, tuple[str, str, Lines]]] = {
    "csv": ("text/csv", ",".join(_COLUMNS) + "\r\n", csv_rows),
    "ndjson": ("application/x-ndjson", "", ndjson_rows),
}
"""Content type, first line and encoder of each."""


async def export_of(visit: Visit, kind: str, ask: Callable[..., Awaitable[MessagePage]]) -> web.StreamResponse:
    """The response with all items. `ask`: one page, by `limit` and `cursor`. It is aborted if the API refuses a later
    page, so that the browser reports a failed download instead of a complete one. Raises ApiError for the first
    page."""
    content_type, head, lines = FORMATS[kind]
    page = await ask(limit=_LIMIT, cursor=None)
    disposition = f'attachment; filename="messages.{kind}"'
    headers = {"Content-Type": f"{content_type}; charset=utf-8", "Content-Disposition": disposition, **_HEADERS}
    response = web.StreamResponse(headers=headers)
    await response.prepare(visit.request)
    await response.write(head.encode())
    while True:
        await response.write(lines(page["items"]).encode(errors="replace"))
        if page["cursor"] is None:
            await response.write_eof()
            return response
        following = await visit.result(ask(limit=_LIMIT, cursor=page["cursor"]))
        if isinstance(following, ApiError):
            if visit.request.transport is not None:
                visit.request.transport.abort()
            return response
        page = following
