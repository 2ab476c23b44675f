"""What phases and cases result in; `dataclasses.asdict` of them is the JSON report."""

from dataclasses import dataclass, field
from math import nan

from bench.backlog import Depth, Verdict
from bench.ceiling import Calibration
from bench.counters import Traffic
from bench.rig import Arrivals
from bench.usage import Usage


@dataclass(frozen=True, slots=True)
class Counts:
    """By id: `lost` never came, `duplicated` are arrivals beyond the first, `misordered` first arrivals out of order.

    `refused`: deliveries that the receiver answered with 503. `rejected`: messages that could not be sent at all.
    """

    sent: int
    lost: int
    duplicated: int
    misordered: int
    refused: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the intended time of sending; `buckets` as in bench.histogram."""

    p50: float
    p95: float
    p99: float
    p999: float
    max: float
    buckets: dict[str, int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Drain:
    """A backlog worked off: `rate` messages a second between the first and the last arrival. `flood`: the relay ran
    while the messages were sent as fast as it took them, because nothing can be sent past it. `first_s`: else, from the
    start of the relay's process to the first arrival."""

    rate: float
    seconds: float
    flood: bool
    counts: Counts
    usage: Usage
    first_s: float | None = None
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, slots=True)
class Steady:
    """Messages at a fixed `rate`, for `seconds`."""

    rate: float
    seconds: float
    verdict: Verdict
    latency: Latency
    counts: Counts
    usage: Usage
    depths: list[Depth] = field(repr=False)
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A rate that was asked for: how the relay did, and right before it the plain pipeline, where both were run."""

    rate: float
    relay: Steady
    plain: Steady | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """`held` requests in flight at the same moment, and the memory (RSS, bytes) of the process that had sent them."""

    held: int
    rss: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """`wanted` requests in flight in one process, with payloads of so many bytes: none, half of them, and all."""

    wanted: int
    payload: int
    levels: list[Level]
    counts: Counts

    @property
    def bytes_each(self) -> float:
        """Memory that a request takes in that process, by the second half of them; nan when none came."""
        half, whole = self.levels[-2:]
        return (whole.rss - half.rss) / (whole.held - half.held) if whole.held > half.held else nan


@dataclass(slots=True)
class CaseResult:
    """A case's phases that were run. `sustained`: the highest rate that held. `tries`: the search for it. `fixed`: the
    requested rates, in the order in which they were run. `in_flight`: alone, where requests are held.

    `allowed`: the rate that the limits allow by Little's law, where the receivers take time to answer. `ordered`: order
    was promised, so that `misordered` counts.
    """

    name: str
    about: str
    ordered: bool = True
    allowed: float | None = None
    drain: Drain | None = None
    sustained: Steady | None = None
    tries: list[Steady] = field(default_factory=list)
    latencies: list[Steady] = field(default_factory=list)
    fixed: list[Fixed] = field(default_factory=list)
    in_flight: InFlight | None = None

    @property
    def best(self) -> float:
        """The highest rate that this case came to, drained or sustained."""
        return max((phase.rate for phase in (self.drain, self.sustained) if phase is not None), default=0.0)

    @property
    def fit(self) -> bool:
        return all(phase.usage.fit for phase in self.phases())

    def phases(self) -> list[Drain | Steady]:
        """What the case's figures rest on: not the tries of a search."""
        found = [self.drain, self.sustained, *self.latencies, *(each.relay for each in self.fixed)]
        return list({id(phase): phase for phase in found if phase is not None}.values())


@dataclass(frozen=True, slots=True)
class Machine:
    """What it ran on. `cpu`: as the kernel names it. `memory`: bytes."""

    cpu: str
    cores: int
    memory: int
    kernel: str
    python: str


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run. `at`: when it began, in UTC. `options`, `plan`: what was asked for. `revision`: of the code."""

    at: str
    revision: str
    machine: Machine
    calibration: Calibration
    options: dict[str, object]
    plan: dict[str, object]
    cases: list[CaseResult]


def latency_of(arrivals: Arrivals) -> Latency:
    times = arrivals.latencies
    p50, p95, p99, p999 = (times.percentile_ms(share) for share in (0.5, 0.95, 0.99, 0.999))
    return Latency(p50, p95, p99, p999, times.most_ms, times.sparse())
