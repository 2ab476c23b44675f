"""What the parts of one process share: on which log and state it is, what it is to do, and who is known."""

from dataclasses import dataclass

from relay.config.registry import Registry
from relay.config.settings import Settings
from relay.domain.topics import Topics
from relay.log.port import Log
from relay.plan import Plan
from relay.state.port import State
from relay.watch.shared_clock import SharedClock


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """`owner`: the process's name, unique among all."""

    settings: Settings
    plan: Plan
    log: Log
    state: State
    topics: Topics
    clock: SharedClock
    registry: Registry
    owner: str
