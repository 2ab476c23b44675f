"""Failed and Replays: dead letters by receiver and reason, and the jobs that replay or discard many of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from relay.client.http import path
from relay.domain.reasons import REASONS
from relay.pages.causes import group_advice
from relay.pages.incidents import is_over, share, unresolved
from relay.pages.page import Nav, Page, PageRoutes
from relay.pages.render import choices
from relay.pages.round_trip import moment
from relay.pages.visit import LoadedList, Visit, problem
from relay.schema.dead_letters import LetterView

HERE: Final = "/ui/failed"
_A_PAGE: Final = 200
"""Dead letters that are read for one page, which leads to older ones."""
_MOST_GROUPS: Final = 50
_CHOOSING: Final = ("receiver", "reason", "source", "since", "until")
HOURS: Final = 24
"""Hours of which a group shows the counts."""
_HOUR_S: Final = 3_600.0


class FailedPage(Page):
    """The groups, the letters of one, and the actions on all of one."""

    nav = Nav("Failed", HERE, portal=True)

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/failed", self.show)
        routes.post("/failed/all", self.all)

    async def show(self, visit: Visit) -> web.StreamResponse:
        query = visit.filters("receiver", "reason", "source")
        receivers = [query["receiver"]] if "receiver" in query else []
        found = await visit.load_list(visit.api.failed.page(receiver=receivers, limit=_A_PAGE, cursor=visit.cursor))
        is_all = found.cursor is None and visit.cursor is None
        letters = [each for each in found.items if _matches(each, query)]
        groups = groups_of(letters, visit.renderer.now())
        return visit.show(
            "failed.html",
            found=found,
            letters=letters,
            count=len(letters),
            is_all=is_all,
            groups=groups[:_MOST_GROUPS],
            more_groups=len(groups) - _MOST_GROUPS,
            hours=HOURS,
            asked={name: query.get(name, "") for name in ("receiver", "reason", "source")},
            filtered=bool(query),
            reasons=choices(tuple(REASONS)),
            causes=[one for one in (await unresolved(visit)).items if one["waiting"]] if not query else [],
        )

    async def all(self, visit: Visit) -> web.StreamResponse:
        """Replay or discard of all that the form chooses: counted first, then begun as a job."""
        form = await visit.form()
        action = form.get("action", "")
        if action not in ("replay", "discard"):
            raise problem(400, "invalid-request", "The form is not complete", "Load the page again.")
        wanted, replays = chosen(form), visit.api.replays
        if not form.get("confirmed"):
            counted = await (replays.preview if action == "replay" else replays.preview_discard)(**wanted)
            return visit.show("failed_all.html", action=action, form=form, counted=counted, names=(*_CHOOSING, "back"))
        if rate := form.get("rate", "").strip():
            wanted["rate"] = _number(rate)
        job = await (replays.create if action == "replay" else replays.discard)(**wanted)
        return visit.back(path("/ui/replays/{}", job["id"]), "Started.", "plain")


def chosen(form: Mapping[str, str]) -> dict[str, object]:
    """The selection of a replay or a discard, as the API takes it."""
    return {name: form[name].strip() for name in _CHOOSING if form.get(name, "").strip()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise problem(422, "invalid-request", "The rate is not a number", f"{text[:40]!r}: give one, as 50.") from None


def _matches(letter: LetterView, query: Mapping[str, str]) -> bool:
    return query.get("reason") in (None, letter["reason"]) and query.get("source") in (None, letter["source_id"])


@dataclass(frozen=True, slots=True)
class FailedGroup:
    """`newest`: its newest letter. `hours`: how many in each of the last HOURS hours, the present one last; `earlier`:
    before that. `share`: of each of these hours, from 0 to 1, of the fullest."""

    receiver: str
    reason: str
    count: int
    first_at: str | None
    newest: LetterView
    hours: tuple[int, ...]
    earlier: int
    advice: str

    @property
    def shares(self) -> tuple[float, ...]:
        most = max(self.hours) or 1
        return tuple(count / most for count in self.hours)


def groups_of(letters: Sequence[LetterView], now: float) -> list[FailedGroup]:
    """The largest first. `letters`: newest first. `now`: Unix seconds."""
    found: dict[tuple[str, str], list[LetterView]] = {}
    for letter in letters:
        found.setdefault((letter["receiver"], letter["reason"]), []).append(letter)
    groups = [_group(receiver, reason, each, now) for (receiver, reason), each in found.items()]
    return sorted(groups, key=lambda group: (-group.count, group.receiver, group.reason))


def _group(receiver: str, reason: str, letters: Sequence[LetterView], now: float) -> FailedGroup:
    hours, earlier = [0] * HOURS, 0
    for letter in letters:
        ago = int((now - (moment(letter["failed_at"]) or 0.0)) // _HOUR_S)
        if ago >= HOURS:
            earlier += 1
        else:
            hours[HOURS - 1 - max(0, ago)] += 1
    first = letters[-1]["failed_at"]
    return FailedGroup(
        receiver,
        reason,
        len(letters),
        first,
        letters[0],
        tuple(hours),
        earlier,
        group_advice(reason, letters[0]["last_status"]),
    )


class ReplaysPage(Page):
    """The list, and one job as it goes on."""

    nav = Nav("Replays", "/ui/replays", portal=True)

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/replays", self.list)
        routes.get("/replays/{id:[^/]+}", self.show)
        routes.live("/live/replays", self.rows)
        routes.live("/live/replays/{id:[^/]+}", self.progress)

    async def list(self, visit: Visit) -> web.StreamResponse:
        found = await visit.load_list(visit.api.replays.page(cursor=visit.cursor))
        return visit.show("replays.html", found=found, share=share, is_over=is_over)

    async def rows(self, visit: Visit) -> str:
        found = LoadedList(await visit.api.replays.page(cursor=visit.cursor))
        return visit.fragment("replays_rows.html", found=found, share=share, is_over=is_over)

    async def show(self, visit: Visit) -> web.StreamResponse:
        job = await visit.api.replays.get(visit.part("id"))
        live = path("/ui/live/replays/{}", visit.part("id"))
        return visit.show("replay.html", job=job, share=share(job), is_over=is_over(job), live=live)

    async def progress(self, visit: Visit) -> str:
        job = await visit.api.replays.get(visit.part("id"))
        return visit.fragment("replay_progress.html", job=job, share=share(job), is_over=is_over(job))
