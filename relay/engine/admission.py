"""Reads records into works, in order, and admits these: each is looked up, joins another of its delivery, or waits in
the lane's order. A record that cannot be read becomes a dead letter: none stops the lane. Pure."""

from functools import partial
from typing import Any

from relay.domain.errors import InvalidRecord
from relay.engine.commands import Alone, CallQueue
from relay.engine.completion import append, ask_worker, done, known, publish, put_back
from relay.engine.decision import Dead, Done
from relay.engine.lane import Lane
from relay.engine.parked_copy import ParkedCopy
from relay.engine.parked_index import ROOM_S
from relay.engine.parking import Go, add, again, is_to_be_parked, leave_line, park, queue_up, resume_in_time
from relay.engine.phases import Event, Phase, advance
from relay.engine.quarantine import NO_OFFSET, Arrived, ReservationResult
from relay.engine.work import LookupResult, W, Work, row_of
from relay.log.port import Record


def read(lane: Lane[W], limit: int, now: float) -> bool:
    """Read and admit up to `limit` of the records that arrived. A reservation or a suspect holds up the others. Returns
    whether there may be more."""
    quarantine = lane.quarantine
    while lane.arrived and not lane.held_up and len(lane.to_admit) < limit:
        arrived = lane.arrived[0]
        if quarantine.wary or arrived.copy is not None or arrived.record.offset >= quarantine.reserved_below:
            _read_warily(lane, now)
        else:
            lane.arrived.popleft()
            lane.to_admit.append((arrived, _admitted(lane, arrived.record)))
    found = list(lane.to_admit)
    lane.to_admit.clear()
    for arrived, work in found:
        admit(lane, arrived, work, now)
    return len(found) == limit


def _to_be_reserved(lane: Lane[Any], now: float) -> bool:
    first = lane.arrived[0]
    before = lane.quarantine.to_reserve(NO_OFFSET if first.copy is not None else first.record.offset, now)
    if before is None:
        return False
    lane.held_up = True
    lane.calls.put(CallQueue.RESERVE, before)
    return True


def reserved(lane: Lane[Any], before: int, found: ReservationResult, now: float) -> None:
    lane.held_up = False
    quarantine = lane.quarantine
    if quarantine.reserved(before, found, now):
        lane.observer.former_owner_died(lane.partition, quarantine.suspected_below, quarantine.marked)


def _read_warily(lane: Lane[W], now: float) -> None:
    if _to_be_reserved(lane, now):
        return
    arrived = lane.arrived.popleft()
    record, quarantine = arrived.record, lane.quarantine
    if not quarantine.suspects(record, now, parked=arrived.copy is not None):
        lane.to_admit.append((arrived, _admitted(lane, record)))
    elif (poison := quarantine.poison(record)) is not None:
        lane.to_admit.append((arrived, poison))
    else:
        lane.held_up = True
        part, done = partial(_admitted, lane, record), partial(_was_alone, lane, arrived)
        lane.calls.put(CallQueue.ALONE, Alone(record, None, quarantine.times(record), part, done))


def _was_alone(lane: Lane[W], arrived: Arrived, found: W | Dead | None, now: float) -> None:
    lane.held_up = False
    if found is not None and not isinstance(found, Dead):
        found.suspect = True
    lane.to_admit.append((arrived, found))


def _admitted(lane: Lane[W], record: Record, now: float = 0.0) -> W | Dead | None:
    if (flaw := record.flaw) is not None:
        if flaw.first_offset is not None:
            lane.observer.skipped(lane.partition, flaw.first_offset, record.offset, flaw.detail)
        return Dead(flaw.reason, flaw.detail)
    try:
        work = lane.worker.admit(record)
    except InvalidRecord as error:
        return Dead(error.reason, error.detail)
    except Exception as error:  # noqa: BLE001  a bug that one record triggers must not stop the others
        lane.observer.step_crashed(lane.worker.stage, error)
        return Dead("poison", f"{type(error).__name__} when it was read for {lane.worker.stage}")
    return work if work is None or not lane.setup.breaks.times else _judged(lane, work)


def _judged(lane: Lane[W], work: W) -> W | Dead:
    """A record that broke its lane too often is looked up, as it may be finished already, and then given up."""
    breaks = lane.setup.breaks
    poison = breaks.poison(work.record)
    if poison is None:
        return work
    if breaks.is_hopeless(work.record):
        return poison
    work.end = poison
    return work


# --- admit ------------------------------------------------------------------------------------------------------


def admit(lane: Lane[W], arrived: Arrived, read: W | Dead | None, now: float) -> None:
    """`read`: the work that was made of the record; or why none can be made; or None if nothing remains to be done."""
    copy, record = arrived.copy, arrived.record
    if read is None:
        if copy is None:
            done(lane, record.offset, now)
        else:
            lane.memory.take(-lane.due_index.release(copy.row.digest))
    elif isinstance(read, Dead):
        _dead_letter(lane, record, copy, read)
    else:
        if copy is not None:
            read.parked_at = copy.at
            read.attempts = max(read.attempts, copy.attempts)
            read.failing_since = now - copy.failing_for_s if copy.failing_for_s else None
            read.may_arrive_until, read.steps_aside = now + copy.may_arrive_s, copy.steps_aside
            if copy.number is not None:  # a replay keeps that of its record, which may be of another time
                read.number, read.number_given = copy.number, not read.generation
            if copy.out_of_order:
                read.queue, read.out_of_order = None, True
        take_in(lane, read, now)


def take_in(lane: Lane[W], work: W, now: float) -> None:
    """Have `work` looked up, or add it to the order at once: most have no row yet, which their begin finds out."""
    if (
        work.parked_at is not None
        or lane.parked_keys.blocks(work.queue)
        or work.end is not None
        or not lane.worker.table.may_begin_unseen(work)
        or CallQueue.LOOK_UP in lane.calls.busy
    ):
        lane.calls.put(CallQueue.LOOK_UP, work)
    elif lane.works.add(work):
        advance(work, Event.TAKEN_IN, Phase.DUPLICATE)
    else:
        work.unseen = True
        advance(work, Event.TAKEN_IN, Phase.WAITING)
        lane.order.add(work, now)


def _dead_letter(lane: Lane[Any], record: Record, copy: ParkedCopy | None, dead: Dead) -> None:
    """No work can be made of the record, or not any more: its receiver was removed since it was parked, say."""
    unread = Work(record, None, 0, None, "-")
    unread.unread = True
    if copy is not None:
        unread.row, unread.generation, unread.queue = copy.row, copy.generation, copy.queue
        unread.parked_at, unread.owes_tombstone = copy.at, True
    unread.end = dead
    advance(unread, Event.LOOKED_UP, Phase.APPENDING)
    append(lane, unread, (lane.worker.dead_letter(record, None, dead),))


def looked_up(lane: Lane[W], work: W, seen: LookupResult, now: float) -> None:
    keys = lane.parked_keys
    if keys.leaving.of:  # nearly never
        keys.leaving.discard(work)
        if work.parked_at is None and keys.looks_up_before(work):
            # Earlier works of its order key have left that while it was looked up: it follows them.
            look_up_again(lane, work)
            return
    if seen is LookupResult.FINISHED or not _is_duplicate(lane, work):
        place(lane, work, seen, Event.LOOKED_UP, now)


def look_up_again(lane: Lane[W], work: W) -> None:
    """Later works of its order key are looked up after it, too: a later record of its delivery would take its place."""
    lane.parked_keys.look_up(work)
    lane.calls.put(CallQueue.LOOK_UP, work)


def _is_duplicate(lane: Lane[W], work: W) -> bool:
    if work.parked_at is not None and lane.works.has_other(work):
        advance(work, Event.LOOKED_UP, Phase.OVER)  # it becomes due again if the one in memory does not end it
        put_back(lane, work)
    elif lane.works.add(work):
        advance(work, Event.LOOKED_UP, Phase.DUPLICATE)
    else:
        return False
    return True


def place(lane: Lane[W], work: W, seen: LookupResult, event: Event, now: float) -> None:
    """Its row is known, from a look-up or from its begin: it goes where it belongs."""
    if seen is LookupResult.FINISHED:
        known(lane, work, event, now)
    elif work.end is not None:
        publish(lane, work, event, work.end, now)
    elif seen is LookupResult.RESUME and work.result is not None:
        resume_in_time(lane, work, event, now)
    elif (go := _way_off(lane, work, seen, now)) is not None:
        if work.taken:
            leave_line(lane, work, event, go, now)
        else:
            go(lane, work, event, now)
    elif work.taken:
        again(lane, work, event, work.due, now)
    else:
        add(lane, work, event, now)


def _way_off(lane: Lane[W], work: W, seen: LookupResult, now: float) -> Go[W] | None:
    """How it leaves the lane's order, if it must not wait there. A head that was in flight waits only for records that
    are certainly parked: works that are being parked are behind it."""
    keys = lane.parked_keys
    leaves, work.leaves = work.leaves, False
    if work.parked_at is not None:
        if not work.taken and (seen is LookupResult.BEHIND or keys.moves_before(work)):
            work.due = max(work.due, now + ROOM_S)
            return park
    elif seen is LookupResult.BEHIND:
        keys.known(work.queue, row_of(work).owner)
        return queue_up
    elif not work.taken and keys.blocks(work.queue):
        return queue_up
    return park if leaves or is_to_be_parked(lane, work, work.due - now) else None


def is_over(lane: Lane[W], work: W) -> bool:
    """Whether it can end although its endpoint is closed, because nothing is sent for it any more."""
    return work.result is not None or isinstance(ask_worker(work, lane.worker.overdue, work), Dead | Done)
