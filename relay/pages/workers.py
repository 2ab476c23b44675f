"""Topics and workers: the backlog of each lane, and its owner. A lane without an owner is red."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from aiohttp import web

from relay.pages.page import Nav, PageRoutes
from relay.pages.visit import Visit

_MOST: Final = "1000"
_FILTERS: Final = ("role", "receiver", "served")
ROLES: Final = [
    ("", "all"),
    *((role, role) for role in ("from-sender", "to-receiver", "from-receiver-async", "to-sender", "failed-messages")),
]


class WorkersPage:
    """The lanes, by topic or one by one."""

    nav: ClassVar[Nav | None] = Nav("Topics and workers", "/ui/workers")

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/workers", self.show)
        routes.live("/live/workers", self.rows, every_s=2.0)

    async def show(self, visit: Visit) -> web.StreamResponse:
        return visit.show("working.html", **await self._seen(visit))

    async def rows(self, visit: Visit) -> str:
        return visit.fragment("working_rows.html", **await self._seen(visit))

    async def _seen(self, visit: Visit) -> dict[str, Any]:
        query, by = visit.filters(*_FILTERS), visit.filters("by").get("by", "topic")
        found = await visit.load("/v1/lanes", {**query, **visit.filters("cursor"), "limit": _MOST})
        lanes = sorted(found.items, key=lambda lane: lane["served"])  # stable: lanes without a process first
        return {"found": found, "query": query, "by": by, "lanes": lanes, "topics": topics_of(lanes), "roles": ROLES}


def topics_of(lanes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each topic, in the order in which they come."""
    found: dict[str, dict[str, Any]] = {}
    for lane in lanes:
        nothing = {"partitions": 0, "served": 0, "lag": 0, "rate": None, "oldest_s": None, "seen_s": None}
        row = found.setdefault(lane["topic"], {**lane, **nothing, "in_flight": 0, "processes": []})
        row["partitions"] += 1
        row["served"] += lane["served"]
        row["lag"] += lane["lag"]
        row["in_flight"] += lane["in_flight"]
        row["processes"] = sorted({*row["processes"], *filter(None, [lane["process"]])})
        row["rate"] = _sum(row["rate"], lane["rate"])
        row["oldest_s"] = _most(row["oldest_s"], lane["oldest_s"])
        row["seen_s"] = _most(row["seen_s"], lane["seen_s"])
    return list(found.values())


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one + (other or 0.0)


def _most(one: float | None, other: float | None) -> float | None:
    return other if one is None else max(one, other or 0.0)
