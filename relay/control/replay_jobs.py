"""Jobs that replay or discard, as far as `receiver_config` has told of them here."""

import logging
from dataclasses import dataclass, field
from typing import Final

from relay.control.changes import Changes
from relay.domain.errors import InvalidRecord
from relay.domain.replay_job import (
    ORDER_PREFIX,
    OVER,
    PROGRESS_PREFIX,
    ReplayOrder,
    ReplayProgress,
    decode_order,
    decode_progress,
    job_of,
)
from relay.log.port import Record

_log = logging.getLogger(__name__)
_UNSTARTED: Final = ReplayProgress()


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What was asked for, and how far that is. `stopping`: somebody wants it to end."""

    order: ReplayOrder
    progress: ReplayProgress = _UNSTARTED
    stopping: bool = False

    @property
    def is_over(self) -> bool:
        return self.progress.state in OVER


@dataclass(slots=True)
class _Known:
    """In whichever order the topic tells it: of a compacted one that is any."""

    order: ReplayOrder | None = None
    progress: ReplayProgress = field(default_factory=ReplayProgress)
    stopping: bool = False


class Jobs:
    """By id."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self.changes = Changes()

    def take(self, record: Record) -> None:
        """A record of the topic whose key is a job's."""
        prefix, id = job_of(record.key or b"")
        known = self._known.setdefault(id, _Known())
        try:
            if prefix == ORDER_PREFIX:
                known.order = None if record.value is None else decode_order(record.value)
            elif prefix == PROGRESS_PREFIX:
                known.progress = ReplayProgress() if record.value is None else decode_progress(record.value)
            else:
                known.stopping = record.value is not None
        except InvalidRecord as error:
            _log.warning("replay_record_unreadable", extra={"at": str(record.coordinate), "problem": error.detail})
        if known == _Known():
            del self._known[id]
        self.changes.tell()

    def get(self, id: str) -> ReplayJob | None:
        known = self._known.get(id)
        if known is None or known.order is None:
            return None
        return ReplayJob(known.order, known.progress, known.stopping)

    def all(self) -> list[ReplayJob]:
        """Newest first."""
        found = [job for job in map(self.get, list(self._known)) if job is not None]
        return sorted(found, key=lambda job: (job.order.made_at, job.order.id), reverse=True)
