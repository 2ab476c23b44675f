"""`GET /v1/settings`: the settings that this process has in force, and where each comes from."""

from relay.api.access import ADMIN
from relay.api.context import ApiContext
from relay.api.route import route
from relay.schema.operation import SettingItem, SettingsView


class SettingsResource:
    """The route, for administrators."""

    noun = "overview"

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @route("GET", "/v1/settings", scope=ADMIN, answer="The settings.")
    async def list_settings(self) -> SettingsView:
        """Get the settings in effect, and the origin of each.

        Those of the process that answers; another one may have others. Secrets are masked. `relay config show` prints
        the same for a shell.
        """
        items: list[SettingItem] = [
            {"name": one.name, "value": one.value, "source": one.source} for one in self._context.settings
        ]
        return SettingsView(items=items)
