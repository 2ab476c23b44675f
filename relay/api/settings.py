"""`GET /v1/settings`: the settings that this process has in force, and where each comes from."""

from typing import Final

from aiohttp import web

from relay.api.access import ADMIN
from relay.api.context import ApiContext
from relay.api.responses import json_response
from relay.api.route import DocumentedResponse, Example, json_of, route
from relay.schema.operation import SettingItem, SettingsView

_NOUN: Final = "overview"


class SettingsResource:
    """The route, for administrators."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @route(
        "GET",
        "/v1/settings",
        scope=ADMIN,
        id="listSettings",
        noun=_NOUN,
        answers=(DocumentedResponse(200, "The settings.", json_of(SettingsView)),),
        example=Example(200),
    )
    async def show(self, _request: web.Request) -> web.Response:
        """Get the settings in effect, and the origin of each.

        Those of the process that answers; another one may have others. Secrets are masked. `relay config show` prints
        the same for a shell.
        """
        items: list[SettingItem] = [
            {"name": one.name, "value": one.value, "source": one.source} for one in self._context.settings
        ]
        return json_response(200, SettingsView(items=items))
