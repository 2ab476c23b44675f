"""Failed and Replays: dead letters by receiver and reason, and the jobs that replay or discard many of them."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aiohttp import web

from relay.client.http import path
from relay.domain.reasons import REASONS
from relay.pages.causes import group_advice
from relay.pages.incidents import is_over, share, unresolved
from relay.pages.page import get, live, post
from relay.pages.render import choices
from relay.pages.visit import LoadedList, Visit, own_url, problem
from relay.schema.replays import LetterGroupView

_HERE: Final = "/ui/failed"
_A_PAGE: Final = 50
"""Dead letters of a group on one page, which leads to older ones."""
_MOST_GROUPS: Final = 50
_FILTERS: Final = ("receiver", "reason", "source")
_CHOOSING: Final = ("receiver", "reason", "source", "since", "until")


@get("/failed")
async def failed(visit: Visit) -> web.StreamResponse:
    query = visit.filters(*_FILTERS)
    receiver, reason, source = ([query[name]] if name in query else [] for name in _FILTERS)
    groups = visit.api.failed.groups(receiver=receiver, reason=reason, source=source, limit=_MOST_GROUPS)
    found, letters = await visit.load(groups), None
    if receiver and reason:
        page = visit.api.failed.page(
            receiver=receiver, reason=reason, source=source, limit=_A_PAGE, cursor=visit.cursor
        )
        letters = await visit.load_list(page)
    return visit.show(
        "failed.html",
        found=found,
        letters=letters,
        groups=[_group(each) for each in found.value["items"]] if found.value else [],
        asked={name: query.get(name, "") for name in _FILTERS},
        filtered=bool(query),
        reasons=choices(tuple(REASONS)),
        causes=[one for one in await unresolved(visit) if one["waiting"]] if not query else [],
    )


@post("/failed/all")
async def replay_or_discard(visit: Visit) -> web.StreamResponse:
    """Replay or discard of all that the form chooses: counted first, then begun as a job."""
    form = await visit.form()
    action = form.get("action", "")
    if action not in ("replay", "discard"):
        raise problem(400, "invalid-request", "The form is not complete", "Load the page again.")
    wanted, replays = chosen(form), visit.api.replays
    if not form.get("confirmed"):
        counted = await (replays.preview if action == "replay" else replays.preview_discard)(**wanted)
        back = own_url(form.get("back", _HERE))
        return visit.show("failed_all.html", action=action, form=form, counted=counted, names=_CHOOSING, back=back)
    if rate := form.get("rate", "").strip():
        wanted["rate"] = _number(rate)
    job = await (replays.create if action == "replay" else replays.discard)(everything=True, **wanted)
    return visit.back(path("/ui/replays/{}", job["id"]), "Started.", "plain")


def chosen(form: Mapping[str, str]) -> dict[str, object]:
    """The selection of a replay or a discard, as the API takes it."""
    return {name: form[name].strip() for name in _CHOOSING if form.get(name, "").strip()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise problem(422, "invalid-request", "The rate is not a number", f"{text[:40]!r}: give one, as 50.") from None


class FailedGroup(NamedTuple):
    """A group as the page shows it. `shares`: the count of each hour, from 0 to 1 of the fullest; `earlier`: how many
    failed before these."""

    view: LetterGroupView
    shares: Sequence[float]
    earlier: int
    advice: str


def _group(view: LetterGroupView) -> FailedGroup:
    hours, newest = view["hours"], view["newest"]
    most = max(hours, default=0) or 1
    shares = [count / most for count in hours]
    return FailedGroup(
        view, shares, view["count"] - sum(hours), group_advice(view["reason"], newest and newest["last_status"])
    )


@get("/replays")
async def replays(visit: Visit) -> web.StreamResponse:
    found = await visit.load_list(visit.api.replays.page(cursor=visit.cursor))
    return visit.show("replays.html", found=found, share=share, is_over=is_over)


@live("/live/replays")
async def replay_rows(visit: Visit) -> str:
    found = LoadedList(await visit.api.replays.page(cursor=visit.cursor))
    return visit.fragment("replays_rows.html", found=found, share=share, is_over=is_over)


@get("/replays/{id}")
async def replay(visit: Visit) -> web.StreamResponse:
    job = await visit.api.replays.get(visit.part("id"))
    live = path("/ui/live/replays/{}", visit.part("id"))
    return visit.show("replay.html", job=job, share=share(job), is_over=is_over(job), live=live)


@live("/live/replays/{id}")
async def replay_progress(visit: Visit) -> str:
    job = await visit.api.replays.get(visit.part("id"))
    return visit.fragment("replay_progress.html", job=job, share=share(job), is_over=is_over(job))
