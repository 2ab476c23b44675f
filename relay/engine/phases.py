"""Where a work can be on its way through a lane, and which event may take it from where to where. This table is the
law: a step that it does not allow raises, and ends the lane."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, Protocol


class Phase(Enum):
    """Each says who has the work now."""

    __hash__ = object.__hash__  # Enum's own is Python, and costs more than what is looked up by it

    READ = "read"  # its record was understood; what is known of it may have to be looked up
    TWIN = "twin"  # another record of the same delivery is here, and it ends with that one
    WAITING = "waiting"  # in the lane's order: for its turn, its time, or its endpoint
    SEATING = "seating"  # for a seat among the requests that the process may have under way
    BEGINNING = "beginning"  # the state is asked for an attempt
    DELAYED = "delayed"  # begun; its slot of the receiver's rate is still to come
    RUNNING = "running"  # its step decides, or has somebody asked
    PINGING = "pinging"  # a ping is under way in its place
    ECHOING = "echoing"  # what came of the ping is being stored
    SETTLING = "settling"  # what came of the attempt is being stored
    APPENDING = "appending"  # its hop records, or its dead letter, are on their way to the log
    MARKING = "marking"  # they are acknowledged, and its row is being told
    PARKING = "parking"  # its copy is on its way to `parked_messages`, and a reference into the due index
    BEHIND = "behind"  # it may not overtake parked records of its order key, and cannot queue up behind them now
    RETIRING = "retiring"  # its parked copy is being removed
    OVER = "over"  # nothing of it is in memory any more


class Event(Enum):
    """What has happened to a work."""

    __hash__ = object.__hash__

    LOOKED_UP = "looked up"
    TAKEN_IN = "taken in"
    TAKEN = "taken"
    WITHDRAWN = "withdrawn"
    SEATED = "seated"
    VERDICT = "verdict"
    DUE = "due"
    DECIDED = "decided"
    ECHOED = "echoed"
    SETTLED = "settled"
    APPENDED = "appended"
    MARKED = "marked"
    PARKED = "parked"
    NOT_PARKED = "not parked"
    LOOKED_BEHIND = "looked behind"
    RETIRED = "retired"
    TWIN_LEFT = "twin left"


P = Phase

TRANSITIONS: Final[Mapping[Phase, Mapping[Event, frozenset[Phase]]]] = {
    phase: {event: frozenset(to) for event, to in events.items()}
    for phase, events in {
        P.READ: {
            Event.TAKEN_IN: {P.TWIN, P.WAITING},
            Event.LOOKED_UP: {P.OVER, P.RETIRING, P.TWIN, P.APPENDING, P.BEHIND, P.PARKING, P.WAITING},
        },
        P.TWIN: {Event.TWIN_LEFT: {P.OVER}},
        P.WAITING: {
            Event.TAKEN: {P.SEATING, P.BEGINNING, P.RUNNING},
            Event.WITHDRAWN: {P.READ, P.PARKING, P.BEHIND, P.OVER},
        },
        P.SEATING: {Event.SEATED: {P.BEGINNING, P.RUNNING}},
        P.BEGINNING: {
            Event.VERDICT: {
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
        P.PINGING: {Event.DECIDED: {P.ECHOING}},
        P.ECHOING: {Event.ECHOED: {P.WAITING}},
        P.SETTLING: {Event.SETTLED: {P.APPENDING, P.WAITING, P.PARKING, P.BEHIND, P.RETIRING, P.OVER}},
        P.APPENDING: {Event.APPENDED: {P.MARKING, P.OVER}},
        P.MARKING: {Event.MARKED: {P.RETIRING, P.OVER}},
        P.PARKING: {
            Event.PARKED: {P.OVER},
            Event.NOT_PARKED: {P.WAITING, P.BEHIND, P.APPENDING},
        },
        P.BEHIND: {Event.LOOKED_BEHIND: {P.READ, P.PARKING, P.WAITING, P.BEHIND}},
        P.RETIRING: {Event.RETIRED: {P.OVER}},
        P.OVER: {},
    }.items()
}
"""Phase -> event -> where it may lead."""


class Phased(Protocol):
    phase: Phase


class IllegalTransition(Exception):
    """A bug of ours: names the work, its phase and the event."""

    def __init__(self, work: Phased, event: Event, to: Phase) -> None:
        super().__init__(f"{work!r}: {event.value} while {work.phase.value}, to {to.value}")
        self.work = work
        self.phase = work.phase
        self.event = event


def advance(work: Phased, event: Event, to: Phase) -> None:
    """`event` takes `work` to another phase. Raises IllegalTransition where the table has no such step."""
    allowed = TRANSITIONS[work.phase].get(event)
    if allowed is None or to not in allowed:
        raise IllegalTransition(work, event, to)
    work.phase = to
