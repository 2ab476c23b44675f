"""The catalogue of event types, for operators and in the portal."""

from typing import Final

from aiohttp import web

from relay.pages.page import get
from relay.pages.render import pretty
from relay.pages.visit import Visit

_PAGE: Final = 50


@get("/event-types")
async def event_types(visit: Visit) -> web.StreamResponse:
    found = await visit.load_list(visit.api.event_types.page(limit=_PAGE, cursor=visit.cursor))
    return visit.show("event_types.html", found=found)


@get("/event-types/{type}")
async def event_type(visit: Visit) -> web.StreamResponse:
    name = visit.part("type")
    found = await visit.load(visit.api.event_types.get(name))
    versions = [
        (each["version"], pretty(each["schema"]), [pretty(example) for example in each["examples"]])
        for each in reversed(found.value["versions"] if found.value else [])
    ]
    return visit.show("event_type.html", name=name, found=found, versions=versions)
