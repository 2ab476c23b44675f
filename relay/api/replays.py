"""Replay and discard: of many as a job, whose records are on the log; of one at once."""

import re
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from relay.api.access import OWN, access_of, check_own, forbidden, is_admin, life_of, may_read, may_see, may_see_of
from relay.api.audit_verbs import changed_nothing, has_changed, record_audit
from relay.api.context import ApiContext
from relay.api.failed import is_of_theirs
from relay.api.json_body import json_response, read_json
from relay.api.paging import NewestFirstPages
from relay.api.problems import (
    NOT_FAILED,
    NOT_FOUND,
    NOT_REPLAYABLE,
    TOO_MANY_JOBS,
    Problem,
    invalid,
)
from relay.api.reading import MESSAGE_PATH, message_in_path, message_location, query_of, read_body
from relay.api.replay_request import (
    MOST_BYTES,
    Discards,
    One,
    Replays,
    check_delivered,
    check_rate,
    problem_of_skip,
    selection_of,
)
from relay.api.replay_view import JobPage, JobView, OneView, job_view, preview_view
from relay.api.shares import Shares, caller_of
from relay.api.status import KnownMessage, StatusReader
from relay.api.wait_query import WAIT, wait_asked
from relay.api.waiters import ASK_AGAIN_S, Waiters
from relay.control.replay_jobs import ReplayJob
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import DeliveryId, MessageId, is_receiver_name
from relay.domain.replay_job import Action
from relay.domain.selection import Selection
from relay.replay.letter import Letter
from relay.replay.plan import ReplayPlan
from relay.replay.replay_service import ReplayService, TooMany
from relay.state.rows import Row, Stage

DRY_RUN_S: Final = 20.0
"""A count that takes longer tells what it has by then."""
MOST_DRY_RUNS: Final = 8
"""At a time, in a process."""
JOB_S: Final = 30
"""After which it is worth asking again whether a job is over."""
PAGES: Final = NewestFirstPages("[0-9a-f]{1,32}")
_NO_DELIVERY: Final = "No such delivery is known: it never came, is still on its way, or was long ago."
_PLACE: Final = "/v1/failed/{partition:[^/]+}/{offset:[^/]+}"
_UNFINISHED: Final = frozenset({Stage.NONE, Stage.ENQUEUED, Stage.SENDING, Stage.ACCEPTED, Stage.AWAITING})


Who = tuple[str | None, str | None, str | None]
"""Receiver, source and message id, as far as they are known."""


class _Told(NamedTuple):
    """What was done about one."""

    action: Action
    who: Who
    plan: ReplayPlan


class ReplaysResource:
    """`POST /v1/replays` and `/v1/discards`, the jobs that they begin, and the same of one delivery or dead letter."""

    def __init__(self, context: ApiContext, desk: ReplayService, reader: StatusReader, waiters: Waiters) -> None:
        self._context = context
        self._desk = desk
        self._reader = reader
        self._waiters = waiters
        self._counting = Shares("dry_run", "places for dry runs", MOST_DRY_RUNS, context.meter)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/replays", self.replay)
        router.add_post("/v1/discards", self.discard)
        router.add_get("/v1/replays", self.list)
        router.add_get("/v1/replays/{id}", self.get)
        router.add_post("/v1/replays/{id:[^/]+}/stop", self.stop)
        of_one = f"{MESSAGE_PATH}/deliveries/{{receiver:[^/]+}}"
        router.add_post(f"{of_one}/replay", self.replay_one)
        router.add_post(f"{of_one}/discard", self.discard_one)
        actions: tuple[Action, ...] = ("replay", "discard")
        for action in actions:
            router.add_post(f"{_PLACE}/{action}", partial(self._letter, action))

    # jobs

    async def replay(self, request: web.Request) -> web.Response:
        """202 with the job, once it is on the log; a dry run: 200 with what it would do."""
        asked = await self._read(request, Replays)
        check_delivered(asked)
        return await self._begin(request, "replay", asked, only_failed=asked.only_failed)

    async def discard(self, request: web.Request) -> web.Response:
        return await self._begin(request, "discard", await self._read(request, Discards), only_failed=True)

    async def _begin(self, request: web.Request, action: Action, asked: Discards, *, only_failed: bool) -> web.Response:
        selection = selection_of(asked, self._context.clock.time())
        check_own(request, selection.receivers)
        selection = _within_rights(request, selection)
        check_rate(asked.rate)
        caller = caller_of(request)
        try:
            order, gone = await self._desk.order(
                action, selection, only_failed=only_failed, rate=asked.rate, by=caller.name
            )
            if asked.dry_run:
                changed_nothing(request)
                async with self._counting.turn(caller):
                    found = await self._desk.preview(order, seconds=DRY_RUN_S)
                return json_response(200, preview_view(order, found, gone))
            job = await self._desk.submit(order, unlimited=caller.is_admin)
        except TooMany as error:
            self._context.meter.over_share("replay")
            raise Problem(TOO_MANY_JOBS, str(error), headers={"Retry-After": str(JOB_S)}) from error
        record_audit(request, order.id, receivers=sorted(selection.receivers))
        return json_response(202, self._view(job), Location=f"/v1/replays/{order.id}")

    async def list(self, request: web.Request) -> web.Response:
        """Newest first. `cursor`: behind the last one that was seen, whatever came or went since."""
        query = query_of(request, "limit", "cursor")
        own = (job for job in self._desk.jobs.all() if _sees(request, job))
        page, cursor = PAGES.page(query, own, _rank)
        return json_response(200, JobPage(items=[self._view(job) for job in page], cursor=cursor))

    async def get(self, request: web.Request) -> web.Response:
        query_of(request)
        return json_response(200, self._view(_found(request, await self._desk.job(request.match_info["id"]))))

    async def stop(self, request: web.Request) -> web.Response:
        """What was sent stays sent; of one that is over nothing changes."""
        query_of(request)
        id = request.match_info["id"]
        _found(request, await self._desk.job(id))
        job = _found(request, await self._desk.stop(id))
        return json_response(200 if job.is_over else 202, self._view(job))

    def _view(self, job: ReplayJob) -> JobView:
        return job_view(job, self._context.clock.time())

    async def _read(self, request: web.Request, kind: type[Any]) -> Any:
        query_of(request)
        return read_json(await read_body(request, MOST_BYTES), kind)

    # one

    async def _letter(self, action: Action, request: web.Request) -> web.Response:
        """The dead letter at a place on `failed_messages`."""
        await self._read(request, Nothing)
        partition, offset = _place(request)
        letter = await self._desk.letter_at(partition, offset)
        if letter is not None and not is_of_theirs(request, letter):
            raise forbidden(OWN)
        check_own(request, [] if letter is None else [letter.facts.receiver or NO_RECEIVER])
        if letter is None:
            raise Problem(NOT_FOUND, f"failed_messages has no record at {partition}/{offset} (any more).")
        return await self._do(action, letter, letter.facts[:3])

    async def replay_one(self, request: web.Request) -> web.Response:
        """202 once it is on its way; with `wait`, the receiver's answer to it."""
        query_of(request, WAIT)
        wait = wait_asked(request, self._context.limits.wait_s)
        asked, delivery = read_json(await read_body(request, MOST_BYTES), One), _delivery(request)
        await self._check_own(request, delivery)
        returns = may_read(request, delivery.source_id)
        plan = await self.again(delivery, only_failed=asked.only_failed, returns=returns)
        told = self._told(_Told("replay", delivery, plan))
        has_changed(request)
        if wait is None:
            return told
        waited = await self._waiters.wait(request, delivery, wait, generation=plan.out[0].generation)
        if waited.response is not None:
            return waited.response
        identity = MessageId(delivery.source_id, delivery.message_id)
        told.headers.update({"Location": message_location(identity), "Retry-After": str(ASK_AGAIN_S)})
        told.headers.update(waited.headers)
        return told

    async def discard_one(self, request: web.Request) -> web.Response:
        await self._read(request, Nothing)
        delivery = _delivery(request)
        await self._check_own(request, delivery)
        row, letter = await self._row_and_letter(delivery, returns=may_read(request, delivery.source_id))
        if letter is not None:
            return await self._do("discard", letter, delivery)
        return await self._discard_waiting(delivery, row)

    async def _check_own(self, request: web.Request, delivery: DeliveryId) -> None:
        """Raises a Problem where the delivery was to a former receiver of that name."""
        if is_admin(request):
            return
        row = (await self._desk.hands.rows([delivery]))[delivery]
        letter = await self._desk.letter_of(delivery, row)
        if letter is not None:
            life, origin = letter.life, letter.dead.origin
        else:
            known = await self._reader.find(MessageId(delivery.source_id, delivery.message_id))
            life, origin = "", None if known is None else known.at
        if not may_see_of(request, delivery.receiver, life, origin):
            raise Problem(NOT_FOUND, _NO_DELIVERY)

    async def again(self, delivery: DeliveryId, *, only_failed: bool, returns: bool = True) -> ReplayPlan:
        """Replay one, now. `returns`: also a result that did not come back to its sender. Raises a Problem where it did
        not fail, or its dead letter is gone."""
        row, letter = await self._row_and_letter(delivery, returns=returns)
        if letter is not None:
            return await self._desk.do("replay", letter)
        return await self._not_failed(delivery, row, only_failed=only_failed)

    async def _row_and_letter(self, delivery: DeliveryId, *, returns: bool) -> tuple[Row, Letter | None]:
        row = (await self._desk.hands.rows([delivery]))[delivery]
        letter = await self._desk.letter_of(delivery, row)
        if letter is not None and letter.is_of_sender and not returns:
            return row, None
        if letter is None and row.stage is Stage.FAILED:
            raise Problem(NOT_FOUND, "Its dead letter is not in the log any more.")
        return row, letter

    async def _do(self, action: Action, letter: Letter, who: Who) -> web.Response:
        return self._told(_Told(action, who, await self._desk.do(action, letter)))

    async def _not_failed(self, delivery: DeliveryId, row: Row, *, only_failed: bool) -> ReplayPlan:
        known = await self._known(delivery)
        if row.stage not in (Stage.PUBLISHED, Stage.DONE):
            raise Problem(NOT_FAILED, "It is still under way, and has not failed.")
        if only_failed:
            raise Problem(NOT_FAILED, 'It was delivered. To have it sent once more, say {"only_failed": false}.')
        return await self._desk.send_again(known.message, known.at, known.received_ms or 0, delivery, row)

    async def _discard_waiting(self, delivery: DeliveryId, row: Row) -> web.Response:
        await self._known(delivery)
        if row.stage not in _UNFINISHED:
            raise Problem(NOT_FAILED, "It was delivered: there is nothing to discard.")
        if not await self._desk.discard_waiting(delivery, row):
            raise Problem(NOT_FAILED, "It has just ended in another way.")
        return json_response(202, _of_one("discard", delivery, row.generation, None))

    async def _known(self, delivery: DeliveryId) -> KnownMessage:
        """Its message. Raises a Problem where nobody knows of this delivery."""
        known = await self._reader.find(MessageId(delivery.source_id, delivery.message_id))
        if known is None or delivery not in self._reader.deliveries(known):
            raise Problem(NOT_FOUND, _NO_DELIVERY)
        return known

    def _told(self, told: _Told) -> web.Response:
        action, who, plan = told
        if plan.skip is not None:
            raise Problem(NOT_REPLAYABLE, problem_of_skip(plan.skip))
        first = plan.out[0]
        return json_response(202, _of_one(action, who, first.generation, first.record.topic))


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """There is nothing to say: an empty body, or an empty object."""


def _of_one(action: Action, who: Who, generation: int, topic: str | None) -> OneView:
    """`topic`: where its record is now; None: its lane will see to it."""
    receiver, source_id, message_id = who
    return {
        "action": action,
        "receiver": receiver,
        "source_id": source_id,
        "message_id": message_id,
        "generation": generation,
        "topic": topic,
    }


def _delivery(request: web.Request) -> DeliveryId:
    name = request.match_info["receiver"]
    if name != NO_RECEIVER and not is_receiver_name(name):
        raise invalid(f"{name[:80]!r} is not a receiver name", path="receiver")
    return DeliveryId(name, *message_in_path(request))


def _place(request: web.Request) -> tuple[int, int]:
    partition, offset = request.match_info["partition"], request.match_info["offset"]
    if not (re.fullmatch("[0-9]{1,9}", partition) and re.fullmatch("[0-9]{1,18}", offset)):
        raise Problem(NOT_FOUND, "A place on failed_messages is a partition and an offset, such as 3/17.")
    return int(partition), int(offset)


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
