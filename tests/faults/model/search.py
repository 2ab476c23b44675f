"""Breadth-first search over everything that can happen in a world of the model."""

from collections import deque
from dataclasses import dataclass, field

from tests.faults.model.misfortunes import events
from tests.faults.model.steps import steps
from tests.faults.model.world import MESSAGES, Rules, Worker, World

ALL: frozenset[Worker] = frozenset(("from_sender", "to_receiver", "to_sender"))


@dataclass(slots=True)
class Found:
    """What all interleavings together have shown. `first`: of each kind of violation, how the shortest comes about."""

    states: int = 0
    at_rest: int = 0
    copies: int = 0
    """The most that the receiver got in one history of what it had got before."""
    first: dict[str, list[str]] = field(default_factory=dict)
    logs: set[tuple[int, ...]] = field(default_factory=set)
    """What to_receiver may hold in the end, where nobody reads it."""

    @property
    def violations(self) -> set[str]:
        """Of: lost, stuck, copied, disordered."""
        return set(self.first)


def search(start: World, rules: Rules, workers: frozenset[Worker] = ALL, *, to_the_end: bool = True) -> Found:
    """Look at every world that can come about from `start`, when only `workers` are at work; not `to_the_end`: until
    the first violation."""
    came: dict[World, tuple[World, str] | None] = {start: None}
    queue, found = deque([start]), Found()
    while queue and (to_the_end or not found.first):
        world = queue.popleft()
        after, resting = _successors(world, rules, workers)
        for label, each in after:
            if each not in came:
                came[each] = (world, label)
                queue.append(each)
        found.copies = max(found.copies, world.copies)
        found.at_rest += resting
        if resting:
            found.logs.add(world.hops)
        for violation in _violations(world, resting, workers):
            if violation not in found.first:
                found.first[violation] = _history(came, world)
    found.states = len(came)
    return found


def _successors(world: World, rules: Rules, workers: frozenset[Worker]) -> tuple[list[tuple[str, World]], bool]:
    """And whether the world is at rest: whatever still may happen is a fault."""
    done = [(f"{step.worker}: {', '.join(step.calls)}", step.after) for step in steps(world, rules, workers)]
    happened = list(events(world, rules))
    resting = not done and not any(event.progress for event in happened)
    return done + [(event.what, event.after) for event in happened], resting


def _violations(world: World, resting: bool, workers: frozenset[Worker]) -> list[str]:
    found = []
    if world.copies:
        found.append("copied")
    if world.disordered:
        found.append("disordered")
    if resting and any(world.log(worker) for worker in workers):
        found.append("stuck")
    if resting and not _complete(world, workers):
        found.append("lost")
    return found


def _complete(world: World, workers: frozenset[Worker]) -> bool:
    """Whether the last of `workers` has handed on every message."""
    if "to_sender" in workers:
        return all(world.back)
    return set(MESSAGES) <= set(world.answers if "to_receiver" in workers else world.hops)


def _history(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    labels = []
    step = came[world]
    while step is not None:
        labels.append(step[1])
        step = came[step[0]]
    return labels[::-1]
