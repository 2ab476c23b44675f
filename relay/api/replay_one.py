"""Replay, discard and cancel of one: a delivery, or a dead letter."""

from math import ceil
from typing import Final

from aiohttp import web

from relay.api.access import CANCELLER, DELIVERY, OWN, access_of, check_own, forbidden, is_admin, may_read, may_see_of
from relay.api.audit import has_changed
from relay.api.context import ApiContext
from relay.api.failed import InPartition, is_about_own_receiver
from relay.api.problems import ALREADY_SENT, NOT_FAILED, NOT_FOUND, NOT_REPLAYABLE, Problem, invalid
from relay.api.reading import message_in_path, message_location
from relay.api.responses import json_response
from relay.api.route import DocumentedResponse, Example, json_of, route
from relay.api.status import StatusReader
from relay.api.view import KnownMessage
from relay.api.waiters import (
    ANSWER_GONE,
    ANSWERED,
    FAILURES,
    WAIT_PARAMETERS,
    Waiters,
    requested_wait,
)
from relay.domain.coordinate import Coordinate
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import DeliveryId, MessageId, is_receiver_name
from relay.domain.replay_job import Action
from relay.replay.letter import Letter
from relay.replay.plan import Original, ReplayPlan
from relay.schema.replays import Nothing, One, OneView
from relay.state.rows import Row, Stage

Who = tuple[str | None, str | None, str | None]
"""Receiver, source and message id; each None if unknown."""


_NO_DELIVERY: Final = "No such delivery is known: it was never received, has not been read yet, or is too old."
_DONE: Final = (DocumentedResponse(202, "The request was accepted.", json_of(OneView)),)
_NOTHING: Final = json_of(Nothing, required=False)
_FAILED_ONE: Final = {"source_id": "github", "message_id": "failed-1", "receiver": "ci"}


class ReplayResource:
    """`POST .../replay` and `.../discard` of a delivery, and of a dead letter."""

    noun = "replays"

    def __init__(self, context: ApiContext, reader: StatusReader, waiters: Waiters) -> None:
        self._context = context
        self._service = context.replays
        self._reader = reader
        self._waiters = waiters

    @route(
        "POST",
        "/v1/failed/{partition}/{offset}/replay",
        scope=OWN,
        audit="delivery.replayed",
        noun="dead letters",
        body=_NOTHING,
        answers=_DONE,
        problems=(NOT_REPLAYABLE,),
        example=Example(202),
    )
    async def replay_failed(self, request: web.Request, partition: InPartition, offset: int) -> web.Response:
        """Replay a dead letter."""
        return await self._letter("replay", request, partition, offset)

    @route(
        "POST",
        "/v1/failed/{partition}/{offset}/discard",
        scope=OWN,
        audit="delivery.discarded",
        noun="dead letters",
        body=_NOTHING,
        answers=_DONE,
        problems=(NOT_REPLAYABLE,),
        example=Example(202),
    )
    async def discard_failed(self, request: web.Request, partition: InPartition, offset: int) -> web.Response:
        """Discard a dead letter."""
        return await self._letter("discard", request, partition, offset)

    @route(
        "POST",
        "/v1/sources/{source_id}/messages/{message_id}/deliveries/{receiver}/replay",
        scope=DELIVERY,
        audit="delivery.replayed",
        parameters=WAIT_PARAMETERS,
        answers=(*_DONE, ANSWERED),
        problems=(NOT_FAILED, NOT_REPLAYABLE, ANSWER_GONE, *FAILURES),
        example=Example(202, path=_FAILED_ONE, body={"only_failed": True}),
    )
    async def replay_delivery(self, request: web.Request, body: One) -> web.Response:
        """Replay a delivery."""
        wait = requested_wait(request, self._context.limits.wait_s)
        delivery = _delivery(request)
        row, letter = await self._visible(request, delivery)
        same_life = not is_admin(request)
        plan = await self._again(delivery, row, letter, only_failed=body.only_failed, same_life=same_life)
        accepted = _done("replay", delivery, plan)
        has_changed(request)
        if wait is None:
            return accepted
        waited = await self._waiters.wait(request, delivery, wait, generation=plan.out[0].generation)
        if waited.response is not None:
            return waited.response
        identity = MessageId(delivery.source_id, delivery.message_id)
        accepted.headers.update({"Location": message_location(identity), **waited.headers})
        return accepted

    @route(
        "POST",
        "/v1/sources/{source_id}/messages/{message_id}/deliveries/{receiver}/discard",
        scope=DELIVERY,
        audit="delivery.discarded",
        body=_NOTHING,
        answers=_DONE,
        problems=(NOT_FAILED, NOT_REPLAYABLE),
        example=Example(202, path=_FAILED_ONE),
    )
    async def discard_delivery(self, request: web.Request) -> web.Response:
        """Discard a delivery, or its dead letter."""
        delivery = _delivery(request)
        row, letter = await self._visible(request, delivery)
        if letter is not None:
            return await self._do(request, "discard", letter, delivery)
        return await self._discard_waiting(delivery, row)

    @route(
        "POST",
        "/v1/sources/{source_id}/messages/{message_id}/deliveries/{receiver}/cancel",
        scope=CANCELLER,
        audit="delivery.cancelled",
        body=_NOTHING,
        answers=_DONE,
        problems=(ALREADY_SENT,),
        example=Example(202),
    )
    async def cancel_delivery(self, request: web.Request) -> web.Response:
        """Cancel a delivery that was not sent yet.

        It is never sent, and its sender gets a notice with the reason `cancelled`.
        """
        delivery = _delivery(request)
        if access_of(request).may("ingest", delivery.source_id):
            row = (await self._service.executor.rows([delivery]))[delivery]
        else:
            row, _ = await self._visible(request, delivery)
        if row.park_intent:  # the message of a parked one may not be known any more
            known = await self._reader.find(MessageId(delivery.source_id, delivery.message_id))
        else:
            known = await self._known(delivery)
        if not await self._service.cancel(delivery, row, None if known is None else known.received_ms):
            raise Problem(ALREADY_SENT, "An attempt was started, or the delivery has ended: look up the message.")
        return json_response(202, _of_one("cancel", delivery, row.generation, None))

    async def again(self, delivery: DeliveryId, *, only_failed: bool) -> ReplayPlan:
        """Replay one, now, for the relay itself. Raises a Problem where it did not fail, or its dead letter
        is gone."""
        row, letter = await self._row_and_letter(delivery)
        receiver = self._context.directory.receiver(delivery.receiver)
        same_life = receiver is not None and receiver.owner is not None
        return await self._again(delivery, row, letter, only_failed=only_failed, same_life=same_life)

    async def _again(
        self, delivery: DeliveryId, row: Row, letter: Letter | None, *, only_failed: bool, same_life: bool
    ) -> ReplayPlan:
        if letter is not None:
            return await self._service.do("replay", letter, same_life=same_life)
        return await self._not_failed(delivery, row, only_failed=only_failed, same_life=same_life)

    async def _row_and_letter(self, delivery: DeliveryId) -> tuple[Row, Letter | None]:
        row = (await self._service.executor.rows([delivery]))[delivery]
        return row, await self._service.letter_of(delivery, row)

    async def _visible(self, request: web.Request, delivery: DeliveryId) -> tuple[Row, Letter | None]:
        """Its row, and the dead letter that the caller may act on; one that was on its way back to the sender only with
        the right to read its source. Raises a Problem where the delivery was to a former receiver of that name."""
        row, letter = await self._row_and_letter(delivery)
        if not is_admin(request):
            life, origin = await self._life(delivery, letter)
            if not may_see_of(request, delivery.receiver, life, origin):
                raise Problem(NOT_FOUND, _NO_DELIVERY)
        if letter is not None and letter.is_of_sender and not may_read(request, delivery.source_id):
            return row, None
        if letter is None and row.stage is Stage.FAILED:
            raise Problem(NOT_FOUND, "Its dead letter is no longer in the log.")
        return row, letter

    async def _life(self, delivery: DeliveryId, letter: Letter | None) -> tuple[str, Coordinate | None]:
        """The life of its receiver's name, if its dead letter says it, and the place of its message."""
        if letter is not None:
            return letter.life, letter.dead.origin
        known = await self._reader.find_restored(MessageId(delivery.source_id, delivery.message_id))
        return "", None if known is None else known.at

    async def _do(self, request: web.Request, action: Action, letter: Letter, who: Who) -> web.Response:
        return _done(action, who, await self._service.do(action, letter, same_life=not is_admin(request)))

    async def _not_failed(self, delivery: DeliveryId, row: Row, *, only_failed: bool, same_life: bool) -> ReplayPlan:
        known = await self._known(delivery)
        if row.stage is Stage.NONE:
            await self._service.check_rows([delivery.receiver])
        _check_letter_is_due(row)
        if row.stage not in (Stage.PUBLISHED, Stage.DONE):
            raise Problem(NOT_FAILED, "It is still in progress, and has not failed.")
        if only_failed:
            again = 'set {"only_failed": false}, or use `relay replay delivery` with --all'
            raise Problem(NOT_FAILED, f"It was delivered. To send it once more, {again}.")
        original = Original(known.message, known.at, known.received_ms or 0)
        return await self._service.send_again(original, delivery, row, same_life=same_life)

    async def _discard_waiting(self, delivery: DeliveryId, row: Row) -> web.Response:
        await self._known(delivery)
        _check_letter_is_due(row)
        if row.stage >= Stage.RESULT:
            raise Problem(NOT_FAILED, "It was delivered: there is nothing to discard.")
        if not await self._service.discard_waiting(delivery, row):
            raise Problem(NOT_FAILED, "It ended in another way in the meantime.")
        return json_response(202, _of_one("discard", delivery, row.generation, None))

    async def _known(self, delivery: DeliveryId) -> KnownMessage:
        """The delivery's message. Raises a Problem if the delivery is unknown."""
        known = await self._reader.find_restored(MessageId(delivery.source_id, delivery.message_id))
        if known is None or delivery not in self._reader.deliveries(known):
            raise Problem(NOT_FOUND, _NO_DELIVERY)
        return known

    async def _letter(self, action: Action, request: web.Request, partition: int, offset: int) -> web.Response:
        """The dead letter at a place on `failed_messages`."""
        letter = await self._service.letter_at(partition, offset)
        if letter is not None and not is_about_own_receiver(request, letter):
            raise forbidden(OWN)
        check_own(request, [] if letter is None else [letter.facts.receiver or NO_RECEIVER])
        if letter is None:
            raise Problem(NOT_FOUND, f"failed_messages has no record at {partition}/{offset} (any more).")
        return await self._do(request, action, letter, letter.facts[:3])


def _check_letter_is_due(row: Row) -> None:
    """Raises a Problem if it has failed, and its dead letter is yet to come."""
    if row.stage is not Stage.RESULT:
        return
    if row.due_in_s > 0:
        left = f"{ceil(row.due_in_s)} s"
        raise Problem(NOT_FAILED, f"An attempt may still arrive: it ends in {left}, and has a dead letter then.")
    if row.result is not None and row.result.outcome == "dead":
        raise Problem(NOT_FAILED, "Its dead letter is not written yet: try again once its lane has reached the record.")


def _done(action: Action, who: Who, plan: ReplayPlan) -> web.Response:
    """The response to an action on one delivery. Raises a Problem if it was not possible."""
    if plan.skip is not None:
        raise Problem(NOT_REPLAYABLE, _SKIPS.get(plan.skip, plan.skip))
    first = plan.out[0]
    return json_response(202, _of_one(action, who, first.generation, first.record.topic))


def _of_one(action: Action, who: Who, generation: int, topic: str | None) -> OneView:
    """The view of one delivery. `topic`: where its record is now; None if its lane will handle it."""
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


_SKIPS: Final = {
    "replayed": "It was replayed already: a later life of this delivery is known.",
    "discarded": "It was discarded already.",
    "delivered": "It was delivered after all.",
    "incomplete": "Its dead letter lacks a part of the record, which was too large for the log.",
    "erased": "Its payload was erased on request.",
    "unknown_receiver": "There is no such receiver (any more).",
    "unknown_stage": "Its dead letter is of a topic that no step reads.",
    "invalid": "Its record cannot be read, or lacks what its source keeps for the callback.",
    "configuration": "The entry of its source cannot be read here, for example for want of a secret: try again later.",
    "id_conflict": "Another message has its id: send it again with an id of its own.",
    "too_large": "It is larger than is allowed now.",
    "under_way": "It is still in progress.",
    "failed": "It has failed: its dead letter is what can be replayed.",
}
"""Why a delivery could not be replayed or discarded."""
