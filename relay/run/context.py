"""What the parts of one process share: on which log and state it is, what it is to do, and who is known."""

from dataclasses import dataclass

from relay.clock.shared import SharedClock
from relay.config.plan import ProcessPlan
from relay.config.settings import Settings
from relay.control.registry import Registry
from relay.domain.topics import Topics
from relay.log.port import Log
from relay.state.port import State


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """`owner`: the process's name, unique among all."""

    settings: Settings
    plan: ProcessPlan
    log: Log
    state: State
    topics: Topics
    clock: SharedClock
    registry: Registry
    owner: str
