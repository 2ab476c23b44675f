"""Incidents: the list, and the page of one, where it is fixed: fix, test, replay, all back."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from relay.client import ApiError
from relay.client.http import path
from relay.client.mending import Fix, Tested, apply_fix, is_tested_first, replay_letters, test_endpoint
from relay.domain.hop import NO_RECEIVER
from relay.domain.incident import PartyType, State
from relay.domain.replay_job import OVER
from relay.pages.page import get, live, post
from relay.pages.receiver_form import Field, credentials_of, mistakes_of, renewed_credentials
from relay.pages.visit import Visit, see
from relay.schema.incidents import IncidentDetail, IncidentParty, IncidentView
from relay.schema.replays import JobView

HERE: Final = "/ui/incidents"
_PAGE: Final = 50
_MOST_READ: Final = 100
"""Unresolved incidents from which another page has the most urgent ones."""
TABS: Final = (("Unresolved", ""), ("Resolved", "resolved"))
UNRESOLVED: Final[Sequence[State]] = ("open", "acknowledged")
RESOLVED: Final[Sequence[State]] = ("resolved",)
_CHANGED: Final = (Field("post_endpoint", "URL"), Field("callback.url", "URL of the callback"))
"""The entry's fields that its form changes."""
_WHERE: Final[Mapping[str, str]] = {
    "receiver": "/ui/receivers/{}",
    "source": "/ui/sources/{}",
}


@get("/incidents")
async def incidents(visit: Visit) -> web.StreamResponse:
    query = visit.filters("state", "party")
    is_resolved, party = query.get("state") == "resolved", query.get("party")
    states = RESOLVED if is_resolved else UNRESOLVED
    parties = () if party is None else (party,)
    page = visit.api.incidents.page(state=states, party=parties, limit=_PAGE, cursor=visit.cursor)
    found = await visit.load_list(page)
    here = TABS[is_resolved][0]
    return visit.show("incidents.html", found=found, tabs=tabs(party), here=here, party=party)


@get("/incidents/{id}")
async def incident_page(visit: Visit) -> web.StreamResponse:
    """A link to an incident that never opened, as one that Sentry has may be, leads to those of its party."""
    found = await visit.result(visit.api.incidents.get(visit.part("id")))
    party = visit.filters("party").get("party")
    if not isinstance(found, ApiError):
        return await _show_incident(visit, found)
    if found.status == 404 and party:
        return see(f"{HERE}?{urlencode({'party': party})}")
    raise found


@live("/live/incidents/{id}")
async def incident_progress(visit: Visit) -> str:
    incident = await visit.api.incidents.get(visit.part("id"))
    return visit.fragment("incident_progress.html", **await _progress(visit, incident))


@post("/incidents/{id}/mend")
async def mend(visit: Visit) -> web.StreamResponse:
    """Fix, test, replay: the first that is refused is shown beside the form."""
    incident, form = await visit.api.incidents.get(visit.part("id")), await visit.form()
    is_tested, first = not form.get("anyway"), is_tested_first(incident)
    if is_tested and first and (failed := await _failed_test(visit, incident)) is not None:
        return await _show_incident(visit, incident, form=form, tested=failed)
    fixed = await visit.result(apply_fix(visit.api, incident, fix_of(form)))
    if isinstance(fixed, ApiError):
        return await _show_incident(visit, incident, form=form, problem=fixed)
    if is_tested and not first and (failed := await _failed_test(visit, incident)) is not None:
        return await _show_incident(visit, incident, form=form, tested=failed, fixed=fixed)
    job = await visit.result(replay_letters(visit.api, incident))
    if isinstance(job, ApiError):
        return await _show_incident(visit, incident, form=form, problem=job, fixed=fixed)
    query = "" if job is None else f"?job={job['id']}"
    return visit.back(f"{page_of(incident)}{query}", _done(fixed), "plain")


async def _failed_test(visit: Visit, incident: IncidentDetail) -> Tested | None:
    """The result of a test that did not pass; None if it passed, or is not possible."""
    tested = await visit.result(test_endpoint(visit.api, incident))
    return None if isinstance(tested, ApiError) or tested is None or tested.passed else tested


async def _show_incident(
    visit: Visit,
    incident: IncidentDetail,
    *,
    form: Mapping[str, str] | None = None,
    problem: ApiError | None = None,
    tested: Tested | None = None,
    fixed: list[str] | None = None,
) -> web.Response:
    job = visit.request.query.get("job", "")
    query = f"?job={job}" if job.isalnum() else ""
    return visit.show(
        "incident.html",
        form=form or {},
        problem=problem,
        mistakes=mistakes_of(problem, _CHANGED),
        anew=credentials_of(problem),
        tested=tested,
        fixed=fixed or [],
        live=path("/ui/live/incidents/{}", incident["id"]) + query,
        where=party_page(incident["party"]),
        **await _progress(visit, incident),
    )


def tabs(party: str | None) -> list[tuple[str, str, int | None]]:
    """The views of the list. `party`: of whose incidents alone."""
    queries = [(label, {"state": state, "party": party or ""}) for label, state in TABS]
    return [
        (label, f"{HERE}?{urlencode({k: v for k, v in query.items() if v})}".rstrip("?"), None)
        for label, query in queries
    ]


def page_of(incident: IncidentView) -> str:
    return path("/ui/incidents/{}", incident["id"])


def party_page(party: IncidentParty) -> str | None:
    """The page of the party at fault; None for a part of the relay, and for the receiver of messages without one."""
    found = _WHERE.get(party["type"])
    return None if found is None or party["name"] == NO_RECEIVER else path(found, party["name"])


def fix_of(form: Mapping[str, str]) -> Fix:
    """The fix that the form describes; empty fields change nothing."""
    secret, token, url = (form.get(name, "").strip() or None for name in ("secret", "bearer_token", "url"))
    return Fix(secret, token, url, renewed_credentials(form))


async def unresolved(visit: Visit, *, party: str | None = None) -> list[IncidentView]:
    """Unresolved incidents for another page, errors first; empty if they cannot be read."""
    parties = () if party is None else (party,)
    found = await visit.load_list(visit.api.incidents.page(state=UNRESOLVED, party=parties, limit=_MOST_READ))
    return sorted(found.items, key=lambda one: one["severity"] != "error")


async def unresolved_of(visit: Visit, kind: PartyType, name: str) -> list[IncidentView]:
    """As `unresolved`, of one receiver or source: both may have the same name."""
    return [one for one in await unresolved(visit, party=name) if one["party"]["type"] == kind]


async def _progress(visit: Visit, incident: IncidentDetail) -> dict[str, Any]:
    job = await _job(visit, visit.request.query.get("job", ""))
    is_back = incident["state"] == "resolved" or incident["cleared_at"] is not None
    return {
        "it": incident,
        "job": job,
        "share": None if job is None else share(job),
        "job_is_over": job is not None and is_over(job),
        "is_back": is_back and not incident["waiting"] and (job is None or is_over(job)),
    }


async def _job(visit: Visit, id: str) -> JobView | None:
    """The replay that the page has begun; None if it is not known any more."""
    if not id.isalnum():
        return None
    job = await visit.result(visit.api.replays.get(id))
    return None if isinstance(job, ApiError) else job


def _done(fixed: list[str]) -> str:
    words = ", ".join(fixed)
    return f"{words[:1].upper()}{words[1:]}." if words else "Started."


def share(job: JobView) -> float | None:
    """The progress of a replay, from 0 to 1; None until its size is known."""
    if job["counted"] is None:
        return None
    return 1.0 if job["counted"] == 0 else min(1.0, (job["sent"] + job["skipped"]) / job["counted"])


def is_over(job: JobView) -> bool:
    return job["state"] in OVER
