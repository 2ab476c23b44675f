"""`GET /v1/settings`: the settings that this process has in force, and where each comes from."""

from typing import TypedDict

from aiohttp import web

from relay.api.context import ApiContext
from relay.api.json_body import json_response
from relay.api.reading import query_of

SETTINGS = "/v1/settings"


class SettingItem(TypedDict):
    """`value`: as text, secrets masked. `source`: an option, variable, or file and field; or `default`."""

    name: str
    value: str
    source: str


class SettingsView(TypedDict):
    """Of the process that was asked, in the order of the documentation."""

    items: list[SettingItem]


class SettingsResource:
    """The route, for administrators."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get(SETTINGS, self.show)

    async def show(self, request: web.Request) -> web.Response:
        """Nothing in it is secret, but where things are is nobody else's business."""
        query_of(request)
        items: list[SettingItem] = [
            {"name": one.name, "value": one.value, "source": one.source} for one in self._context.settings
        ]
        return json_response(200, SettingsView(items=items))
