"""Replay, discard and cancel of many: the jobs, whose records are on the log."""

from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Final, cast

import msgspec
from aiohttp import web
from msgspec import structs

from relay.api.access import OWN, Need, access_of, check_own, is_admin, life_of, may_see
from relay.api.audit import changed_nothing, record_audit
from relay.api.bounds import bounds_of
from relay.api.context import ApiContext
from relay.api.incoming import IDEMPOTENCY_KEY, key_of
from relay.api.paging import NewestFirstPages, Rank
from relay.api.parameter import MessageIdText, PageLimit, Parameter, cursor_of, id_of
from relay.api.problems import KEY_REUSED, NOT_FOUND, TOO_MANY_JOBS, Problem, busy
from relay.api.replay_selection import check_delivered, check_rate, selection_of
from relay.api.responses import json_response, view_as
from relay.api.route import Declare, DocumentedResponse, Example, json_of, route
from relay.api.shares import Shares, sharer_of
from relay.control.projections import ReplayJob
from relay.domain.hop import NO_RECEIVER
from relay.domain.replay_job import Action, JobState, ReplayOrder, Selection, eta_s
from relay.domain.times import rfc3339
from relay.replay.replay_service import ExpiredRecords, ReplayPreview, TooMany
from relay.schema.replays import (
    Cancels,
    Discards,
    GapReplays,
    JobPage,
    JobView,
    PreviewView,
    ReplayRequestView,
    Replays,
)


def job_view(job: ReplayJob, now: float) -> JobView:
    """`now`: Unix seconds."""
    order, progress = job.order, job.progress
    left_s = None if job.stopping else eta_s(progress, now)
    return {
        "id": order.id,
        "action": order.action,
        "state": "stopping" if job.stopping and not job.is_over else cast("JobState", progress.state),
        "detail": progress.detail,
        "request": request_view(order),
        "made_at": rfc3339(order.made_at),
        "begun_at": rfc3339(progress.begun_at),
        "ended_at": rfc3339(progress.ended_at),
        "counted": progress.counted,
        "sent": progress.sent,
        "skipped": sum(progress.skipped.values()),
        "skipped_because": dict(sorted(progress.skipped.items())),
        "eta": None if left_s is None else rfc3339(now + left_s),
        "eta_s": None if left_s is None else round(left_s, 1),
    }


def request_view(order: ReplayOrder) -> ReplayRequestView:
    """The request of a job, with absolute times; omitted fields are null."""
    chosen: Selection = order.selection
    return {
        "receiver": sorted(chosen.receivers) or None,
        "source": sorted(chosen.sources) or None,
        "reason": sorted(chosen.reasons) or None,
        "status": sorted(chosen.statuses) or None,
        "stage": sorted(chosen.stages) or None,
        "ids": sorted(chosen.ids) or None,
        "since": _moment_ms(chosen.since_ms),
        "until": _moment_ms(chosen.until_ms),
        "first": chosen.first_number,
        "last": chosen.last_number,
        "only_failed": order.only_failed,
        "rate": order.rate,
    }


def preview_view(
    order: ReplayOrder, preview: ReplayPreview, gone: ExpiredRecords, unknown_receivers: list[str]
) -> PreviewView:
    """`complete` false: there is more than could be counted in the time that a request may take. `gone`: records that
    the log does not have any more, and that may have matched. `unremembered`: how many of those to be sent failed so
    long ago that it is not known whether they were replayed before."""
    return view_as(
        PreviewView,
        preview,
        dry_run=True,
        action=order.action,
        request=request_view(order),
        skipped=preview.skipped.total(),
        skipped_because=dict(sorted(preview.skipped.items())),
        gone=None if gone.before_ms is None else {"records": gone.records, "before": _moment_ms(gone.before_ms)},
        not_found=list(preview.not_found),
        unknown_receivers=unknown_receivers,
    )


def _moment_ms(moment_ms: int | None) -> str | None:
    return None if moment_ms is None else rfc3339(moment_ms / 1000)


DRY_RUN_S: Final = 20.0
"""A count that takes longer returns the number that it has reached."""
MOST_DRY_RUNS: Final = 8
"""Maximum number of dry runs at a time in a process."""
JOB_S: Final = 30
"""Seconds after which a client should ask again whether a job has ended."""
PAGES: Final = NewestFirstPages("[0-9a-f]{1,32}")
_KEY_DIGITS: Final = 24
"""Of the id of a job with an `Idempotency-Key`; the other 8 are of the body."""
JobId = Annotated[str, id_of("job", "[0-9a-f]{1,32}", "5f0c2ba7d1e94c36")]
REPEATABLE: Final = Parameter(
    IDEMPOTENCY_KEY, MessageIdText, "Again, it returns the first job; with another body it is refused.", "header"
)
JOB_ANSWERS: Final = (
    DocumentedResponse(
        202,
        "The job, which was stored.",
        json_of(JobView),
        {"Location": "The path of the job.", "Idempotent-Replayed": "`true` for a repeated request."},
    ),
    DocumentedResponse(200, "With `dry_run`: what it would do.", json_of(PreviewView)),
)


def job_route(path: str, *, scope: Need, audit: str, example: Example) -> Declare:
    """The route of a POST that starts a job, or only says what it would do."""
    return route(
        "POST",
        path,
        scope=scope,
        audit=audit,
        parameters=(REPEATABLE,),
        answers=JOB_ANSWERS,
        problems=(TOO_MANY_JOBS, KEY_REUSED),
        example=example,
    )


class ReplaysResource:
    """`POST /v1/replays`, `/v1/discards` and `/v1/cancels`, and the jobs that they begin."""

    noun = "replays"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._service = context.replays
        self._counting = Shares("dry_run", "places for dry runs", MOST_DRY_RUNS, context.meter)

    @job_route(
        "/v1/replays",
        scope=OWN,
        audit="replay.started",
        example=Example(202, body={"receiver": "ci", "since": "2d", "rate": 10}),
    )
    async def begin_replay(self, request: web.Request, body: Replays) -> web.Response:
        """Replay many deliveries.

        This starts a job, which survives restarts and sends each delivery once. `dry_run` only counts.
        """
        check_delivered(body)
        return await self._begin(request, "replay", body, only_failed=body.only_failed)

    @job_route(
        "/v1/discards",
        scope=OWN,
        audit="discard.started",
        example=Example(200, body={"receiver": "ci", "reason": "rejected", "dry_run": True}),
    )
    async def begin_discard(self, request: web.Request, body: Discards) -> web.Response:
        """Discard many deliveries."""
        return await self._begin(request, "discard", body, only_failed=True)

    @job_route(
        "/v1/cancels",
        scope=OWN,
        audit="cancel.started",
        example=Example(200, body={"receiver": "ci", "source": "github", "dry_run": True}),
    )
    async def begin_cancel(self, request: web.Request, body: Cancels) -> web.Response:
        """Cancel many deliveries that were not sent yet."""
        return await self._begin(request, "cancel", body.as_discards(), only_failed=False)

    async def _begin(self, request: web.Request, action: Action, asked: Discards, *, only_failed: bool) -> web.Response:
        selection = selection_of(asked, self._context.clock.time())
        return await self.begin(request, action, selection, asked, only_failed=only_failed)

    async def begin(
        self,
        request: web.Request,
        action: Action,
        selection: Selection,
        asked: Discards | GapReplays,
        *,
        only_failed: bool = True,
    ) -> web.Response:
        check_own(request, selection.receivers)
        selection = _within_rights(request, selection)
        check_rate(asked.rate)
        caller = sharer_of(request)
        key = key_of(request)
        id = "" if key is None or asked.dry_run else _job_id(caller.name, request.path, key, asked)
        if id and (first := await self._service.job(id)) is not None:
            return self._repeated(request, first)
        if id and any(job.order.id[:_KEY_DIGITS] == id[:_KEY_DIGITS] for job in self._service.jobs.all()):
            raise Problem(KEY_REUSED, f"A job with the {IDEMPOTENCY_KEY} {key!r} has another body.")
        try:
            order, gone = await self._service.order(
                action, selection, only_failed=only_failed, rate=asked.rate, by=caller.name, id=id
            )
            if asked.dry_run:
                changed_nothing(request)
                async with self._counting.turn(caller, bounds_of(request).check_again):
                    found = await self._service.preview(order, seconds=DRY_RUN_S)
                unknown = [name for name in found.no_delivery if not self._is_known(name)]
                return json_response(200, preview_view(order, found, gone, unknown))
            job = await self._service.submit(order, unlimited=caller.is_admin)
        except TooMany as error:
            self._context.meter.over_share("replay")
            raise busy(str(error), TOO_MANY_JOBS, JOB_S) from error
        if job.order != order:
            return self._repeated(request, job)
        record_audit(request, order.id, receivers=sorted(selection.receivers), sources=sorted(selection.sources))
        return self._begun(job)

    def _is_known(self, receiver: str) -> bool:
        return receiver == NO_RECEIVER or self._context.has_receiver(receiver)

    def _repeated(self, request: web.Request, first: ReplayJob) -> web.Response:
        changed_nothing(request)
        return self._begun(first, {"Idempotent-Replayed": "true"})

    def _begun(self, job: ReplayJob, headers: Mapping[str, str] = MappingProxyType({})) -> web.Response:
        return json_response(202, self._view(job), Location=f"/v1/replays/{job.order.id}", **headers)

    @route("GET", "/v1/replays", scope=OWN, answer="A page, newest first.")
    async def list_jobs(
        self, request: web.Request, limit: PageLimit, cursor: Annotated[Rank | None, cursor_of(PAGES)]
    ) -> JobPage:
        """List jobs that replay, discard or cancel."""
        own = (job for job in self._service.jobs.all() if _sees(request, job))
        page, following = PAGES.page(limit, cursor, own, lambda job: (job.order.made_at, job.order.id))
        return JobPage(items=[self._view(job) for job in page], cursor=following)

    @route("GET", "/v1/replays/{id}", scope=OWN, answer="The job.")
    async def get_job(self, request: web.Request, id: JobId) -> JobView:
        """Get the progress of a job."""
        return self._view(_found(request, await self._service.job(id)))

    @route(
        "POST",
        "/v1/replays/{id}/stop",
        scope=OWN,
        audit="replay.stopped",
        answers=(
            DocumentedResponse(202, "The job is stopping.", json_of(JobView)),
            DocumentedResponse(200, "The job had already ended.", json_of(JobView)),
        ),
        example=Example(202),
    )
    async def stop_job(self, request: web.Request, id: JobId) -> web.Response:
        """Stop a job.

        What it has done until then stays done.
        """
        _found(request, await self._service.job(id))
        job = _found(request, await self._service.stop(id))
        return json_response(200 if job.is_over else 202, self._view(job))

    def _view(self, job: ReplayJob) -> JobView:
        return job_view(job, self._context.clock.time())


def _job_id(caller: str, path: str, key: str, asked: Discards | GapReplays) -> str:
    """The same for each repetition of a request: its selection may be relative to the present time, its body is not."""
    keyed = sha256(b"\0".join((caller.encode(), path.encode(), key.encode()))).hexdigest()
    return keyed[:_KEY_DIGITS] + sha256(msgspec.json.encode(asked)).hexdigest()[: 32 - _KEY_DIGITS]


def _found(request: web.Request, job: ReplayJob | None) -> ReplayJob:
    if job is None or not _sees(request, job):
        check_own(request, [])
    if job is None:
        raise Problem(NOT_FOUND, "There is no such job, or it was deleted.")
    return job


def _sees(request: web.Request, job: ReplayJob) -> bool:
    """Whether a job is about the caller's receivers, in the current lives of their names."""
    selection = job.order.selection
    if not may_see(request, selection.receivers):
        return False
    return is_admin(request) or all(selection.has_life(name, life_of(request, name).id) for name in selection.receivers)


def _within_rights(request: web.Request, selection: Selection) -> Selection:
    """The part of the selection that the caller has rights for."""
    lives = {name: life_of(request, name).id for name in selection.receivers}
    selection = structs.replace(selection, lives=frozenset(f"{name}={id}" for name, id in lives.items() if id))
    if is_admin(request):
        return selection
    return structs.replace(selection, only_own=True, reads=access_of(request).named("read"))
