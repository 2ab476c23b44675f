"""The way out of a lane: append hop records, mark the rows, remove parked copies; then a record is finished.

Produce, acknowledge, mark, commit: the order of rule 1. Whatever is away is waited for; nothing is skipped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Generic

from relay.domain.dead_letter import is_letter
from relay.domain.errors import LogUnavailable, RecordTooLarge
from relay.domain.reasons import REASON_CODES
from relay.domain.smaller_letter import smaller_forms
from relay.engine.context import LaneContext
from relay.engine.gather import Gather
from relay.engine.parked_copy import ParkedCopy, parked_key
from relay.engine.rows import row_of
from relay.engine.work import Dead, Done, Outcome, W, Worker
from relay.log.port import Coordinate, NewRecord
from relay.state.replies import answered, of
from relay.state.rows import Mark, RowKey, Stage


class Outbox(Generic[W]):
    """`finished(work, promoted)` is called once per work; `promoted`: the next of its parked order key became due."""

    def __init__(self, context: LaneContext, worker: Worker[W], finished: Callable[[W, bool], None]) -> None:
        self._context = context
        self._worker = worker
        self._finished = finished
        self._publishing: Gather[tuple[W, Done | Dead]] = Gather(self._publish)
        self._retiring: Gather[W] = Gather(self._retire)
        self.loops = (self._publishing.run, self._retiring.run)

    def __len__(self) -> int:
        return len(self._publishing) + len(self._retiring)

    def publish(self, work: W, decision: Done | Dead) -> None:
        """Append the decision's records in the order of these calls, then mark and finish `work`."""
        self._publishing.put((work, decision))

    def retire(self, work: W) -> None:
        """Finish `work`, whose output is acknowledged and marked."""
        if work.owes_tombstone:
            self._retiring.put(work)
        else:
            self._finished(work, False)

    async def bury(self, letter: NewRecord, dead: Dead) -> Coordinate:
        """Append the dead letter of a record that could not be read."""
        at = await self._append_letter(letter)
        self._context.observer.dead(self._worker.stage, "-", letter, dead)
        return at

    async def bury_parked(self, copy: ParkedCopy, letter: NewRecord, dead: Dead) -> bool:
        """The same for a parked copy, with all that follows. True if the next of its order key is due now."""
        context = self._context
        at = await self.bury(letter, dead)
        code = REASON_CODES.get(dead.reason, 0)
        mark = Mark(copy.row, copy.generation, Stage.FAILED, (at.partition, at.offset), code)
        await context.patience.until_done("mark rows", lambda: answered(context.state.mark([mark])))
        [promoted] = await self._remove([copy.key], [(copy.row, copy.queue)])
        return promoted

    async def _publish(self, batch: list[tuple[W, Done | Dead]]) -> None:
        context = self._context
        outcomes = await self._append(batch)
        await context.patience.until_done("mark rows", lambda: self._worker.table.mark(outcomes))
        for work, outcome in outcomes:
            if isinstance(outcome.decision, Dead):
                context.observer.dead(self._worker.stage, work.gate, work.record, outcome.decision)
            self.retire(work)

    async def _append(self, batch: list[tuple[W, Done | Dead]]) -> list[tuple[W, Outcome]]:
        records = [self._records(work, decision) for work, decision in batch]
        flat = [record for group in records for record in group]
        try:
            at = await self._appended(flat)
        except RecordTooLarge as error:
            if len(batch) > 1:  # one of them can never be appended: find it
                return [pair for each in batch for pair in await self._append([each])]
            return [await self._append_smaller(*batch[0], records[0], error)]
        return _with_coordinates(batch, records, at)

    async def _append_smaller(
        self, work: W, decision: Done | Dead, records: tuple[NewRecord, ...], error: RecordTooLarge
    ) -> tuple[W, Outcome]:
        """Something among the records of `work` is too large: its dead letters become smaller. Where it is something
        else, `work` is given up instead."""
        if isinstance(decision, Dead):
            return work, Outcome(decision, (await self._append_letter(records[0]),))
        for smaller in _with_smaller_letters(records):
            with suppress(RecordTooLarge):
                return work, Outcome(decision, tuple(await self._appended(smaller)))
        dead = Dead("too_large", str(error))
        return work, Outcome(dead, (await self._append_letter(*self._records(work, dead)),))

    async def _append_letter(self, letter: NewRecord) -> Coordinate:
        """Append a dead letter, in a smaller form where the log refuses it: whatever a record is, it has an end."""
        for form in _forms(letter):
            letter = form
            with suppress(RecordTooLarge):
                [at] = await self._appended([form])
                return at
        return await self._context.patience.until_done("append a dead letter", lambda: self._append_at_last(letter))

    async def _append_at_last(self, letter: NewRecord) -> Coordinate:
        try:
            [at] = await self._context.log.append([letter])
        except RecordTooLarge as error:  # no message is to blame, and somebody can mend it
            raise LogUnavailable(
                f"{error}: too little for any dead letter; raise the topic's max.message.bytes"
            ) from error
        return at

    async def _appended(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        """Where they are. Raises RecordTooLarge."""
        if not records:
            return []
        log = self._context.log
        return await self._context.patience.until_done("append hop records", lambda: log.append(records))

    def _records(self, work: W, decision: Done | Dead) -> tuple[NewRecord, ...]:
        if isinstance(decision, Dead):
            return (self._worker.bury(work.record, work, decision),)
        return decision.records

    async def _retire(self, batch: list[W]) -> None:
        keys = [parked_key(self._worker.stage, row_of(work)) for work in batch]
        promoted = await self._remove(keys, [(row_of(work), work.queue) for work in batch])
        for work, next_is_due in zip(batch, promoted, strict=True):
            self._finished(work, next_is_due)

    async def _remove(self, keys: Sequence[bytes], rows: Sequence[tuple[RowKey, bytes | None]]) -> list[bool]:
        """Remove parked copies, and then their references."""
        context = self._context
        tombstones = [NewRecord(context.parked_topic, key, None) for key in keys]
        await context.patience.until_done("append tombstones", lambda: context.log.append(tombstones))
        return await context.patience.until_done(
            "remove parked references", lambda: answered(context.state.unpark(of(context.lane, rows)))
        )


def _forms(letter: NewRecord) -> Iterator[NewRecord]:
    yield letter
    for form in smaller_forms(letter.key, letter.value, letter.headers):
        yield NewRecord(letter.topic, *form)


def _with_smaller_letters(records: Sequence[NewRecord]) -> Iterator[list[NewRecord]]:
    """The records with the dead letters among them in ever smaller forms; nothing where there are none."""
    for forms in zip(*(_forms(record) for record in records if is_letter(record.headers)), strict=False):
        smaller = iter(forms)
        yield [next(smaller) if is_letter(record.headers) else record for record in records]


def _with_coordinates(
    batch: list[tuple[W, Done | Dead]], records: list[tuple[NewRecord, ...]], at: list[Coordinate]
) -> list[tuple[W, Outcome]]:
    outcomes, start = [], 0
    for (work, decision), group in zip(batch, records, strict=True):
        outcomes.append((work, Outcome(decision, tuple(at[start : start + len(group)]))))
        start += len(group)
    return outcomes
