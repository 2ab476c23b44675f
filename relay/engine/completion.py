"""Completes works: their records are appended, then their row is marked, then their parked copy is removed; then they
count for the watermark. Produce, acknowledge, mark, commit: the order of rule 1. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from relay.domain.dead_letter import is_letter, reduced_forms
from relay.domain.errors import RecordTooLarge
from relay.engine.commands import BATCH, CallQueue
from relay.engine.decision import Dead, Done
from relay.engine.lane import Lane
from relay.engine.phases import Event, Phase, advance
from relay.engine.quarantine import WorkerFault
from relay.engine.slices import measured
from relay.engine.work import Outcome, W, is_awaited, row_of
from relay.log.port import Coordinate, NewRecord

T = TypeVar("T")

MARK_EVERY_S: Final = 0.2
"""A mark is sent at once if there was none for so long, or if a request waits for it; otherwise together with the next
ones. Only the commit waits for it then, and one call for many costs as much as one for one. All lanes of a process mark
at the same times."""
TOO_LITTLE: Final = "too little for any dead letter; raise the topic's max.message.bytes"


def ask_worker(work: W, ask: Callable[..., T], *arguments: Any) -> T:
    """Call a method of the worker. Raises WorkerFault if it raises."""
    try:
        return ask(*arguments)
    except Exception as error:
        raise WorkerFault(work) from error


def resume(lane: Lane[W], work: W, event: Event, now: float) -> None:
    """The outcome of `work` is stored."""
    if work.result is None:
        raise AssertionError("resumed without a result")
    try:
        end = lane.worker.resume(work, work.result)
    except Exception as error:
        raise WorkerFault(work) from error
    publish(lane, work, event, end, now)


# --- append -----------------------------------------------------------------------------------------------------


def publish(lane: Lane[W], work: W, event: Event, end: Done | Dead, now: float) -> None:
    """`end` is stored, or harmless to find out again: the next work of the order key need not wait for the log."""
    if lane.left:
        return
    if work.taken:
        lane.order.finish(work, now)
    advance(work, event, Phase.APPENDING)
    work.end = end
    records = (_letter(lane, work, end),) if isinstance(end, Dead) else end.records
    append(lane, work, records + end.beside)


def _letter(lane: Lane[W], work: W, dead: Dead) -> NewRecord:
    return ask_worker(work, lane.worker.dead_letter, work.record, work, dead)


def append(lane: Lane[W], work: W, records: tuple[NewRecord, ...]) -> None:
    work.out, work.forms = records, None
    work.weight, held = measured(records, work.record.value)
    lane.to_append += work.weight
    lane.memory.take(held - work.held)
    work.held = held
    lane.calls.put(CallQueue.APPEND, work)


def appended(lane: Lane[W], work: W, at: tuple[Coordinate, ...], now: float) -> None:
    lane.to_append -= work.weight
    end = work.end
    if end is None:
        raise AssertionError("appended without an end")
    if work.unread and work.row is None:
        if isinstance(end, Dead):
            _report_dead(lane, work, end)
        advance(work, Event.APPENDED, Phase.OVER)
        over(lane, work, now)
        return
    advance(work, Event.APPENDED, Phase.MARKING)
    lane.to_mark.append((work, Outcome(end, at)))
    if work.owes_tombstone or (
        work.awaited and is_awaited(work, end)
    ):  # the next of its order key waits for it, or a request
        lane.mark_at = now


def too_large(lane: Lane[W], works: Sequence[W], error: RecordTooLarge) -> None:
    """The log rejected these works, as one of their records is too large for good. That record is searched for, and
    becomes smaller if it is a dead letter; otherwise it is given up, and its work, if that is no more than this one."""
    if len(works) == 1:
        _shrink(lane, works[0], error)
    lane.calls.one_by_one(CallQueue.APPEND, works)


def _shrink(lane: Lane[W], work: W, error: RecordTooLarge) -> None:
    if isinstance(work.end, Done) and not any(is_letter(work.out[index].headers) for index in error.rejected):
        _give_up(lane, work, Dead("too_large", str(error), beside=work.end.beside), error.rejected)
        return
    if work.forms is None:
        work.forms = ever_smaller(work.out)
    smaller = next(work.forms, None)
    if smaller is not None:
        work.out = smaller
    else:  # no message is the cause, and an operator can fix it: the last form is repeated until then
        work.last_form = True


def _give_up(lane: Lane[W], work: W, dead: Dead, rejected: frozenset[int]) -> None:
    """The end of these of its records: that of the deliveries that begin with them, or else of `work`."""
    records = [work.out[index] for index in sorted(rejected)]
    letters = ask_worker(work, lane.worker.table.letters_instead, work, records, dead)
    work.forms = None
    if not letters:
        work.end, work.out, work.places = dead, (_letter(lane, work, dead), *dead.beside), None
        return
    left = [index for index in range(len(work.out)) if index not in rejected]
    places = work.places or {}
    work.places = {new: places[index] for new, index in enumerate(left) if index in places}
    work.out = (*[work.out[index] for index in left], *letters)


def ever_smaller(records: Sequence[NewRecord]) -> Iterator[tuple[NewRecord, ...]]:
    """The records, with the dead letters among them in ever smaller forms; nothing if there are none."""
    for forms in zip(*(_smaller(record) for record in records if is_letter(record.headers)), strict=False):
        smaller = iter(forms)
        yield tuple(next(smaller) if is_letter(record.headers) else record for record in records)


def _smaller(letter: NewRecord) -> Iterator[NewRecord]:
    for form in reduced_forms(letter.key, letter.value, letter.headers):
        yield NewRecord(letter.topic, *form)


# --- mark, and remove the parked copy ---------------------------------------------------------------------------


def mark_in_time(lane: Lane[Any], now: float) -> None:
    """Send the marks that wait, if it is time."""
    if now >= lane.mark_at or lane.stopping or len(lane.to_mark) >= BATCH or lane.full:
        lane.mark_at = (now // MARK_EVERY_S + 1) * MARK_EVERY_S
        mark_all(lane)


def mark_all(lane: Lane[Any]) -> None:
    for each in lane.to_mark:
        lane.calls.put(CallQueue.MARK, each)
    lane.to_mark.clear()


def marked(lane: Lane[W], work: W, outcome: Outcome, now: float) -> None:
    if isinstance(outcome.decision, Dead):
        _report_dead(lane, work, outcome.decision)
    _retire(lane, work, Event.MARKED, now)


def _report_dead(lane: Lane[W], work: W, end: Dead) -> None:
    lane.observer.dead(lane.worker.stage, work.endpoint_id, work.out[0] if work.unread else work.record, end)


def _retire(lane: Lane[W], work: W, event: Event, now: float) -> None:
    """Its output is acknowledged and marked."""
    if work.owes_tombstone:
        advance(work, event, Phase.RETIRING)
        lane.calls.put(CallQueue.RETIRE, work)
    else:
        advance(work, event, Phase.OVER)
        over(lane, work, now)


def known(lane: Lane[W], work: W, event: Event, now: float) -> None:
    """Its output is acknowledged already, or a later generation has begun."""
    if not lane.left:
        lane.observer.duplicate(lane.worker.stage)
        _retire(lane, work, event, now)


def retired(lane: Lane[W], work: W, next_is_due: bool, now: float) -> None:
    """`next_is_due`: the next of its parked order key became due."""
    advance(work, Event.RETIRED, Phase.OVER)
    if next_is_due:
        lane.due_index.expect(row_of(work).owner, 0.0)
    elif work.queue is not None:
        lane.parked_keys.emptied(work.queue)
    over(lane, work, now)


# --- over -------------------------------------------------------------------------------------------------------


def over(lane: Lane[W], work: W, now: float) -> None:
    """`work` leaves the memory: it is finished, parked, or left to its lease."""
    if work.taken:
        lane.order.finish(work, now)
    if work.parked_at is None:
        done(lane, work.record.offset, now, work.held)
    else:
        lane.memory.take(-work.held)
        put_back(lane, work)
    work.held = 0
    for duplicate in lane.works.remove(work):
        advance(duplicate, Event.FIRST_LEFT, Phase.OVER)
        done(lane, duplicate.record.offset, now)


def put_back(lane: Lane[W], work: W) -> None:
    """A parked copy leaves the memory."""
    lane.memory.take(-lane.due_index.release(row_of(work).digest))


def done(lane: Lane[Any], offset: int, now: float, held: int = 0) -> None:
    """`held`: bytes beside the record."""
    lane.memory.take(-lane.watermark.done(offset) - held)
    lane.intake_limit.ended(now)
    if lane.full_since is not None and not lane.full:
        lane.full_since = None
