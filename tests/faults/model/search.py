"""Breadth-first search over everything that can happen in a world of the model."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from relay.domain.reasons import REPLACED
from relay.state.rows import MessageStage, Stage
from tests.faults.model.events import Event, events, happen
from tests.faults.model.here import HERE, Role
from tests.faults.model.sameness import sameness
from tests.faults.model.world import START, World, copied, forget_copies, restored


@dataclass(slots=True)
class Found:
    """What all interleavings together have shown. `first`: of each kind of violation, how the shortest comes about."""

    worlds: int = 0
    at_rest: int = 0
    copies: int = 0
    """The most that the receiver got in one history of what it had got before."""
    first: dict[str, list[str]] = field(default_factory=dict)
    logs: set[tuple[int, ...]] = field(default_factory=set)
    """Possible final contents of `to_receiver`, where no worker reads it."""

    @property
    def violations(self) -> set[str]:
        """Of: lost, unmarked, stuck, copied, disordered, untimely, replaced, late, broken."""
        return set(self.first)


@dataclass(slots=True)
class _Place:
    """A world that was reached: by which events, and from where it can be reached without a fault."""

    number: int
    came: "tuple[_Place, Event] | None"
    rests: bool = False
    before: "list[_Place]" = field(default_factory=list)

    @property
    def history(self) -> list[str]:
        labels, place = [], self
        while place.came is not None:
            place, event = place.came
            labels.append(str(event))
        return labels[::-1]


MOST: Final = 500_000
"""Maximum number of worlds: a search that finds more distinguishes worlds that are the same, or never ends."""


LATE_S: Final = 900.0
"""Nothing here takes so long, whatever happens to it."""


class _Search:
    def __init__(self) -> None:
        self.found = Found()
        self.places: dict[int, _Place] = {}
        self.queue: deque[tuple[_Place, bytes]] = deque()

    def meet(self, world: World, came: tuple[_Place, Event] | None) -> None:
        same = sameness(world)
        place = self.places.get(same)
        if place is None:
            place = self.places[same] = _Place(len(self.places), came)
            self.queue.append((place, copied(world)))
            self._judge(world, place)
        if came is not None and came[1].progress:
            place.before.append(came[0])

    def look(self) -> None:
        """At all that can follow from the next world."""
        place, copy = self.queue.popleft()
        found = events(restored(copy))
        for event in found:
            world = HERE.world if event is found[0] else restored(copy)  # looking has changed nothing
            try:
                happen(world, event)
            except Exception as error:  # noqa: BLE001  any exception is a finding
                self._violated("broken", [*place.history, str(event), repr(error)])
            else:
                self.meet(world, (place, event))

    def _judge(self, world: World, place: _Place) -> None:
        found = self.found
        found.copies = max(found.copies, world.copies)
        if world.copies:
            self._violated("copied", place)
        if world.now - START > LATE_S:
            self._violated("late", place)
        if world.disordered:
            self._violated("disordered", place)
        if world.untimely:
            self._violated("untimely", place)
        if not is_rightly_replaced(world):
            self._violated("replaced", place)
        if world.is_at_rest:
            place.rests = True
            found.at_rest += 1
            found.logs.add(world.log("to_receiver"))
            if not is_complete(world):
                self._violated("lost", place)
            if not is_marked(world):
                self._violated("unmarked", place)

    def _violated(self, what: str, how: "_Place | list[str]") -> None:
        if what not in self.found.first:
            self.found.first[what] = how.history if isinstance(how, _Place) else how

    def end(self) -> None:
        """From everywhere there has to be a way to rest, without any fault."""
        places = list(self.places.values())
        on_the_way = [place for place in places if place.rests]
        good = {place.number for place in on_the_way}
        while on_the_way:
            for before in on_the_way.pop().before:
                if before.number not in good:
                    good.add(before.number)
                    on_the_way.append(before)
        for place in places:
            if place.number not in good:
                self._violated("stuck", place)
                break


def search(start: World, *, to_the_end: bool = True) -> Found:
    """Look at every world that can come about from `start`; not `to_the_end`: until the first violation."""
    searching = _Search()
    searching.meet(start, None)
    while searching.queue and (to_the_end or not searching.found.first):
        if len(searching.places) > MOST:
            raise AssertionError(f"too many worlds; for example {searching.queue[-1][0].history}")
        searching.look()
    if not searching.queue:
        searching.end()
    searching.found.worlds = len(searching.places)
    forget_copies()
    return searching.found


def is_rightly_replaced(world: World) -> bool:
    """Whether no message ended as replaced that was sent, or was the last one."""
    replaced = {number for number, reason in world.dead if reason == REPLACED}
    return not replaced or not (any(world.seen[number] for number in replaced) or max(world.messages) in replaced)


def is_marked(world: World) -> bool:
    """Whether the rows record which messages are finished, unless they were lost since."""
    if world.state.was_lost:
        return True
    return all(world.state.stage(role, number) >= _MARKED[role] for role in world.owners for number in world.log(role))


_MARKED: Final[dict[Role, int]] = {
    "from_sender": MessageStage.ENQUEUED,
    "to_receiver": Stage.PUBLISHED,
    "to_sender": Stage.DONE,
}
_WRITES: Final[dict[Role, Role]] = {"from_sender": "to_receiver", "to_receiver": "to_sender"}


def is_complete(world: World) -> bool:
    """Whether the last of its workers has handed on every message; one with a timing may have ended by it."""
    last = list(world.owners)[-1]
    if last == "to_sender":
        return all(world.back[number] for number in world.messages)
    logs = [world.log(_WRITES[last])] + [world.beside] * (len(world.cast.names) - 1)
    ended = {number for number, _ in world.dead if number in world.cast.timings}
    return all(world.messages <= {*log, *ended} for log in logs)
