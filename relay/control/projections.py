"""The replay jobs, event types and erasures that this process has read from `receiver_config`, and the services that
change the latter two."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from relay.control.records import Changes, ControlWriter, LimitReached
from relay.domain.control_key import ControlKey, decode_value, encode_value
from relay.domain.erasure import ERASURE_KEPT_S, MOST_ERASURES, Erasure, Erasures
from relay.domain.errors import HistoryUnavailable, InvalidRecord
from relay.domain.event_type import MOST_TYPES, EventTypeEntry, PayloadFault, payload_fault
from relay.domain.replay_job import KNOWN, OVER, ReplayOrder, ReplayProgress
from relay.history.port import History
from relay.log.port import Record

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A job's order and progress. `stopping`: a stop was requested."""

    order: ReplayOrder
    progress: ReplayProgress = ReplayProgress()
    stopping: bool = False

    @property
    def is_over(self) -> bool:
        return self.progress.state in OVER

    @property
    def is_known(self) -> bool:
        """Whether this release knows its state, so that it may continue the job."""
        return self.progress.state in KNOWN


@dataclass(slots=True)
class _Known:
    """The parts of a job read so far, in any order, as a compacted topic may have them."""

    order: ReplayOrder | None = None
    progress: ReplayProgress = field(default_factory=ReplayProgress)
    stopping: bool = False


class Jobs:
    """Replay jobs by id."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self.changes = Changes()

    def take(self, key: ControlKey, record: Record) -> None:
        """Take a record of a kind in JOBS."""
        known = self._known.setdefault(key.id, _Known())
        try:
            if key.kind == "replay":
                order = None if record.value is None else decode_value(ReplayOrder, record.value)
                # of two, which a request and its repetition made at the same time, the first counts
                known.order = order and (known.order or order)
            elif key.kind == "replay-progress":
                value = record.value
                known.progress = ReplayProgress() if value is None else decode_value(ReplayProgress, value)
            else:
                known.stopping = record.value is not None
        except InvalidRecord as error:
            _log.warning("replay_record_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})
        if known == _Known():
            del self._known[key.id]
        self.changes.notify()

    def get(self, id: str) -> ReplayJob | None:
        known = self._known.get(id)
        if known is None or known.order is None:
            return None
        return ReplayJob(known.order, known.progress, known.stopping)

    def all(self) -> list[ReplayJob]:
        """All jobs, newest first."""
        found = [job for job in map(self.get, list(self._known)) if job is not None]
        return sorted(found, key=lambda job: (job.order.made_at, job.order.id), reverse=True)


class EventTypeIndex:
    """Event types by name."""

    def __init__(self) -> None:
        self._known: dict[str, EventTypeEntry] = {}

    def take(self, key: ControlKey, record: Record) -> None:
        """Take a record of the kind `event-type`."""
        self._known.pop(key.id, None)
        if record.value is None:
            return
        try:
            self._known[key.id] = decode_value(EventTypeEntry, record.value)
        except InvalidRecord as error:
            _log.warning("event_type_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})

    def get(self, name: str) -> EventTypeEntry | None:
        return self._known.get(name)

    def all(self) -> Mapping[str, EventTypeEntry]:
        """All types by name; live."""
        return self._known

    def names(self) -> list[str]:
        """All names, in order."""
        return sorted(self._known)

    def fault(self, event_type: str | None, payload: bytes) -> PayloadFault | None:
        """Why the payload is not valid by its type's schemas; None if it is, or the type is not in the catalogue."""
        entry = None if event_type is None else self._known.get(event_type)
        return None if entry is None else payload_fault(entry, payload)


class Catalogue:
    """Changes the event types. Its methods raise the log's errors."""

    def __init__(self, writer: ControlWriter, types: EventTypeIndex) -> None:
        self.types = types
        self._writer = writer

    async def put(self, name: str, entry: EventTypeEntry) -> None:
        """Declare a type, or replace its entry. Raises LimitReached."""
        if self.types.get(name) is None and len(self.types.all()) >= MOST_TYPES:
            raise LimitReached("event-type", f"the catalogue has {MOST_TYPES} event types; remove some")
        await self._writer.write((ControlKey("event-type", name), encode_value(entry)))

    async def remove(self, name: str) -> None:
        await self._writer.write((ControlKey("event-type", name), None))


class ErasureIndex(Erasures):
    """Kept up to date from the topic."""

    def take(self, key: ControlKey, record: Record) -> None:
        """Take a record of the kind `erasure`."""
        self.drop(key.id)
        if record.value is None:
            return
        try:
            self.add(decode_value(Erasure, record.value))
        except InvalidRecord as error:
            _log.warning("erasure_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})


class ErasureService:
    """Requests erasures. `history`: None if there is none."""

    def __init__(self, writer: ControlWriter, known: ErasureIndex, history: History | None) -> None:
        self.known = known
        self._writer = writer
        self._history = history

    async def erase_in_history(self, erasure: Erasure) -> int | None:
        """The number of messages whose payload was deleted there; None if the history does not answer, which then
        deletes them within two hours."""
        if self._history is None:
            return 0
        try:
            return await self._history.erase(erasure)
        except HistoryUnavailable as error:
            _log.warning("history_not_erased", extra={"problem": str(error)})
            return None

    async def erase(self, erasure: Erasure) -> None:
        """Store an erasure, and remove expired ones. Raises LimitReached, and the log's errors."""
        known = self.known.all()
        over = [each for each in known if each.made_at < erasure.made_at - ERASURE_KEPT_S]
        if len(known) - len(over) >= MOST_ERASURES:
            raise LimitReached("erasure", f"{MOST_ERASURES} erasures are in force: erase whole sources, or wait")
        tombstones = [(ControlKey("erasure", each.id), None) for each in over]
        await self._writer.write(*tombstones, (ControlKey("erasure", erasure.id), encode_value(erasure)))
