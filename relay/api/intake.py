"""Accepts messages: checks their receivers, detects repeats, appends the rest to the log, and remembers their ids.

One message or a thousand of one source: one look-up, one append, one note in the state, each shared with the requests
that come at the same time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, NamedTuple

from msgspec import structs

from relay.api.coalesce import Coalescer
from relay.api.context import ApiContext
from relay.api.problem_details import problem_of
from relay.api.problems import (
    ID_CONFLICT,
    INVALID_JSON,
    INVALID_PAYLOAD,
    NO_RECEIVER,
    RESERVED_SOURCE,
    UNFIT_ID,
    UNKNOWN_RECEIVER,
    Problem,
    invalid,
)
from relay.api.status import message_in
from relay.domain.coordinate import Headers
from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord, RecordTooLarge, Unavailable
from relay.domain.event_type import PayloadFault
from relay.domain.identity import OWN_SOURCE, DeliveryId, MessageId
from relay.domain.message import Message, fault_of_times, json_fault, message_digest, message_headers
from relay.domain.recipients import may_name
from relay.domain.status import unaskable
from relay.log.port import Coordinate, NewRecord
from relay.state.replies import answered
from relay.state.rows import Arrival, MessageRow, MessageStage


class Recipients:
    """Looks up each set of receivers, and each type that is subscribed to, once: a batch has few of them.

    For messages of one source, and for as long as nothing is awaited: receivers come and go.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._problems: dict[tuple[str, ...] | str | None, Problem | None] = {}

    def problem(self, message: Message) -> Problem | None:
        """The problem with the receivers of `message`, if there is one."""
        names = message.receivers
        key = (
            message.event_type
            if names is None
            else (*names, *(() if message.one_off is None else (message.one_off.url,)))
        )
        if key not in self._problems:
            find = self._subscribers_problem if names is None else self._names_problem
            self._problems[key] = find(message)
        problem = self._problems[key]
        return self._id_problem(message, names[0]) if problem is None and names and len(names) == 1 else problem

    def _id_problem(self, message: Message, name: str) -> Problem | None:
        """The problem of an id that does not fit a receiver's status URL. With several receivers only the delivery to
        that one fails."""
        receiver = self._directory.receiver(name)
        if receiver is None or receiver.status_endpoint is None:
            return None
        fault = unaskable(receiver.status_endpoint, DeliveryId(name, message.source_id, message.message_id))
        return None if fault is None else Problem(UNFIT_ID, f"{fault}. The message was not accepted.")

    def _may_be_named(self, name: str, message: Message) -> bool:
        receiver = self._directory.receiver(name)
        return self._directory.refusal(name) is not None if receiver is None else may_name(receiver, message)

    def _names_problem(self, message: Message) -> Problem | None:
        unknown = [name for name in message.receivers or () if not self._may_be_named(name, message)]
        if not unknown:
            return None
        errors = tuple({"detail": f"there is no receiver {name}", "parameter": "receiver"} for name in unknown)
        detail = f"Unknown: {', '.join(unknown)}. The message was not accepted."
        return Problem(UNKNOWN_RECEIVER, detail, errors=errors)

    def _subscribers_problem(self, message: Message) -> Problem | None:
        try:
            if self._directory.subscribers(message.source_id, message.event_type):
                return None
        except InvalidRecord as error:
            return problem_of(error)
        named = "name a `receiver`, or for webhooks `receivers` in `inbound` of the source"
        return Problem(NO_RECEIVER, f"No receiver subscribes to this source and type; {named}.")


class IncomingMessage(NamedTuple):
    """A message that is fit for `from_sender`. `headers`: its wire form. `fresh`: its id was made here, so that
    nothing can be known of it."""

    message: Message
    headers: Headers
    fresh: bool


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """A message on the log, at `at`. `received_ms`: Unix ms. `warning`: what its sender should correct."""

    received_ms: int
    at: Coordinate | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Repeated:
    """A message that was received before. `row`: of the first one; None if that is in the same batch."""

    row: MessageRow | None


Fate = AcceptedMessage | Repeated | Problem
INTAKE_PROBLEMS: Final = (NO_RECEIVER, UNKNOWN_RECEIVER, UNFIT_ID, INVALID_JSON, INVALID_PAYLOAD)
"""Problems of messages, whichever way they come."""


class _Candidate(NamedTuple):
    """A message on its way to the log, and where in its batch it stands."""

    place: int
    message: Message
    digest: bytes
    headers: Headers


class _Sorting:
    """The plan for the messages of one batch. `fates`: as if the log accepts all `candidates`.

    `repeats`: places of messages with the id of a candidate before them, each with the place of that one.
    """

    def __init__(self, context: ApiContext, source_id: str) -> None:
        self.fates: list[Fate] = []
        self.repeats: list[tuple[int, int]] = []
        self._context = context
        self._accepted = AcceptedMessage(int(context.clock.time() * 1000))
        self._mode = context.directory.source(source_id).event_schemas
        self._recipients = Recipients(context.directory)
        self._firsts: dict[str, _Candidate] = {}

    @property
    def candidates(self) -> list[_Candidate]:
        return list(self._firsts.values())

    def add(self, incoming: IncomingMessage, row: MessageRow | None) -> None:
        """The next message. `row`: that of its id."""
        self.fates.append(self._fate(len(self.fates), incoming, row))

    def _fate(self, place: int, incoming: IncomingMessage, row: MessageRow | None) -> Fate:
        message = incoming.message
        digest = message_digest(message)
        if row is not None:
            return _judged(digest, row)
        first = self._firsts.get(message.message_id)
        if first is not None:
            self.repeats.append((place, first.place))
            return Repeated(None) if first.digest == digest else _conflict()
        problem = self._recipients.problem(message)
        if problem is not None:
            return problem
        wrong = fault_of_times(message, self._accepted.received_ms / 1000)
        if wrong is not None:
            return invalid(wrong)
        fault = json_fault(message)
        if fault is not None and self._context.strict_json:
            return Problem(INVALID_JSON, f"{fault[0].upper()}{fault[1:]}.")
        if (by_schema := self._fault_by_schema(message)) is not None:
            if self._mode == "refuse":
                return _not_by_schema(message, by_schema)
            fault = fault or f"the payload is not valid by the schemas of {message.event_type}: {by_schema}"
        self._firsts[message.message_id] = _Candidate(place, message, digest, incoming.headers)
        return self._accepted if fault is None else replace(self._accepted, warning=fault)

    def _fault_by_schema(self, message: Message) -> PayloadFault | None:
        """As `EventTypeIndex.fault`, if the source has its payloads checked. Counts it."""
        if self._mode == "off":
            return None
        found = self._context.catalogue.types.fault(message.event_type, message.payload)
        if found is not None:
            self._context.meter.not_by_schema(self._mode)
        return found


class Intake:
    """Accepts messages. The state only helps to recognise repeats at once: without it messages are still accepted, and
    FromSender recognises a repeat or a conflict when it reads them."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._look_up: Coalescer[MessageId, MessageRow | None] = Coalescer(self._rows)
        self._remember: Coalescer[Arrival, MessageRow | None] = Coalescer(self._earlier)
        self._appends: dict[str, Coalescer[NewRecord, Coordinate]] = {}

    async def take(self, source_id: str, batch: Sequence[IncomingMessage]) -> list[Fate]:
        """The fate of each message of `source_id`; the accepted ones are on the log in their order.

        Raises LogUnavailable: then it is not known which ones are; none is in the state, so a repeat with the same ids
        is accepted like a first one. Raises a Problem if no client may send as that source.
        """
        if source_id == OWN_SOURCE:
            raise Problem(RESERVED_SOURCE, f"The source {OWN_SOURCE!r} is the relay's own; no message was accepted.")
        sorting = _Sorting(self._context, source_id)
        rows = await self._known(batch)
        deleted = await self._deleted(batch, rows)
        for incoming, row in zip(batch, rows, strict=True):
            sorting.add(incoming, None if incoming.message.id in deleted else row)
        fates = sorting.fates
        if candidates := sorting.candidates:
            await self._accept(source_id, candidates, fates, deleted)
        for place, first in sorting.repeats:
            if isinstance(fates[place], Repeated) and not isinstance(fates[first], AcceptedMessage):
                fates[place] = fates[first]
        return fates

    async def _accept(
        self,
        source_id: str,
        candidates: Sequence[_Candidate],
        fates: list[Fate],
        deleted: Mapping[MessageId, MessageRow],
    ) -> None:
        """Append and remember; where that did not go as expected, say so in `fates`."""
        topic, key = self._context.topics.from_sender, source_id.encode()
        records = [NewRecord(topic, key, one.message.payload, one.headers) for one in candidates]
        arrivals: dict[int, Arrival] = {}
        for one, at in zip(candidates, await self._append_traced(source_id, candidates, records), strict=True):
            if isinstance(at, Problem):
                fates[one.place] = at
            else:
                stage, fates[one.place] = MessageStage.ACCEPTED, _placed(fates[one.place], at)
                arrivals[one.place] = Arrival(one.message.id, one.digest, at.partition, at.offset, stage)
        if not arrivals:
            return
        rows = await self._remember(list(arrivals.values()))
        for (place, arrival), row in zip(arrivals.items(), rows, strict=True):
            if row in (None, deleted.get(arrival.id)):
                continue
            if (row.partition, row.offset) != (arrival.partition, arrival.offset):
                fates[place] = _judged(arrival.digest, row)  # two at once; FromSender keeps to the earlier one, too

    async def _known(self, batch: Sequence[IncomingMessage]) -> Sequence[MessageRow | None]:
        asked = [incoming.message.id for incoming in batch if not incoming.fresh]
        if not asked:
            return [None] * len(batch)
        rows = iter(await self._look_up(asked))
        return [None if incoming.fresh else next(rows) for incoming in batch]

    async def _deleted(
        self, batch: Sequence[IncomingMessage], rows: Sequence[MessageRow | None]
    ) -> dict[MessageId, MessageRow]:
        """Rows of messages that are not routed, and whose record the log deleted unread: no proof that they go on."""
        topic = self._context.topics.from_sender
        found = {
            incoming.message.id: row
            for incoming, row in zip(batch, rows, strict=True)
            if row is not None and row.stage is not MessageStage.ENQUEUED
        }
        places: list[tuple[Coordinate, bytes | None]] = [
            (Coordinate(topic, row.partition, row.offset), None) for row in found.values()
        ]
        records = await self._context.log.read(places) if places else []
        return {
            id_: row
            for (id_, row), record in zip(found.items(), records, strict=True)
            if message_in(record, id_) is None
        }

    async def _append_traced(
        self, source_id: str, candidates: Sequence[_Candidate], records: Sequence[NewRecord]
    ) -> Sequence[Coordinate | Problem]:
        """Like `_append`, but with tracing each message carries the context of its own span."""
        tracing = self._context.tracing
        if tracing is None:
            return await self._append(source_id, records)
        sending = [tracing.sending(one.message) for one in candidates]
        records = [
            structs.replace(record, headers=message_headers(message))
            for record, (message, _) in zip(records, sending, strict=True)
        ]
        places: Sequence[Coordinate | Problem] = ()
        try:
            places = await self._append(source_id, records)
        finally:
            for (_, sent), at in zip_longest(sending, places):
                sent(at if isinstance(at, Coordinate) else None)
        return places

    async def _append(self, source_id: str, records: Sequence[NewRecord]) -> Sequence[Coordinate | Problem]:
        """Appends records, and returns their coordinates. Raises LogUnavailable. Only records of one source share a
        request: they are in one partition, and must not wait for another one without a leader."""
        shared = self._appends.get(source_id)
        if shared is None:
            shared = self._appends[source_id] = Coalescer(self._context.log.append)
        try:
            return await shared(records)
        except RecordTooLarge:  # one of them, perhaps another request's: what was written will be there twice
            return [await self._append_alone(record) for record in records]
        finally:
            if shared.idle and self._appends.get(source_id) is shared:
                del self._appends[source_id]

    async def _append_alone(self, record: NewRecord) -> Coordinate | Problem:
        try:
            return (await self._context.log.append([record]))[0]
        except RecordTooLarge as error:
            return problem_of(error)

    async def _rows(self, ids: Sequence[MessageId]) -> Sequence[MessageRow | None]:
        try:
            return await self._context.state.messages(ids)
        except Unavailable:
            return [None] * len(ids)

    async def _earlier(self, arrivals: Sequence[Arrival]) -> Sequence[MessageRow | None]:
        """Earlier messages with these ids, if known. The messages are accepted whether or not this succeeds."""
        try:
            return await answered(self._context.state.arrive(arrivals))
        except Unavailable:
            return [None] * len(arrivals)


def _placed(fate: Fate, at: Coordinate) -> Fate:
    return replace(fate, at=at) if isinstance(fate, AcceptedMessage) else fate


def _judged(digest: bytes, row: MessageRow) -> Fate:
    return Repeated(row) if row.digest == digest else _conflict()


def _not_by_schema(message: Message, fault: PayloadFault) -> Problem:
    detail = f"{message.event_type}: {fault}. The message was not accepted."
    return Problem(INVALID_PAYLOAD, detail, errors=(fault._asdict(),))


def _conflict() -> Problem:
    return Problem(ID_CONFLICT, "An earlier message with this id had another payload, type or receivers.")
