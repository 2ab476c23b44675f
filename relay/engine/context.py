"""What every part of a lane shares: who it is, the ports, the bounds."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from relay.engine.clock import Clock
from relay.engine.gather import at_once
from relay.engine.holding import Holding
from relay.engine.observer import Observer
from relay.engine.patience import Patience
from relay.engine.resumes import Resumes
from relay.engine.roster import Roster
from relay.engine.turnstile import Turnstile
from relay.log.port import Log, TopicPartition
from relay.state.port import Lane, State


@dataclass(frozen=True, slots=True)
class Bounds:
    """Everything is bounded. Counts are per lane unless said otherwise; durations in seconds."""

    window: int = 2_000
    """Unfinished records, at most."""
    span: int = 20_000
    """Offsets between the commit watermark and the newest record, at most."""
    hold_s: float = 60.0
    """Longer waits are parked."""
    parked_per_owner: int = 100_000
    """Parked references of a receiver; polls are counted apart."""
    parked_total: int = 1_000_000
    due_in_hand: int = 500
    """Parked records taken up at a time."""
    lease_s: float = 60.0
    """How long a reference taken from the due index stays with this lane before it comes again."""
    start_within_s: float = 5.0
    """A request starts within this time of its begin, or the begin is released."""
    crashes: int = 3
    """Unexpected exceptions of a step before its record is called poison."""


@dataclass(frozen=True, slots=True)
class LaneContext:
    """A lane's identity and surroundings. `tags`: hash tags under which its parked references may be.

    `shared`: many receivers in one lane: a closed one is parked out of the others' way, instead of stopping intake.
    `turnstile`: of the process: who may make a request now.
    `linger_s`: how long begins and outcomes may wait, now, for others that share their call to the state.
    `resumes`: where it hears that somebody has resumed an endpoint.
    `roster`: where it is told that this lane is served.
    """

    lane: Lane
    parked_topic: str
    tags: tuple[int, ...]
    shared: bool
    log: Log
    state: State
    clock: Clock
    observer: Observer
    patience: Patience
    bounds: Bounds
    holding: Holding
    turnstile: Turnstile
    linger_s: Callable[[], float] = at_once
    roster: Roster = field(default_factory=Roster)
    resumes: Resumes = field(default_factory=Resumes)
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One for all lanes of a process: held while one suspect of it is at work (see `quarantine`)."""

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.lane.topic, self.lane.partition)
