"""Pages about the relay itself: topics and workers, system, and doctor."""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from relay.pages.incidents import unresolved
from relay.pages.page import get, live
from relay.pages.visit import Loaded, Visit
from relay.schema.incidents import IncidentView, LaneItem
from relay.schema.operation import SettingItem

_MOST: Final = 1000
_FILTERS: Final = ("role", "receiver", "served")
ROLES: Final = [
    ("", "Any"),
    *((role, role) for role in ("from-sender", "to-receiver", "from-receiver-async", "to-sender", "failed-messages")),
]
DOCUMENTS: Final = (
    ("/docs", "The API", "every route with its parameters and responses, and a call with curl and Python"),
    ("/openapi.json", "OpenAPI 3.1", "the same as OpenAPI, for programs"),
    ("/asyncapi.json", "AsyncAPI 3.0", "the topics and their records, for programs that use Kafka"),
    ("/problems", "Problems", "each error, and what to do"),
    ("/metrics", "Metrics", "for Prometheus; once there are keys, with one that has the scope metrics"),
)
"""Address, name, and what it is for."""
_FOUND: Final = "/ui/doctor/found"


@get("/workers")
async def workers(visit: Visit) -> web.StreamResponse:
    return visit.show("working.html", **await _lanes_seen(visit))


@live("/live/workers", every_s=2.0)
async def worker_rows(visit: Visit) -> str:
    return visit.fragment("working_rows.html", **await _lanes_seen(visit))


async def _lanes_seen(visit: Visit) -> dict[str, Any]:
    query, by = visit.filters(*_FILTERS), visit.filters("by").get("by", "topic")
    lanes_page = visit.api.lanes_page(
        role=query.get("role", ()), receiver=query.get("receiver", ()), served=query.get("served"),
        limit=_MOST, cursor=visit.cursor,
    )  # fmt: skip
    found = await visit.load_list(lanes_page)
    lanes = sorted(found.items, key=lambda lane: lane["served"])  # stable: lanes without a process first
    return {"found": found, "query": query, "by": by, "lanes": lanes, "topics": topics_of(lanes), "roles": ROLES}


def topics_of(lanes: Iterable[LaneItem]) -> list[dict[str, Any]]:
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


@get("/system")
async def system(visit: Visit) -> web.StreamResponse:
    version = await visit.load(visit.api.version())
    readiness = await visit.load(visit.api.readiness())
    settings = await visit.load(visit.api.settings())
    if settings.problem is not None and settings.problem.status == HTTPStatus.FORBIDDEN:
        settings = Loaded()  # they are for administrators, and their absence is no problem
    items = settings.value["items"] if settings.value else ()
    return visit.show(
        "system.html",
        found=version,
        readiness=readiness,
        settings=settings,
        given=rows_of(items, given=True),
        left=rows_of(items, given=False),
        documents=DOCUMENTS,
    )


def rows_of(items: Iterable[SettingItem], *, given: bool) -> list[tuple[str, str, str]]:
    """Name of the variable, value, and where it comes from; of those that were `given`, or were left at their
    defaults."""
    return [
        (f"RELAY_{one['name'].upper()}", one["value"], one["source"])
        for one in items
        if (one["source"] != "default") == given
    ]


@get("/doctor")
async def doctor(visit: Visit) -> web.StreamResponse:
    query = visit.filters("receiver")
    later = f"{_FOUND}?{urlencode(query)}" if query else _FOUND
    return visit.show("doctor.html", found=None, later=later, query=query, causes=await _causes(visit, query))


@get("/doctor/found")
async def doctor_found(visit: Visit) -> web.StreamResponse:
    """A part of the page; the whole of it for browsers without scripts."""
    query = visit.filters("receiver")
    found = await visit.load(visit.api.doctor(receiver=query.get("receiver")))
    if visit.is_partial:
        return visit.show("doctor_found.html", found=found, query=query)
    return visit.show("doctor.html", found=found, query=query, causes=await _causes(visit, query))


async def _causes(visit: Visit, query: Mapping[str, str]) -> Sequence[IncidentView]:
    """The unresolved incidents, of all parties or of the receiver that is checked."""
    return await unresolved(visit, party=query.get("receiver"))
