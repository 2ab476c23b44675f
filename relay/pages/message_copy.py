"""Pages that send an edited copy of a message, and compare two messages or two attempts."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from relay.client import ApiError
from relay.client.http import path
from relay.pages.compare import of_attempts, of_messages
from relay.pages.message import ids_of
from relay.pages.page import get, post
from relay.pages.payload_view import text_of
from relay.pages.round_trip import exchange_name
from relay.pages.visit import Visit, problem, see
from relay.schema.attempts import AttemptItem
from relay.schema.messages import MessageView

_MOST_EDITED: Final = 256 * 1024
"""Bytes of a payload in a text field."""
_FIELDS: Final = ("receivers", "type", "content_type", "headers", "payload")


class Side(NamedTuple):
    """One of two that are compared."""

    name: str
    href: str


@get("/messages/{source}/{message}/copy")
async def copy_form(visit: Visit) -> web.StreamResponse:
    text = await _original(visit)
    return _form(visit, dict.fromkeys(_FIELDS, "") | {"payload": text or ""}, editable=text is not None)


@post("/messages/{source}/{message}/copy")
async def send_copy(visit: Visit) -> web.StreamResponse:
    form = {name: (await visit.form()).get(name, "") for name in _FIELDS}
    original = await _original(visit)

    async def copy() -> MessageView:
        return await visit.api.messages.copy(*ids_of(visit), **_changes(form, original))

    sent = await visit.result(copy())
    if isinstance(sent, ApiError):
        return _form(visit, form, editable=original is not None, refused=sent)
    return visit.back(path("/ui/messages/{}/{}", sent.source_id, sent.message_id), "The copy is sent.")


@get("/messages/{source}/{message}/compare")
async def compare_messages(visit: Visit) -> web.StreamResponse:
    """This message with another one of its source, the query parameter `with`."""
    source, after = ids_of(visit)
    before = visit.request.query.get("with", "")
    if not before:
        return see(_page(source, after))
    old, new, *payloads = await asyncio.gather(
        *(visit.api.messages.get(source, id) for id in (before, after)),
        *(visit.load(visit.api.messages.payload(source, id)) for id in (before, after)),
    )
    bodies = [None if each.value is None else each.value.body for each in payloads]
    return visit.show(
        "message_compare.html",
        back=_page(source, after),
        before=Side(before, _page(source, before)),
        after=Side(after, _page(source, after)),
        parts=of_messages(old, new, (bodies[0], bodies[1])),
    )


@get(r"/compare/{partition:\d{1,18}}/{offset:\d{1,18}}/{partition2:\d{1,18}}/{offset2:\d{1,18}}")
async def compare_attempts(visit: Visit) -> web.StreamResponse:
    places = [(int(visit.part(f"partition{n}")), int(visit.part(f"offset{n}"))) for n in ("", "2")]
    old, new = await asyncio.gather(*(visit.api.attempt(*place) for place in places))
    return visit.show(
        "message_compare.html",
        back=_page(new["source_id"] or "-", new["message_id"] or "-"),
        before=_side(old),
        after=_side(new),
        parts=of_attempts(old, new),
    )


def _page(source: str, message: str) -> str:
    return path("/ui/messages/{}/{}", source, message)


def _side(attempt: AttemptItem) -> Side:
    return Side(
        f"{exchange_name(attempt)}, {attempt['started_at']}",
        path("/ui/attempts/{}/{}", attempt["partition"], attempt["offset"]),
    )


def _form(visit: Visit, form: Mapping[str, str], *, editable: bool, refused: ApiError | None = None) -> web.Response:
    return visit.show(
        "message_copy.html",
        id=visit.part("message"),
        here=_page(*ids_of(visit)),
        form=form,
        editable=editable,
        problem=refused,
    )


async def _original(visit: Visit) -> str | None:
    """The payload as text; None if it cannot be edited in a form. Raises ApiError for an unknown message."""
    found = await visit.result(visit.api.messages.payload(*ids_of(visit)))
    if isinstance(found, ApiError):
        if found.kind == "payload-gone":
            return None
        raise found
    return text_of(found.body) if len(found.body) <= _MOST_EDITED else None


def _changes(form: Mapping[str, str], original: str | None) -> dict[str, Any]:
    """The fields of the API that differ from the original. Raises ApiError for a line that is no header."""
    changes: dict[str, Any] = {name: form[name].strip() for name in ("type", "content_type") if form[name].strip()}
    if names := form["receivers"].replace(",", " ").split():
        changes["receivers"] = names
    if form["headers"].strip():
        changes["headers"] = dict(map(_header, form["headers"].strip().splitlines()))
    if original is not None and (payload := _as_before(form["payload"], original)) != original:
        changes["payload_base64"] = base64.b64encode(payload.encode()).decode()
    return changes


def _as_before(text: str, original: str) -> str:
    """A form has CRLF at the end of each line; only what the visitor has changed is to differ."""
    return text if "\r" in original else text.replace("\r\n", "\n")


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise problem(400, "invalid-request", "This is not a header", f"{line[:80]!r}: write it as 'name: value'.")
    return name.strip(), value.strip()
