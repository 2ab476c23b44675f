"""The catalogue of event types: declared by administrators, read by every caller."""

from typing import Final

from aiohttp import web

from relay.api.access import ADMIN, CALLER
from relay.api.asyncapi import asyncapi
from relay.api.audit import record_audit
from relay.api.context import ApiContext
from relay.api.paging import cursor_behind
from relay.api.parameter import PageCursor, PageLimit
from relay.api.problems import INVALID_EVENT_TYPE, NOT_FOUND, TOO_MANY_EVENT_TYPES, Problem
from relay.api.responses import view_as
from relay.api.route import Example, route
from relay.domain.event_type import EventTypeEntry, SchemaError, check_event_type, check_type_name
from relay.schema.messages import EventTypePage, EventTypeView, EventVersionView

_MOST_BYTES: Final = 256 * 1024


class EventTypesResource:
    """`/v1/event-types`."""

    noun = "event types"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._catalogue = context.catalogue

    @route("GET", "/v1/event-types", scope=CALLER, answer="A page, sorted by name.")
    async def list_event_types(self, limit: PageLimit, cursor: PageCursor) -> EventTypePage:
        """List the event types of the catalogue."""
        names = [name for name in self._catalogue.types.names() if name > cursor]
        items = [event_type_view(name, entry) for name in names[:limit] if (entry := self._catalogue.types.get(name))]
        more = len(names) > limit
        return {"items": items, "cursor": cursor_behind(names[limit - 1]) if more else None}

    @route("GET", "/v1/asyncapi", scope=CALLER, answer="AsyncAPI 3.0.")
    async def get_async_api_of_types(self) -> dict[str, object]:
        """Get the AsyncAPI document with the messages of the catalogue.

        Like `/asyncapi.json`, which needs no key, with a message for each version of an event type.
        """
        return asyncapi(self._context.topics, self._catalogue.types.all())

    @route("GET", "/v1/event-types/{type}", scope=CALLER, answer="The entry in effect.", problems=(NOT_FOUND,))
    async def get_event_type(self, type: str) -> EventTypeView:
        """Get an event type with its schemas and examples."""
        return event_type_view(type, self._found(type))

    @route(
        "PUT",
        "/v1/event-types/{type}",
        scope=ADMIN,
        audit="type.declared",
        most_bytes=_MOST_BYTES,
        answer="In effect in this process, and in all others within 2 s.",
        problems=(INVALID_EVENT_TYPE, TOO_MANY_EVENT_TYPES),
        example=Example(
            200,
            body={
                "description": "A build has finished.",
                "versions": [
                    {
                        "version": 1,
                        "schema": {"type": "object", "required": ["number"]},
                        "examples": [{"number": 42}],
                    }
                ],
            },
        ),
    )
    async def put_event_type(self, request: web.Request, type: str, body: EventTypeEntry) -> EventTypeView:
        """Declare an event type, or replace its entry."""
        record_audit(request, type)
        _check(type, body)
        await self._catalogue.put(type, body)
        return event_type_view(type, body)

    @route(
        "DELETE",
        "/v1/event-types/{type}",
        scope=ADMIN,
        audit="type.removed",
        answer="The event type was removed.",
        problems=(NOT_FOUND,),
    )
    async def remove_event_type(self, request: web.Request, type: str) -> EventTypeView:
        """Remove an event type. Messages of the type are no longer checked."""
        record_audit(request, type)
        entry = self._found(type)
        await self._catalogue.remove(type)
        return event_type_view(type, entry)

    def _found(self, type: str) -> EventTypeEntry:
        entry = self._catalogue.types.get(type)
        if entry is None:
            raise Problem(NOT_FOUND, f"The catalogue has no event type {type[:80]!r}.")
        return entry


def _check(name: str, entry: EventTypeEntry) -> None:
    try:
        check_type_name(name)
        check_event_type(entry)
    except SchemaError as error:
        at = {"detail": error.detail, "pointer": error.pointer}
        raise Problem(INVALID_EVENT_TYPE, f"{error.pointer or 'the name'}: {error.detail}", errors=(at,)) from None


def event_type_view(name: str, entry: EventTypeEntry) -> EventTypeView:
    versions = [view_as(EventVersionView, each, examples=list(each.examples)) for each in entry.versions]
    return view_as(EventTypeView, entry, type=name, versions=versions)
