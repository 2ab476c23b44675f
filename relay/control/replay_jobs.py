"""The replay jobs that this process has read from `receiver_config`."""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from relay.control.records import Changes
from relay.domain.control_key import ControlKey, decode_value
from relay.domain.errors import InvalidRecord
from relay.domain.replay_job import KNOWN, OVER, ReplayOrder, ReplayProgress
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

    def keep_only(self, ids: Collection[str]) -> None:
        """The topic has only the orders of these: tombstones of the others may be compacted away."""
        for id in self._known.keys() - ids:
            del self._known[id]
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
