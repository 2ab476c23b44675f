"""Sources, and how the callback of one is."""

import asyncio
from typing import Final

from aiohttp import web

from relay.client.http import path
from relay.pages.page import Nav, Page, PageRoutes
from relay.pages.receiver_form import settings_text
from relay.pages.visit import Visit

_PAGE: Final = 50


class SourcesPage(Page):
    """`/ui/sources`, and `/ui/sources/{id}`."""

    nav = Nav("Sources", "/ui/sources")

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/sources", self.list)
        routes.get("/sources/{source_id}", self.show)
        routes.post("/sources/{source_id}/pause", self.pause)

    async def list(self, visit: Visit) -> web.StreamResponse:
        found = await visit.load_list(visit.api.sources.page(limit=_PAGE, cursor=visit.cursor))
        return visit.show("sources.html", found=found)

    async def show(self, visit: Visit) -> web.StreamResponse:
        """Who may read a source, and no more, sees how its callback is, and not its settings."""
        source_id = visit.part("source_id")
        callback, source = await asyncio.gather(
            visit.load(visit.api.sources.callback(source_id)), visit.load(visit.api.sources.get(source_id))
        )
        if callback.problem is not None and callback.problem.status == 403:
            raise callback.problem
        known = (source.value["settings"] if source.value else None) or {}
        rows = [(name, settings_text(name, value)) for name, value in known.items()]
        return visit.show("source.html", source_id=source_id, callback=callback, source=source, rows=rows)

    async def pause(self, visit: Visit) -> web.StreamResponse:
        source_id, why = visit.part("source_id"), (await visit.form()).get("reason", "").strip()
        following = path("/ui/sources/{}", source_id)
        return await visit.change(visit.api.sources.pause(source_id, why), following, "Its callback is paused.")
