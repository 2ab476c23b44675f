"""What a message took besides CPU: requests to Kafka, round trips to Redis, and wake-ups, counted by those who know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

KINDS: Final = {"Produce": "produce", "Fetch": "fetch", "OffsetCommit": "commit"}
"""Kinds of requests to Kafka that are counted apart; all others are `other`."""
_OF_BROKERS: Final = ("BrokerHeartbeat", "BrokerRegistration", "ControllerRegistration")
_OF_A_READING: Final = 1
_SCRIPT_CALLS: Final = ("cmdstat_evalsha", "cmdstat_fcall")


@dataclass(frozen=True, slots=True)
class Counters:
    """Running totals. `kafka`: requests by kind as the broker names them, None where the broker is not ours.

    `trips`: reads of the Redis server from its clients, one for each request or pipeline (a further one for every 16
    kB; each reading of these totals is one), `scripts`: calls of scripts and functions, both None where it is not ours.
    `wakeups`: by group of processes, how often a thread had gone to sleep because there was nothing to do.
    """

    kafka: Mapping[str, int] | None
    trips: int | None
    scripts: int | None
    wakeups: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one message, on average over a phase, from before its first to after its last; see Counters.

    `kafka`: by kind: produce, fetch, commit, other, without those of the load generator.
    """

    kafka: dict[str, float] | None = None
    trips: float | None = None
    scripts: float | None = None
    wakeups: dict[str, float] = field(default_factory=dict)

    @property
    def requests(self) -> float | None:
        """To Kafka, of all kinds."""
        return None if self.kafka is None else sum(self.kafka.values())

    @property
    def messages_a_trip(self) -> float | None:
        return 1 / self.trips if self.trips else None


def traffic(first: Counters, last: Counters, messages: int, produced: int) -> Traffic:
    """Between two readings, with `messages` between them, for which the generator made `produced` Produce requests."""
    each = max(messages, 1)
    return Traffic(
        _requests(first.kafka, last.kafka, each, produced),
        _ratio(first.trips, last.trips, each, _OF_A_READING),
        _ratio(first.scripts, last.scripts, each),
        {name: (count - first.wakeups.get(name, 0)) / each for name, count in last.wakeups.items()},
    )


def of_redis(told: Mapping[str, Any]) -> tuple[int, int]:
    """Round trips, and calls of scripts, from the sections stats and commandstats of INFO, as redis-py gives them."""
    return told["total_reads_processed"], sum(told.get(name, {"calls": 0})["calls"] for name in _SCRIPT_CALLS)


def _requests(
    first: Mapping[str, int] | None, last: Mapping[str, int] | None, each: int, produced: int
) -> dict[str, float] | None:
    if first is None or last is None:
        return None
    found = dict.fromkeys((*KINDS.values(), "other"), 0) | {"produce": -produced}
    for kind, count in last.items():
        if kind not in _OF_BROKERS:
            found[KINDS.get(kind, "other")] += count - first.get(kind, 0)
    return {kind: count / each for kind, count in found.items()}


def _ratio(first: int | None, last: int | None, each: int, less: int = 0) -> float | None:
    return None if first is None or last is None else (last - first - less) / each
