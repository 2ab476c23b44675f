"""Records become works: read by the worker, then looked up in the state, one call for a batch."""

from collections.abc import Sequence
from typing import Generic

from relay.domain.errors import InvalidRecord
from relay.engine.context import LaneContext
from relay.engine.work import Dead, Seen, W, Worker
from relay.log.port import Flaw, Record, TopicPartition


class Admission(Generic[W]):
    """Whatever is in a record, it becomes a work or a reason for a dead letter: nothing read may stop the lane."""

    def __init__(self, context: LaneContext, worker: Worker[W]) -> None:
        self._context = context
        self._worker = worker

    def admit(self, record: Record) -> W | Dead | None:
        """None: there is nothing left to do about it."""
        if record.flaw is not None:
            return self._unreadable(record, record.flaw)
        try:
            return self._worker.admit(record)
        except InvalidRecord as error:
            return Dead(error.reason, error.detail)
        except Exception as error:  # noqa: BLE001  a bug that one record brings out must not stop the others
            self._context.observer.step_crashed(self._worker.stage, error)
            return Dead("poison", f"{type(error).__name__} when it was read for {self._worker.stage}")

    def _unreadable(self, record: Record, flaw: Flaw) -> Dead:
        if flaw.first_offset is not None:
            at = TopicPartition(record.topic, record.partition)
            self._context.observer.skipped(at, flaw.first_offset, record.offset, flaw.detail)
        return Dead(flaw.reason, flaw.detail)

    async def look_up(self, works: Sequence[W]) -> list[tuple[W, Seen]]:
        """Each work with what is known of it."""
        if not works:
            return []
        context, table = self._context, self._worker.table
        seen = await context.patience.until_done("look up rows", lambda: table.intake(context.lane, works))
        return list(zip(works, seen, strict=True))
