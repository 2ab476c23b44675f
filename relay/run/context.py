"""The context that the parts of one process share: log, state, settings, plan and registry."""

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
