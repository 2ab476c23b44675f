"""The experiments by name, the most important first."""

from collections.abc import Mapping
from typing import Final

from tests.faults.harness.experiments import (
    brokers,
    clocks,
    failover,
    failpoint_sweep,
    isolation,
    network,
    planted_bugs,
    poison,
    random_kills,
    recovery_times,
    redis_faults,
    replays,
    rolling,
    shortened,
    timers,
    zombies,
)
from tests.faults.harness.trial import Experiment

_MODULES: Final = (
    *(random_kills, failpoint_sweep, zombies, rolling, brokers, shortened, network, redis_faults, failover),
    *(isolation, clocks, timers, poison, replays, recovery_times, planted_bugs),
)

EXPERIMENTS: Final[Mapping[str, Experiment]] = {
    experiment.name: experiment for module in _MODULES for experiment in module.EXPERIMENTS
}
