"""Erasures: payloads that are deleted on request."""

import secrets
from contextlib import suppress
from typing import Annotated, Final

from aiohttp import web

from relay.api.access import ADMIN, access_of
from relay.api.audit import record_audit
from relay.api.context import ApiContext
from relay.api.paging import NewestFirstPages, Rank
from relay.api.parameter import PageLimit, cursor_of
from relay.api.problems import TOO_MANY_ERASURES, invalid, invalid_at
from relay.api.responses import view_as
from relay.api.route import Example, json_of, route
from relay.api.shares import sharer_of
from relay.api.status import StatusReader
from relay.domain.erasure import Erasure
from relay.domain.errors import Unavailable
from relay.domain.identity import MessageId, check_id, is_receiver_name
from relay.domain.replay_job import Selection
from relay.domain.times import rfc3339
from relay.domain.topics import SHARED, Topics, TopicSpec
from relay.replay.replay_service import TooMany
from relay.schema.operation import ErasurePage, ErasureRequest, ErasureView, NewErasureView, RemainsView
from relay.state.rows import Row

PAGES: Final = NewestFirstPages("[0-9a-f]{16}")


class ErasuresResource:
    """`/v1/erasures`."""

    noun = "erasures"

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._clock = context.clock
        self._topics = context.topics
        self._service = context.erasures
        self._replays = context.replays
        self._reader = reader

    @route(
        "POST",
        "/v1/erasures",
        scope=ADMIN,
        audit="payloads.erased",
        body=json_of(ErasureRequest),
        answer="In effect in this process, and in all others within 2 s.",
        status=201,
        problems=(TOO_MANY_ERASURES,),
        example=Example(201, body={"source_id": "github", "message_id": "sent-9"}),
    )
    async def erase_payloads(self, request: web.Request, body: ErasureRequest) -> NewErasureView:
        """Erase the payloads of a source, a message or a receiver.

        Of all messages that were received before. The history deletes them with the sender's headers, and the attempts.
        They are not shown, exported, copied, replayed or sent any more: unfinished deliveries end as `discarded`, as
        soon as they are next due. Those that were not sent yet are cancelled. What other receivers got, too,
        is erased for the given receiver alone.
        """
        erasure = self._erasure(request, body)
        whom = erasure.receiver or erasure.source_id
        record_audit(request, whom, **{} if erasure.message_id is None else {"message_id": erasure.message_id})
        await self._service.erase(erasure)
        return {
            **_view(erasure),
            "in_history": await self._service.erase_in_history(erasure),
            "cancels": await self._cancelled(erasure, sharer_of(request).name),
            "remains": remains(self._topics, erasure.made_at),
        }

    async def _cancelled(self, erasure: Erasure, by: str) -> str | None:
        """Cancels what was not sent, so that no parked copy keeps its payload until it is due: of a message here, of a
        source or receiver by a job, whose path is returned."""
        if erasure.source_id is not None and erasure.message_id is not None:
            with suppress(Unavailable):  # then each ends when it is due
                known = await self._reader.find(MessageId(erasure.source_id, erasure.message_id))
                if known is not None:
                    for delivery in self._reader.deliveries(known):
                        await self._replays.cancel(delivery, Row(), known.received_ms)
            return None
        named = erasure.receiver, erasure.source_id, erasure.message_id
        receivers, sources, ids = (frozenset(filter(None, [each])) for each in named)
        selection = Selection(receivers, sources, ids=ids, until_ms=int(erasure.made_at * 1000) + 1)
        try:
            order, _ = await self._replays.order("cancel", selection, only_failed=False, by=by)
            return f"/v1/replays/{(await self._replays.submit(order)).order.id}"
        except TooMany:
            return None

    @route("GET", "/v1/erasures", scope=ADMIN, answer="A page, newest first.")
    async def list_erasures(self, limit: PageLimit, cursor: Annotated[Rank | None, cursor_of(PAGES)]) -> ErasurePage:
        """List the erasures in force: those of the last 90 days."""
        page, following = PAGES.page(limit, cursor, self._service.known.all(), lambda each: (each.made_at, each.id))
        return ErasurePage(items=[_view(each) for each in page], cursor=following)

    def _erasure(self, request: web.Request, body: ErasureRequest) -> Erasure:
        """Raises a Problem."""
        source_id, message_id, receiver = body.source_id, body.message_id, body.receiver
        if receiver is not None and (source_id, message_id) != (None, None):
            raise invalid("receiver and source_id exclude each other: make two erasures", pointer="/receiver")
        if receiver is None and source_id is None:
            why = "message_id is unique in a source only: give its source_id" if message_id else "nothing is named"
            raise invalid(f"{why}; give source_id, source_id and message_id, or receiver", pointer="/source_id")
        if receiver is not None and not is_receiver_name(receiver):
            raise invalid(f"receiver is {receiver[:80]!r}, which is not a receiver name", pointer="/receiver")
        for name, text in (("source_id", source_id), ("message_id", message_id)):
            with invalid_at(pointer=f"/{name}"):
                check_id("-" if text is None else text, name)
        made_at, who = round(self._clock.time(), 3), access_of(request).who
        return Erasure(secrets.token_hex(8), made_at, who, source_id, message_id, receiver)


def remains(topics: Topics, made_at: float) -> list[RemainsView]:
    """The topics that still have payloads; `*` stands for the lanes of all receivers."""
    lanes = (TopicSpec(topics.to_receiver("*"), 1), TopicSpec(topics.pending("*"), 1))
    without = {topics.receiver_config, topics.audit, topics.to_receiver(SHARED), topics.pending(SHARED)}
    return [
        {"topic": spec.name, "until": None if spec.retention_s is None else rfc3339(made_at + spec.retention_s)}
        for spec in (*topics.fixed(), *lanes)
        if spec.name not in without
    ]


def _view(erasure: Erasure) -> ErasureView:
    return view_as(ErasureView, erasure, made_at=rfc3339(erasure.made_at))
