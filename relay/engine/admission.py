"""Records become works: read by the worker, then looked up in the state, one call for a batch."""

from collections.abc import Sequence
from typing import Generic

from relay.domain.errors import InvalidRecord
from relay.engine.context import LaneContext
from relay.engine.quarantine import NO_OFFSET, Quarantine
from relay.engine.work import Dead, Seen, W, Worker
from relay.log.port import Flaw, Record, TopicPartition


class Admission(Generic[W]):
    """Whatever is in a record, it becomes a work or a reason for a dead letter: nothing read may stop the lane."""

    def __init__(self, context: LaneContext, worker: Worker[W], quarantine: Quarantine) -> None:
        self._context = context
        self._worker = worker
        self._quarantine = quarantine

    async def admit(self, records: Sequence[Record], *, parked: bool = False) -> list[W | Dead | None]:
        """What becomes of each; None: there is nothing left to do about it. `parked`: they are copies of records."""
        quarantine = self._quarantine
        newest = NO_OFFSET if parked else records[-1].offset
        if newest >= quarantine.reserved:
            await quarantine.enter(newest)
        if not quarantine.wary:
            return [self._admit(record) for record in records]
        return [await self._admit_warily(record, parked=parked) for record in records]

    async def _admit_warily(self, record: Record, *, parked: bool) -> W | Dead | None:
        if not self._quarantine.suspects(record, parked=parked):
            return self._admit(record)
        admitted = await self._quarantine.alone(record, lambda: self._admit(record))
        if admitted is not None and not isinstance(admitted, Dead):
            admitted.suspect = True
        return admitted

    def _admit(self, record: Record) -> W | Dead | None:
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
