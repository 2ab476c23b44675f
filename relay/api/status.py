"""The state of a message, read from the rows and the records. Nothing is stored for it alone."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from msgspec import UNSET

from relay.api.context import ApiContext
from relay.api.view import (
    FoundDelivery,
    KnownMessage,
    delivery_view,
    has_failed,
    is_given_up,
    is_owed,
    letter_detail,
    message_view,
)
from relay.api.wait_context import WaitContext
from relay.api.waiting import delayed
from relay.domain.dead_letter import identity_of
from relay.domain.errors import Unavailable
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import OWN_SOURCE, DeliveryId, MessageId
from relay.domain.message import Message, message_of
from relay.domain.receiver import Source
from relay.domain.recipients import may_have_none, valid_recipients
from relay.log.port import Coordinate, Flaw, Record, read_each
from relay.schema.messages import MessageView
from relay.state.gaps import check_no_gap, has_gap
from relay.state.read_model import RowDetails
from relay.state.rows import MessageRow, MessageStage, Row, Stage, callback_row, delivery_row

MOST_ANSWERS: Final = 4 * 1024 * 1024
"""Bytes of answers that are shown with one message."""
CUT_ANSWER: Final = 1_024
"""Bytes that are shown of each answer beyond that."""
_NEWEST: Final = 1_000
"""Dead letters without a receiver that are searched for that of a message."""
_NOTHING: Final = RowDetails(Row())


def message_in(record: Record | None, identity: MessageId) -> Message | None:
    """The message in the record that was read at its place. None if it is gone: a topic that was created again has
    another record there, or none."""
    message = None if record is None else message_of(record.value, record.headers)
    return message if message is not None and message.id == identity else None


class StatusReader:
    """Reads the state of messages. Its methods raise LogUnavailable, StateUnavailable or StateRecovering."""

    def __init__(self, context: ApiContext) -> None:
        self._log = context.log
        self._state = context.state
        self._topics = context.topics
        self._directory = context.directory
        self._clock = context.clock
        self._dedup_window_s = context.dedup_window_s
        self._history = context.history
        self._wait_context = WaitContext(context)

    async def find(self, identity: MessageId) -> KnownMessage | None:
        """The message by its row and its first record; None where either is missing, or gone."""
        row = (await self._state.messages([identity]))[0]
        return None if row is None else await self.read(identity, row)

    async def find_restored(self, identity: MessageId) -> KnownMessage | None:
        """As `find`; but raises StateUnavailable if the row may be missing because the state lost it."""
        known = await self.find(identity)
        if known is None:
            await self.check_restored(identity)
        return known

    async def check_restored(self, identity: MessageId) -> None:
        """Raises StateUnavailable if the row of a message may be missing because the state lost it."""
        await check_no_gap(self._state, [f"s:{identity.source_id}"])

    async def read(self, identity: MessageId, row: MessageRow) -> KnownMessage | None:
        """The message that `row` points at; None where its record is gone."""
        at = Coordinate(self._topics.from_sender, row.partition, row.offset)
        [record] = await self._log.read([(at, None)])
        message = message_in(record, identity)
        if record is None or message is None:
            return None
        routed, names = row.stage is MessageStage.ENQUEUED, None
        if routed and message.receivers is None and not row.excluded:
            names = await self._routed_to(message, at)
        return KnownMessage(message, record.timestamp_ms, routed, at, names, row.excluded)

    async def _routed_to(self, message: Message, at: Coordinate) -> tuple[str, ...]:
        """The recipients of a routed message that names none: the present ones, without those that were registered
        after it, and those to which the history has a delivery, although they do not subscribe any more."""
        found = None
        if self._history is not None:
            with suppress(Unavailable):
                found = await self._history.message(message.id)
        names = set() if found is None else {each.receiver for each in found.deliveries if each.receiver}
        return tuple(sorted(names.union(self._since(self.recipients(message), at))))

    def _since(self, names: Iterable[str], at: Coordinate) -> list[str]:
        """Those of these receivers that were not registered after a message."""
        receivers = [(name, self._directory.receiver(name)) for name in names]
        return [name for name, one in receivers if one is None or one.life.began_before(at)]

    def unfiltered(self, message: Message, at: Coordinate) -> list[str]:
        """The recipients of a message that names none, by its type; none where they depend on more of it."""
        if message.source_id == OWN_SOURCE:
            return []
        names = self.recipients(message)
        is_filtered = bool(names) and self._directory.filtered(message.source_id, message.event_type)
        return [] if is_filtered else self._since(names, at)

    async def view_of(
        self, known: KnownMessage, deliveries: Sequence[DeliveryId] | None = None, *, duplicate: bool = False
    ) -> MessageView:
        """The message with its deliveries, or some of them, as they are now."""
        if deliveries is None:
            deliveries = self.deliveries(known)
        seen = await self._state.row_details([delivery_row(delivery) for delivery in deliveries]) if deliveries else []
        now = self._clock.time()
        found = [FoundDelivery(delivery, one) for delivery, one in zip(deliveries, seen, strict=True)]
        source = self._directory.source(known.message.source_id)
        found = await self._with_callbacks(await self._with_records(found), source)
        found = await self._wait_context.inspect(found, source, known, now)
        view = self._view(known, found, source, now, duplicate=duplicate)
        if not found and view.status == "failed":
            return await self._with_reason(view, known.message.id)
        unknown = [f"r:{one.delivery.receiver}" for one in found if one.row.stage is Stage.NONE]
        return replace(view, rebuilding=True) if await has_gap(self._state, unknown) else view

    async def _with_reason(self, view: MessageView, identity: MessageId) -> MessageView:
        """The view of a message without a receiver, with the reason of its dead letter, if that is among the newest."""
        for entry in await self._state.failed(NO_RECEIVER, limit=_NEWEST):
            if (entry.source_id, entry.message_id) == identity and entry.reason != "id_conflict":  # of another message
                [letter] = await self._log.read([(entry.at, None)])
                return replace(view, reason=entry.reason, detail=letter_detail(letter) or UNSET)
        return view

    async def waits(self, received: Mapping[DeliveryId, float], now: float) -> dict[DeliveryId, FoundDelivery]:
        """Rows of deliveries of any messages, and what they wait for, without their order. `received`: when the log
        took each one's message. Unix seconds."""
        seen = await self._state.row_details([delivery_row(each) for each in received])
        found = {delivery: FoundDelivery(delivery, one) for delivery, one in zip(received, seen, strict=True)}
        return await self._wait_context.inspect_many(found, received, now)

    async def excluded(self, received: Mapping[MessageId, float], now: float) -> set[MessageId]:
        """Those of these messages without a known delivery that no receiver gets, and that have not failed. The row
        says so; once it is forgotten, no delivery can be on its way any more. If the state is unavailable, only the
        latter are known. `received`: when the log took each one. Unix seconds."""
        over = {message for message, at in received.items() if now - at > self._dedup_window_s}
        young = [message for message in received if message not in over]
        with suppress(Unavailable):
            rows = await self._state.messages(young) if young else []
            over |= {message for message, row in zip(young, rows, strict=True) if row is not None and row.excluded}
        return over

    def source(self, source_id: str) -> Source:
        return self._directory.source(source_id)

    async def outcome(self, delivery: DeliveryId) -> tuple[Row, Record | None]:
        """A delivery's row, and the record that it points at: of the answer, or the dead letter."""
        row = (await self._state.row_details([delivery_row(delivery)]))[0].row
        at = self._place(row)
        return row, None if at is None else (await self._read_all({delivery: at}))[delivery]

    def fresh_view(self, known: KnownMessage) -> MessageView:
        """A message that was accepted this moment: nothing has become of its deliveries yet."""
        source, now = self._directory.source(known.message.source_id), self._clock.time()
        wait = delayed(known.message, known.received_at, now)
        found = [FoundDelivery(delivery, _NOTHING, wait=wait) for delivery in self.deliveries(known)]
        return self._view(known, found, source, now, duplicate=False)

    def deliveries(self, known: KnownMessage) -> list[DeliveryId]:
        """The deliveries to the recipients that are known now."""
        if known.excluded:
            return []
        names = self.recipients(known.message) if known.recipients is None else known.recipients
        return [DeliveryId(name, *known.message.id) for name in names]

    def recipients(self, message: Message) -> tuple[str, ...]:
        """The message's recipients that are known at present."""
        return valid_recipients(self._directory, message)

    def _view(
        self, known: KnownMessage, found: list[FoundDelivery], source: Source, now: float, *, duplicate: bool
    ) -> MessageView:
        unwanted = known.excluded or (not found and may_have_none(self._directory, known.message))
        views = [delivery_view(one, source, now) for one in found]
        return message_view(known, views, unwanted=unwanted, duplicate=duplicate)

    async def _with_records(self, found: list[FoundDelivery]) -> list[FoundDelivery]:
        """Answers and dead letters are read where their records are."""
        places = {one.delivery: at for one in found if (at := self._place(one.row)) is not None}
        records = await self._read_all(places)
        return [
            replace(one, letter=records.get(one.delivery))
            if one.row.stage is Stage.FAILED
            else replace(one, record=records.get(one.delivery))
            for one in found
        ]

    def _place(self, row: Row) -> Coordinate | None:
        """The coordinate of the record that a row points at."""
        if row.at is None or row.stage < Stage.PUBLISHED:
            return None
        topics = self._topics
        return Coordinate(topics.failed_messages if row.stage is Stage.FAILED else topics.to_sender, *row.at)

    async def _read_all(self, places: Mapping[DeliveryId, Coordinate]) -> Mapping[DeliveryId, Record | None]:
        """Records with their values within a byte budget; beyond it, only the beginning of each. None in place of one
        that is another delivery's."""
        left, of = MOST_ANSWERS, iter(places)

        def kept(record: Record | None) -> Record | None:
            nonlocal left
            delivery = next(of)
            if record is not None and not _may_be_of(delivery, record):
                return None
            size = 0 if record is None else len(record.value or b"")
            left -= size
            if record is None or left >= 0:
                return record
            flaw = Flaw("too_large", "only its beginning was kept", omitted=f"value={size}")
            return record.changed(value=(record.value or b"")[:CUT_ANSWER], flaw=flaw)

        return dict(zip(places, await read_each(self._log, [(at, None) for at in places.values()], kept), strict=True))

    async def _with_callbacks(self, found: list[FoundDelivery], source: Source) -> list[FoundDelivery]:
        """The rows of callbacks that are owed or were given up, and the dead letters of the latter."""
        keys = {
            one.delivery: callback_row(one.delivery, one.row.generation, failed=has_failed(one.row))
            for one in found
            if is_owed(one, source) or is_given_up(one.row)
        }
        if not keys:
            return found
        rows = dict(zip(keys, await self._state.row_details(list(keys.values())), strict=True))
        letters = await self._read_all(
            {
                delivery: Coordinate(self._topics.failed_messages, *seen.row.at)
                for delivery, seen in rows.items()
                if is_given_up(seen.row) and seen.row.at is not None
            }
        )
        return [
            replace(one, callback=rows.get(one.delivery), callback_letter=letters.get(one.delivery)) for one in found
        ]


def _may_be_of(delivery: DeliveryId, record: Record) -> bool:
    """Whether an answer or dead letter does not name another delivery: a topic that was created again has another's
    record at the same place."""
    named = identity_of(record.value, record.headers)
    return all(said in (None, own) for said, own in zip(named, delivery, strict=True))
