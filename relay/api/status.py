"""GET of a message: what became of it. Nothing is kept for this; it is read from the rows and the records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from aiohttp import web

from relay.api.problems import NOT_FOUND, Problem
from relay.api.reading import MESSAGE_PATH, message_in_path
from relay.api.view import Found, MessageView, delivery_view, has_failed, is_owed, message_view
from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.message import Message, parse_message
from relay.domain.receiver import Source
from relay.domain.topics import Topics
from relay.engine.clock import Clock
from relay.log.port import Coordinate, LogReader, Record
from relay.state.port import State
from relay.state.rows import MessageRow, MessageStage, Row, Stage, callback_row, delivery_row

_NO_ROW: Final = Row()


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message that is on the log. `received_ms`: Unix ms; None: not known any more. `routed`: all its deliveries
    are on their way."""

    message: Message
    received_ms: int | None
    routed: bool
    at: Coordinate | None = None


class StatusReader:
    """Tells what is known of messages. Its methods raise LogUnavailable, StateUnavailable or StateRecovering."""

    def __init__(self, log: LogReader, state: State, topics: Topics, directory: Directory, clock: Clock) -> None:
        self._log = log
        self._state = state
        self._topics = topics
        self._directory = directory
        self._clock = clock

    async def view(self, identity: MessageId) -> MessageView | None:
        """The message and its deliveries; None where nothing is known of it."""
        known = await self.find(identity)
        return None if known is None else await self.view_of(known)

    async def find(self, identity: MessageId) -> KnownMessage | None:
        """The message by its row and its first record; None where either is missing, or gone."""
        row = (await self._state.messages([identity]))[0]
        return None if row is None else await self.read(identity, row)

    async def read(self, identity: MessageId, row: MessageRow) -> KnownMessage | None:
        """The message that `row` points at; None where its record is gone."""
        at = Coordinate(self._topics.from_sender, row.partition, row.offset)
        record = (await self._log.read([(at, None)]))[0]
        if record is None:
            return None
        try:
            message = parse_message(record.value, record.headers)
        except InvalidRecord:
            return None  # the topic was made anew: a message with a row was readable once
        if message.id != identity:
            return None
        return KnownMessage(message, record.timestamp_ms, row.stage is MessageStage.ENQUEUED, at)

    async def view_of(self, known: KnownMessage, *, duplicate: bool = False) -> MessageView:
        """The message with its deliveries as they are now."""
        deliveries = self._deliveries(known.message)
        rows = await self._state.peek([delivery_row(delivery) for delivery in deliveries]) if deliveries else []
        return await self._assembled(known, deliveries, rows, duplicate=duplicate)

    def fresh_view(self, known: KnownMessage) -> MessageView:
        """A message that was accepted this moment: nothing has become of its deliveries yet."""
        source = self._directory.source(known.message.source_id)
        found = [Found(delivery, _NO_ROW) for delivery in self._deliveries(known.message)]
        return self._told(known, found, source, duplicate=False)

    def _deliveries(self, message: Message) -> list[DeliveryId]:
        names = message.receivers
        if names is None:
            try:
                names = self._directory.subscribers(message.source_id, message.event_type)
            except InvalidRecord:
                names = ()  # too many subscribe: such a message goes to nobody
        return [DeliveryId(name, *message.id) for name in names]

    async def _assembled(
        self, known: KnownMessage, deliveries: Sequence[DeliveryId], rows: Sequence[Row], *, duplicate: bool
    ) -> MessageView:
        source = self._directory.source(known.message.source_id)
        found = [Found(delivery, row) for delivery, row in zip(deliveries, rows, strict=True)]
        found = await self._with_callbacks(await self._with_answers(found), source)
        return self._told(known, found, source, duplicate=duplicate)

    def _told(self, known: KnownMessage, found: list[Found], source: Source, *, duplicate: bool) -> MessageView:
        now = self._clock.time()
        return message_view(
            known.message.id,
            known.message.event_type,
            known.received_ms,
            [delivery_view(one, source, now) for one in found],
            routed=known.routed,
            duplicate=duplicate,
        )

    async def _with_answers(self, found: list[Found]) -> list[Found]:
        """Answers are read where their records are, all in one call."""
        wanted = {
            one.delivery: Coordinate(self._topics.to_sender, *one.row.at)
            for one in found
            if one.row.at is not None and one.row.stage in (Stage.PUBLISHED, Stage.DONE)
        }
        if not wanted:
            return found
        records = await self._log.read([(at, None) for at in wanted.values()])
        by_delivery: dict[DeliveryId, Record | None] = dict(zip(wanted, records, strict=True))
        return [replace(one, record=by_delivery.get(one.delivery)) for one in found]

    async def _with_callbacks(self, found: list[Found], source: Source) -> list[Found]:
        keys = {
            one.delivery: callback_row(one.delivery, one.row.generation, failed=has_failed(one.row))
            for one in found
            if is_owed(one, source)
        }
        if not keys:
            return found
        rows = dict(zip(keys, await self._state.peek(list(keys.values())), strict=True))
        return [replace(one, callback=rows.get(one.delivery)) for one in found]


class StatusResource:
    """The resource of a message."""

    def __init__(self, reader: StatusReader) -> None:
        self._reader = reader

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get(MESSAGE_PATH, self.get)

    async def get(self, request: web.Request) -> web.Response:
        view = await self._reader.view(message_in_path(request))
        if view is None:
            raise Problem(NOT_FOUND, "No such message is known: it never came, is still on its way, or was long ago.")
        return json_response(200, view)


def json_response(status: int, view: MessageView, **headers: str) -> web.Response:
    """`headers`: names with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(
        status=status, body=msgspec.json.encode(view), headers={**named, "Content-Type": "application/json"}
    )
