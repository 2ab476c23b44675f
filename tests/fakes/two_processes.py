"""Two processes over one log and one state in virtual time, and their metrics: for tasks that only one of all does."""

from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from relay.domain.topics import Topics
from relay.log.port import NewRecord
from relay.telemetry.metrics import Metrics
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import LoopClock


class TwoProcesses:
    """`names`: of receivers with a lane of their own."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.clock = LoopClock()
        self.broker = MemoryBroker(now_ms=lambda: int(self.clock.time() * 1000))
        self.state = MemoryState(clock=self.clock.monotonic)
        self.log = MemoryLog(self.broker)
        self.topics = Topics()
        self.metrics = [Metrics("1"), Metrics("1")]

    async def started(self) -> Self:
        await self.log.start()
        specs = [*self.topics.fixed(), *(spec for name in self.names for spec in self.topics.lane_specs(name, 1))]
        await self.log.create(specs, self.topics.groups(self.names))
        return self

    async def append(self, topic: str = "to_receiver_ci", count: int = 1) -> None:
        await self.log.append([NewRecord(topic, b"k", b"v")] * count)

    def value(self, name: str, *, process: int = 0, **labels: str) -> float | None:
        """Summed over labels that are not given; None: there is no such series."""
        families = text_string_to_metric_families(self.metrics[process].render().decode())
        found = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None
