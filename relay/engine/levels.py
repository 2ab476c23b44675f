"""What is so in a lane now: how much is under way, and what the rest waits for. Looked at when somebody asks."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from relay.state.attempts import WaitReason

WaitFor = Literal[
    "retry",
    "rate",
    "paused",
    "offline",
    "breaker",
    "order",
    "in_doubt",
    "answer",
    "settling",
    "backlog",
    "max_in_flight",
    "own_shortage",
    "seat",
    "turn",
]
"""What a record in memory waits for: the words of `waiting_for`, and those that nobody is told for one delivery.
`backlog`: room for its answer or its retry. `max_in_flight`: another request to its endpoint has to end.
`own_shortage`: something of our own is short. `seat`: as many requests as may are under way in the process. `turn`:
nothing."""

FOR: Final[Mapping[WaitReason, WaitFor]] = {
    "rate": "rate",
    "pause": "paused",
    "breaker": "breaker",
    "settling": "settling",
    "offline": "offline",
    "disabled": "paused",
    "backlog": "backlog",
}


class Levels(NamedTuple):
    """Of one lane, or of many. `in_flight`: attempts under way."""

    in_flight: int
    waits: Counter[WaitFor]

    def plus(self, other: "Levels") -> "Levels":
        return Levels(self.in_flight + other.in_flight, self.waits + other.waits)


NOTHING: Final = Levels(0, Counter())
