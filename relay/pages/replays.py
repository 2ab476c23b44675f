"""Replays: the jobs that send many dead letters again, or discard them, and how far each of them is."""

from typing import Any, ClassVar, Final

from aiohttp import web

from relay.domain.replay_job import OVER
from relay.pages.api_client import path
from relay.pages.page import Nav, PageRoutes
from relay.pages.visit import Visit

_JOB: Final = "/v1/replays/{}"


class ReplaysPage:
    """The list, and one job as it goes on."""

    nav: ClassVar[Nav | None] = Nav("Replays", "/ui/replays", portal=True)

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/replays", self.list)
        routes.get("/replays/{id:[^/]+}", self.show)
        routes.live("/live/replays", self.rows)
        routes.live("/live/replays/{id:[^/]+}", self.progress)

    async def list(self, visit: Visit) -> web.StreamResponse:
        found = await visit.load("/v1/replays", visit.filters("cursor"))
        return visit.show("replays.html", found=found, share=share, is_over=is_over)

    async def rows(self, visit: Visit) -> str:
        found = await visit.load("/v1/replays", visit.filters("cursor"))
        if found.problem is not None:
            raise found.problem
        return visit.fragment("replays_rows.html", found=found, share=share, is_over=is_over)

    async def show(self, visit: Visit) -> web.StreamResponse:
        job = await visit.api.get(path(_JOB, visit.part("id")))
        live = path("/ui/live/replays/{}", visit.part("id"))
        return visit.show("replay.html", job=job, share=share(job), is_over=is_over(job), live=live)

    async def progress(self, visit: Visit) -> str:
        job = await visit.api.get(path(_JOB, visit.part("id")))
        return visit.fragment("replay_progress.html", job=job, share=share(job), is_over=is_over(job))


def share(job: Any) -> float | None:
    """How much of it is done, from 0 to 1; None while it is not known how much there is."""
    if job["counted"] is None:
        return None
    return 1.0 if job["counted"] == 0 else min(1.0, (job["sent"] + job["skipped"]) / job["counted"])


def is_over(job: Any) -> bool:
    return job["state"] in OVER
