"""Replay and discard of many: jobs, whose records are on the log."""

from dataclasses import replace
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from relay.api.access import (
    OWN,
    access_of,
    check_own,
    is_admin,
    life_of,
    may_see,
)
from relay.api.audit_lines import changed_nothing, record_audit
from relay.api.context import ApiContext
from relay.api.json_body import json_response
from relay.api.paging import NewestFirstPages
from relay.api.problems import (
    NOT_FOUND,
    TOO_MANY_JOBS,
    Problem,
)
from relay.api.reading import query_of
from relay.api.replay_request import check_delivered, check_rate, selection_of
from relay.api.replay_view import job_view, preview_view
from relay.api.route import (
    LIMIT,
    DocumentedResponse,
    Example,
    Parameter,
    cursor_of,
    json_of,
    route,
)
from relay.api.shares import Shares, caller_of
from relay.control.replay_jobs import ReplayJob
from relay.domain.replay_job import Action
from relay.domain.selection import Selection
from relay.replay.replay_service import ReplayService, TooMany
from relay.schema.replays import Discards, JobPage, JobView, PreviewView, Replays

DRY_RUN_S: Final = 20.0
"""A count that takes longer returns the number that it has reached."""
MOST_DRY_RUNS: Final = 8
"""At a time, in a process."""
JOB_S: Final = 30
"""After which it is worth asking again whether a job is over."""
PAGES: Final = NewestFirstPages("[0-9a-f]{1,32}")


REPLAYS: Final = "replays"
_ID: Final = Parameter("id", "path", Annotated[str, Meta(pattern="^[0-9a-f]{1,32}$")], "Of the job.")
_JOB_ANSWERS: Final = (
    DocumentedResponse(202, "The job, once it is on the log.", json_of(JobView), {"Location": "The path of the job."}),
    DocumentedResponse(200, "With `dry_run`: what it would do.", json_of(PreviewView)),
)


class ReplaysResource:
    """`POST /v1/replays` and `/v1/discards`, and the jobs that they begin."""

    def __init__(self, context: ApiContext, service: ReplayService) -> None:
        self._context = context
        self._service = service
        self._counting = Shares("dry_run", "places for dry runs", MOST_DRY_RUNS, context.meter)

    @route(
        "POST",
        "/v1/replays",
        scope=OWN,
        audit="replay.started",
        id="beginReplay",
        noun=REPLAYS,
        body=json_of(Replays, required=False),
        answers=_JOB_ANSWERS,
        problems=(TOO_MANY_JOBS,),
        example=Example(202, body={"receiver": "ci", "since": "2d", "rate": 10}),
    )
    async def replay(self, request: web.Request, asked: Replays) -> web.Response:
        """Send many again.

        A job, which survives restarts and sends each once. `dry_run` counts first.
        """
        check_delivered(asked)
        return await self._begin(request, "replay", asked, only_failed=asked.only_failed)

    @route(
        "POST",
        "/v1/discards",
        scope=OWN,
        audit="discard.started",
        id="beginDiscard",
        noun=REPLAYS,
        body=json_of(Discards, required=False),
        answers=_JOB_ANSWERS,
        problems=(TOO_MANY_JOBS,),
        example=Example(200, body={"receiver": "ci", "reason": "rejected", "dry_run": True}),
    )
    async def discard(self, request: web.Request, asked: Discards) -> web.Response:
        """Discard many."""
        return await self._begin(request, "discard", asked, only_failed=True)

    async def _begin(self, request: web.Request, action: Action, asked: Discards, *, only_failed: bool) -> web.Response:
        selection = selection_of(asked, self._context.clock.time())
        check_own(request, selection.receivers)
        selection = _within_rights(request, selection)
        check_rate(asked.rate)
        caller = caller_of(request)
        try:
            order, gone = await self._service.order(
                action, selection, only_failed=only_failed, rate=asked.rate, by=caller.name
            )
            if asked.dry_run:
                changed_nothing(request)
                async with self._counting.turn(caller):
                    found = await self._service.preview(order, seconds=DRY_RUN_S)
                return json_response(200, preview_view(order, found, gone))
            job = await self._service.submit(order, unlimited=caller.is_admin)
        except TooMany as error:
            self._context.meter.over_share("replay")
            raise Problem(TOO_MANY_JOBS, str(error), headers={"Retry-After": str(JOB_S)}) from error
        record_audit(request, order.id, receivers=sorted(selection.receivers))
        return json_response(202, self._view(job), Location=f"/v1/replays/{order.id}")

    @route(
        "GET",
        "/v1/replays",
        scope=OWN,
        id="listJobs",
        noun=REPLAYS,
        parameters=(LIMIT, cursor_of(PAGES)),
        answers=(DocumentedResponse(200, "The newest first.", json_of(JobPage)),),
        example=Example(200, query={"limit": "10"}),
    )
    async def list(self, request: web.Request) -> web.Response:
        """Jobs that replay or discard."""
        query = query_of(request, "limit", "cursor")
        own = (job for job in self._service.jobs.all() if _sees(request, job))
        page, cursor = PAGES.page(query, own, _rank)
        return json_response(200, JobPage(items=[self._view(job) for job in page], cursor=cursor))

    @route(
        "GET",
        "/v1/replays/{id}",
        scope=OWN,
        id="getJob",
        noun=REPLAYS,
        parameters=(_ID,),
        answers=(DocumentedResponse(200, "The job.", json_of(JobView)),),
        example=Example(200, path={"id": "5f0c2ba7d1e94c36"}),
    )
    async def get(self, request: web.Request) -> web.Response:
        """How far a job is."""
        query_of(request)
        return json_response(200, self._view(_found(request, await self._service.job(request.match_info["id"]))))

    @route(
        "POST",
        "/v1/replays/{id}/stop",
        scope=OWN,
        audit="replay.stopped",
        id="stopJob",
        noun=REPLAYS,
        parameters=(_ID,),
        body=None,
        answers=(
            DocumentedResponse(202, "It stops.", json_of(JobView)),
            DocumentedResponse(200, "It was over already.", json_of(JobView)),
        ),
        example=Example(202, path={"id": "5f0c2ba7d1e94c36"}),
    )
    async def stop(self, request: web.Request) -> web.Response:
        """Stop a job.

        What was sent stays sent.
        """
        query_of(request)
        id = request.match_info["id"]
        _found(request, await self._service.job(id))
        job = _found(request, await self._service.stop(id))
        return json_response(200 if job.is_over else 202, self._view(job))

    def _view(self, job: ReplayJob) -> JobView:
        return job_view(job, self._context.clock.time())


def _found(request: web.Request, job: ReplayJob | None) -> ReplayJob:
    if job is None or not _sees(request, job):
        check_own(request, [])
    if job is None:
        raise Problem(NOT_FOUND, "There is no such job (any more).")
    return job


def _sees(request: web.Request, job: ReplayJob) -> bool:
    """Whether it is about receivers of the caller's, in the lives that their names have now."""
    selection = job.order.selection
    if not may_see(request, selection.receivers):
        return False
    return is_admin(request) or all(selection.has_life(name, life_of(request, name).id) for name in selection.receivers)


def _within_rights(request: web.Request, selection: Selection) -> Selection:
    """What the caller may have done of what it asks for."""
    lives = {name: life_of(request, name).id for name in selection.receivers}
    selection = replace(selection, lives=frozenset(f"{name}={id}" for name, id in lives.items() if id))
    if is_admin(request):
        return selection
    return replace(selection, only_own=True, reads=access_of(request).named("read"))


def _rank(job: ReplayJob) -> tuple[float, str]:
    return job.order.made_at, job.order.id
