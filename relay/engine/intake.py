"""Reads records into works, in order. A record that cannot be read becomes a dead letter: none stops the lane. Pure."""

from functools import partial
from typing import Any

from relay.domain.errors import InvalidRecord
from relay.engine.commands import Alone, CallQueue
from relay.engine.lane import Lane
from relay.engine.quarantine import NO_OFFSET, Arrived, ReservationResult
from relay.engine.work import Dead, W
from relay.log.port import Record

Read = tuple[Arrived, Any]
"""A record and the work that was made of it; or Dead; or None if nothing remains to be done."""


def read(lane: Lane[W], limit: int, now: float) -> list[Read]:
    """Up to `limit` of the records that arrived. A reservation or a suspect holds up the others."""
    quarantine = lane.quarantine
    while lane.arrived and not lane.held_up and len(lane.understood) < limit:
        arrived = lane.arrived[0]
        if quarantine.wary or arrived.copy is not None or arrived.record.offset >= quarantine.reserved_below:
            _read_warily(lane, now)
        else:
            lane.arrived.popleft()
            lane.understood.append((arrived, _admitted(lane, arrived.record)))
    found: list[Read] = list(lane.understood)
    lane.understood.clear()
    return found


def _to_be_reserved(lane: Lane[Any]) -> bool:
    first = lane.arrived[0]
    before = lane.quarantine.to_reserve(NO_OFFSET if first.copy is not None else first.record.offset)
    if before is None:
        return False
    lane.held_up = True
    lane.calls.put(CallQueue.RESERVE, before)
    return True


def reserved(lane: Lane[Any], before: int, found: ReservationResult, now: float) -> None:
    lane.held_up = False
    quarantine = lane.quarantine
    if quarantine.reserved(before, found, now):
        lane.observer.wary(lane.partition, quarantine.suspected_below, quarantine.marked)


def _read_warily(lane: Lane[W], now: float) -> None:
    if _to_be_reserved(lane):
        return
    arrived = lane.arrived.popleft()
    record, quarantine = arrived.record, lane.quarantine
    if not quarantine.suspects(record, now, parked=arrived.copy is not None):
        lane.understood.append((arrived, _admitted(lane, record)))
    elif (poison := quarantine.poison(record)) is not None:
        lane.understood.append((arrived, poison))
    else:
        lane.held_up = True
        part, done = partial(_admitted, lane, record), partial(_was_alone, lane, arrived)
        lane.calls.put(CallQueue.ALONE, Alone(record, None, quarantine.times(record), part, done))


def _was_alone(lane: Lane[W], arrived: Arrived, found: W | Dead | None, now: float) -> None:
    lane.held_up = False
    if found is not None and not isinstance(found, Dead):
        found.suspect = True
    lane.understood.append((arrived, found))


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
