"""The timeline of a counterexample: the events of the messages concerned, and the faults around them."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from relay.domain.identity import webhook_id
from tests.faults.harness.history import Arrival, Asked, Counterexample, Fault, History, Key, Returned, Sent, Unheard

_BEFORE_S: Final = 10.0
_AFTER_S: Final = 30.0
"""Faults within this time after the last event may be the reason why no event followed."""
_MOST_FAULTS: Final = 60


class _Event(NamedTuple):
    at: float
    kind: str
    says: str


_Told = Sent | Arrival | Unheard | Returned


def timeline(history: History, counterexample: Counterexample) -> str:
    """One line for each event, in order; seconds since the first event of the messages concerned. Without messages: the
    last faults of the run, in seconds before its end."""
    lines = [f"{counterexample.kind}: {counterexample.says}"]
    keys = counterexample.messages
    events = sorted(_events(history, keys), key=lambda event: event.at)
    faults = [_Event(fault.at, "fault", _fault(fault)) for fault in history.faults]
    if events:
        zero, last = events[0].at, events[-1].at
        faults = [fault for fault in faults if zero - _BEFORE_S <= fault.at <= last + _AFTER_S]
    else:
        zero = faults[-1].at if faults else 0.0
    left_out = len(faults) - _MOST_FAULTS
    if left_out > 0:
        lines.append(f"  ({left_out} earlier faults are left out)")
    story = sorted(events + faults[-_MOST_FAULTS:], key=lambda event: event.at)
    lines.extend(f"  {event.at - zero:+10.3f}  {event.kind:<8}  {event.says}" for event in story)
    lines.extend(f"  {'':10}  {'died':<8}  {death}" for death in _deaths(history, keys))
    return "\n".join(lines)


def _events(history: History, keys: tuple[Key, ...]) -> Iterator[_Event]:
    wanted = set(keys)
    records: Iterable[_Told] = chain(history.sent, history.arrivals, history.unheard, history.returned)
    for record in records:
        if record.key in wanted:
            kind, says = _told(record)
            yield _Event(record.at, kind, f"{says}{_which(record.key, keys)}")
    names = {(key.receiver, name): key for key in keys for name in _names(key)}
    for asked in history.asked:
        asked_about = names.get((asked.receiver, asked.asked_for))
        if asked_about is not None:
            yield _Event(asked.at, "asked", f"{_answer(asked)}{_which(asked_about, keys)}")


def _names(key: Key) -> tuple[str, str]:
    """The ids by which a status endpoint may be asked for it."""
    return key.message_id, webhook_id(key.source, key.message_id)


def _told(record: _Told) -> tuple[str, str]:
    match record:
        case Sent():
            acked = "acknowledged" if record.acked else "NOT acknowledged"
            return "sent", f"number {record.number}, {acked}, bytes {record.digest[:8]}"
        case Arrival():
            work = "processed" if record.processed else "not processed"
            sequence = "" if record.sequence is None else f", sequence {record.sequence}"
            return "arrived", f"{_attempt(record)}{sequence}, bytes {record.digest[:8]}: {work}, {_answer(record)}"
        case Unheard():
            return "unheard", f"{_attempt(record)}: the connection was gone when the answer was due"
        case Returned():
            return "returned", f"{record.outcome}, {record.result_id}, bytes {record.digest[:8]}: {_answer(record)}"


def _attempt(record: Arrival | Unheard) -> str:
    return f"attempt {record.attempt} of generation {record.generation}"


def _answer(record: Arrival | Returned | Asked) -> str:
    return "no answer" if record.status is None else f"answered {record.status}"


def _which(key: Key, keys: tuple[Key, ...]) -> str:
    return f"  [{key}]" if len(keys) > 1 else ""


def _fault(fault: Fault) -> str:
    return f"{fault.what} (heals)" if fault.heals else fault.what


def _deaths(history: History, keys: tuple[Key, ...]) -> Iterator[str]:
    """The time of a dead letter is unknown."""
    for died in history.died:
        for key in keys:
            if (died.source, died.message_id) == key[:2] and died.receiver in ("", key.receiver):
                yield f"{died.reason}{_which(key, keys)}"
