"""Failed: what was given up, by receiver and reason; many sent again or discarded, once it was said how many."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from aiohttp import web

from relay.domain.reasons import REASONS
from relay.pages.api_client import ApiProblem, path
from relay.pages.failed_groups import HOURS, groups_of
from relay.pages.page import Nav, PageRoutes
from relay.pages.visit import Loaded, Visit

HERE: Final = "/ui/failed"
_A_PAGE: Final = "1000"
_MOST_PAGES: Final = 5
_SHOWN: Final = 200
"""Letters in a list; the groups count all that were read."""
_CHOOSING: Final = ("receiver", "reason", "source", "since", "until")
_TARGETS: Final = {"replay": "/v1/replays", "discard": "/v1/discards"}


class FailedPage:
    """The groups, the letters of one, and the actions on all of one."""

    nav: ClassVar[Nav | None] = Nav("Failed", HERE, portal=True)

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/failed", self.show)
        routes.post("/failed/all", self.all)

    async def show(self, visit: Visit) -> web.StreamResponse:
        query = visit.filters("receiver", "reason", "source")
        found, is_all = await _letters(visit, query.get("receiver"))
        letters = [each for each in found.items if _is_meant(each, query)]
        return visit.show(
            "failed.html",
            found=found,
            letters=letters[:_SHOWN],
            count=len(letters),
            is_all=is_all,
            groups=groups_of(letters, visit.renderer.now()),
            hours=HOURS,
            asked={name: query.get(name, "") for name in ("receiver", "reason", "source")},
            filtered=bool(query),
            reasons=[("", "Any"), *((each, each.replace("_", " ")) for each in REASONS)],
        )

    async def all(self, visit: Visit) -> web.StreamResponse:
        """Replay or discard of all that the form chooses: counted first, then begun as a job."""
        form = await visit.form()
        action = form.get("action", "")
        if action not in _TARGETS:
            raise ApiProblem(400, "invalid-request", "The form is not complete", "Load the page again.")
        wanted = chosen(form)
        if not form.get("confirmed"):
            counted = await visit.api.call("POST", _TARGETS[action], body={**wanted, "dry_run": True})
            return visit.show(
                "failed_all.html", action=action, form=form, counted=counted.value, names=(*_CHOOSING, "back")
            )
        if rate := form.get("rate", "").strip():
            wanted["rate"] = _number(rate)
        job = (await visit.api.call("POST", _TARGETS[action], body=wanted)).value
        return visit.back(path("/ui/replays/{}", job["id"]), "It has begun.", "plain")


def chosen(form: Mapping[str, str]) -> dict[str, Any]:
    """What a replay or a discard is about, as the API takes it."""
    return {name: form[name].strip() for name in _CHOOSING if form.get(name, "").strip()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ApiProblem(422, "invalid-request", "The rate is no number", f"{text[:40]!r}: give one, as 50.") from None


def _is_meant(letter: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    return query.get("reason") in (None, letter["reason"]) and query.get("source") in (None, letter["source_id"])


async def _letters(visit: Visit, receiver: str | None) -> tuple[Loaded, bool]:
    """The newest, so many pages of them, and whether these are all."""
    query = {"limit": _A_PAGE} | ({} if receiver is None else {"receiver": receiver})
    items: Sequence[Any] = ()
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        found = await visit.load("/v1/failed", query | ({} if cursor is None else {"cursor": cursor}))
        if found.problem is not None:
            return found, False
        items, cursor = [*items, *found.items], found.cursor
        if cursor is None:
            break
    return Loaded({"items": items}), cursor is None
