"""The phases of a work on its way through a lane, and which event moves it from which phase to which. A transition that
`TRANSITIONS` does not have raises, and ends the lane. `core.HANDLERS` has the handler for each phase and event."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, Protocol


class Phase(Enum):
    """Each says what the work waits for."""

    __hash__ = object.__hash__  # that of Enum is Python code, and costs more than the lookup

    READ = "read"  # its record was read; its row may have to be looked up
    DUPLICATE = "duplicate"  # another record of the same delivery is in memory, and both end together
    WAITING = "waiting"  # in the lane's order: for its turn, its time, or its endpoint
    SEATING = "seating"  # for a seat among the requests that the process may have in flight
    BEGINNING = "beginning"  # for the state, which decides whether the attempt may begin
    DELAYED = "delayed"  # begun; for its slot of the receiver's rate
    RUNNING = "running"  # for its step, or for the reply to its request
    PINGING = "pinging"  # for the reply to a ping that was sent in its place
    PING_SETTLING = "settling ping"  # for the state, which stores the outcome of the ping
    SETTLING = "settling"  # for the state, which stores the outcome of the attempt
    APPENDING = "appending"  # for the log, which stores its hop records, or its dead letter
    MARKING = "marking"  # they are acknowledged; for the state, which marks its row
    PARKING = "parking"  # for its copy on `parked_messages`, and the reference in the due index
    BEHIND = "behind"  # it must not overtake parked records of its order key, and cannot be parked behind them now
    RETIRING = "retiring"  # for the removal of its parked copy
    OVER = "over"  # nothing of it is in memory any more


class Event(Enum):
    """What happened to a work."""

    __hash__ = object.__hash__

    LOOKED_UP = "looked up"
    TAKEN_IN = "taken in"
    TAKEN = "taken"
    WITHDRAWN = "withdrawn"
    SEATED = "seated"
    VERDICT = "verdict"
    DUE = "due"
    DECIDED = "decided"
    PING_SETTLED = "ping settled"
    SETTLED = "settled"
    APPENDED = "appended"
    MARKED = "marked"
    PARKED = "parked"
    NOT_PARKED = "not parked"
    LOOKED_BEHIND = "looked behind"
    RETIRED = "retired"
    FIRST_LEFT = "first left"


P = Phase

TRANSITIONS: Final[Mapping[Phase, Mapping[Event, frozenset[Phase]]]] = {
    phase: {event: frozenset(to) for event, to in events.items()}
    for phase, events in {
        P.READ: {
            Event.TAKEN_IN: {P.DUPLICATE, P.WAITING},
            Event.LOOKED_UP: {P.OVER, P.RETIRING, P.DUPLICATE, P.APPENDING, P.BEHIND, P.PARKING, P.WAITING},
        },
        P.DUPLICATE: {Event.FIRST_LEFT: {P.OVER}},
        P.WAITING: {
            Event.TAKEN: {P.SEATING, P.BEGINNING, P.RUNNING, P.APPENDING},
            Event.WITHDRAWN: {P.READ, P.PARKING, P.BEHIND, P.OVER},
        },
        P.SEATING: {Event.SEATED: {P.BEGINNING, P.RUNNING}},
        P.BEGINNING: {
            Event.VERDICT: {
                P.READ,
                P.DELAYED,
                P.RUNNING,
                P.PINGING,
                P.WAITING,
                P.PARKING,
                P.BEHIND,
                P.APPENDING,
                P.RETIRING,
                P.OVER,
            },
        },
        P.DELAYED: {Event.DUE: {P.RUNNING}},
        P.RUNNING: {Event.DECIDED: {P.READ, P.WAITING, P.PARKING, P.BEHIND, P.SETTLING, P.APPENDING}},
        P.PINGING: {Event.DECIDED: {P.PING_SETTLING}},
        P.PING_SETTLING: {Event.PING_SETTLED: {P.WAITING}},
        P.SETTLING: {Event.SETTLED: {P.READ, P.APPENDING, P.WAITING, P.PARKING, P.BEHIND, P.RETIRING, P.OVER}},
        P.APPENDING: {Event.APPENDED: {P.MARKING, P.OVER}},
        P.MARKING: {Event.MARKED: {P.RETIRING, P.OVER}},
        P.PARKING: {
            Event.PARKED: {P.OVER},
            Event.NOT_PARKED: {P.WAITING, P.BEHIND, P.RUNNING, P.APPENDING},
        },
        P.BEHIND: {Event.LOOKED_BEHIND: {P.READ, P.PARKING, P.WAITING, P.BEHIND}},
        P.RETIRING: {Event.RETIRED: {P.OVER}},
        P.OVER: {},
    }.items()
}
"""Phase -> event -> the phases that may follow."""


class Phased(Protocol):
    phase: Phase


class IllegalTransition(Exception):
    """A bug of the engine: names the work, its phase and the event."""

    def __init__(self, work: Phased, event: Event, to: Phase | None = None) -> None:
        where = "" if to is None else f", to {to.value}"
        super().__init__(f"{work!r}: {event.value} while {work.phase.value}{where}")
        self.work = work
        self.phase = work.phase
        self.event = event


def advance(work: Phased, event: Event, to: Phase) -> None:
    """`event` moves `work` to the phase `to`. Raises IllegalTransition if the table has no such transition."""
    allowed = TRANSITIONS[work.phase].get(event)
    if allowed is None or to not in allowed:
        raise IllegalTransition(work, event, to)
    work.phase = to
