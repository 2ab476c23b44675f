"""The catalogue of event types: declared by administrators, read by every caller."""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from relay.api.access import ADMIN, CALLER
from relay.api.asyncapi import asyncapi
from relay.api.audit import record_audit
from relay.api.context import ApiContext
from relay.api.paging import cursor_behind
from relay.api.problems import INVALID_EVENT_TYPE, NOT_FOUND, TOO_MANY_EVENT_TYPES, Problem
from relay.api.responses import json_response
from relay.api.route import CURSOR, LIMIT, DocumentedResponse, Example, Parameter, json_of, route
from relay.control.event_types import Catalogue, TooManyTypes
from relay.domain.event_type import EventTypeEntry, SchemaError, check_event_type, check_type_name
from relay.schema.event_types import EventTypePage, EventTypeView, EventVersionView

_MOST_BYTES: Final = 256 * 1024
_NOUN: Final = "event types"
_TYPE: Final = Parameter("type", "path", Annotated[str, Meta(min_length=1)], "Name of the event type.")
_AT: Final = {"type": "build.finished"}


class EventTypesResource:
    """`/v1/event-types`."""

    def __init__(self, context: ApiContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue

    @route(
        "GET",
        "/v1/event-types",
        scope=CALLER,
        id="listEventTypes",
        noun=_NOUN,
        parameters=(LIMIT, CURSOR),
        answers=(DocumentedResponse(200, "A page, sorted by name.", json_of(EventTypePage)),),
        example=Example(200, query={"limit": "10"}),
    )
    async def list(self, _request: web.Request, limit: int, cursor: str) -> web.Response:
        """List the event types of the catalogue."""
        names = [name for name in self._catalogue.types.names() if name > cursor]
        items = [event_type_view(name, entry) for name in names[:limit] if (entry := self._catalogue.types.get(name))]
        more = len(names) > limit
        page: EventTypePage = {"items": items, "cursor": cursor_behind(names[limit - 1]) if more else None}
        return json_response(200, page)

    @route(
        "GET",
        "/v1/asyncapi",
        scope=CALLER,
        id="getAsyncApiOfTypes",
        noun=_NOUN,
        answers=(DocumentedResponse(200, "AsyncAPI 3.0.", json_of(dict[str, object])),),
        example=Example(200),
    )
    async def asyncapi(self, _request: web.Request) -> web.Response:
        """Get the AsyncAPI document with the messages of the catalogue.

        Like `/asyncapi.json`, which needs no key, with a message for each version of an event type.
        """
        return json_response(200, asyncapi(self._context.topics, self._catalogue.types.all()))

    @route(
        "GET",
        "/v1/event-types/{type}",
        scope=CALLER,
        id="getEventType",
        noun=_NOUN,
        parameters=(_TYPE,),
        answers=(DocumentedResponse(200, "The entry in effect.", json_of(EventTypeView)),),
        problems=(NOT_FOUND,),
        example=Example(200, path=_AT),
    )
    async def show(self, _request: web.Request, type: str) -> web.Response:
        """Get an event type with its schemas and examples."""
        return json_response(200, event_type_view(type, self._found(type)))

    @route(
        "PUT",
        "/v1/event-types/{type}",
        scope=ADMIN,
        audit="type.declared",
        id="putEventType",
        noun=_NOUN,
        parameters=(_TYPE,),
        body=json_of(EventTypeEntry, required=False),
        most_bytes=_MOST_BYTES,
        answers=(
            DocumentedResponse(200, "In effect in this process, and in all others within 2 s.", json_of(EventTypeView)),
        ),
        problems=(INVALID_EVENT_TYPE, TOO_MANY_EVENT_TYPES),
        example=Example(
            200,
            path=_AT,
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
    async def put(self, request: web.Request, type: str, body: EventTypeEntry) -> web.Response:
        """Declare an event type, or replace its entry."""
        record_audit(request, type)
        _check(type, body)
        try:
            await self._catalogue.put(type, body)
        except TooManyTypes as error:
            raise Problem(TOO_MANY_EVENT_TYPES, str(error)) from error
        return json_response(200, event_type_view(type, body))

    @route(
        "DELETE",
        "/v1/event-types/{type}",
        scope=ADMIN,
        audit="type.removed",
        id="removeEventType",
        noun=_NOUN,
        parameters=(_TYPE,),
        answers=(DocumentedResponse(200, "The event type was removed.", json_of(EventTypeView)),),
        problems=(NOT_FOUND,),
        example=Example(200, path=_AT),
    )
    async def remove(self, request: web.Request, type: str) -> web.Response:
        """Remove an event type. Messages of the type are no longer checked."""
        record_audit(request, type)
        entry = self._found(type)
        await self._catalogue.remove(type)
        return json_response(200, event_type_view(type, entry))

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
    versions: list[EventVersionView] = [
        {"version": each.version, "schema": each.schema, "examples": list(each.examples)} for each in entry.versions
    ]
    return {"type": name, "description": entry.description, "deprecated": entry.deprecated, "versions": versions}
