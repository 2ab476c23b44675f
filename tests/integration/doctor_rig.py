"""A Kafka, a Redis and receivers of one test, on which `relay doctor` runs and faults are planted."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relay.checks.runner import PROBES, examine
from relay.clock import SystemClock
from relay.config.plan import ROLES
from relay.config.setting_layers import load_settings
from relay.config.settings import Settings
from relay.domain.diagnosis import Checked, Diagnosis
from relay.domain.topics import Topics
from relay.run.check_contexts import context_of_command
from relay.run.composition import open_log
from tests.servers.kafka import Broker
from tests.servers.valkey import ValkeyServer

SECRET = "whsec_Y2lyY2xlY2ktY2lyY2xlY2ktY2lyY2xlY2kh"
NOWHERE = "127.0.0.1:9"


class TurnedClock(SystemClock):
    """The system clock, `ahead_s` seconds ahead. A sleep takes no time and calls `meanwhile` instead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    def wall(self) -> float:
        return super().wall() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        if self.meanwhile is not None:
            await self.meanwhile()


@dataclass
class DoctorRig:
    """`environ`: of the command. `receivers`, `sources`: the receivers file, which is written before each run."""

    environ: dict[str, str]
    directory: Path
    receivers: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    clock: TurnedClock = field(default_factory=TurnedClock)

    @property
    def settings(self) -> Settings:
        return load_settings({}, {name: text for name, text in self.environ.items() if name.startswith("RELAY_")})

    @property
    def topics(self) -> Topics:
        return Topics(self.environ["RELAY_TOPIC_PREFIX"])

    async def create(self, *, partitions: Mapping[str, int] | None = None) -> None:
        """Create all topics. `partitions`: numbers of partitions that differ from the specification."""
        others = partitions or {}
        specs = [replace(spec, partitions=others.get(spec.name, spec.partitions)) for spec in self.topics.fixed()]
        specs += [spec for name in self.receivers for spec in self.topics.lane_specs(name, 1)]
        async with open_log(self.settings) as log:
            await log.create(specs, self.topics.groups(self.receivers))

    def write(self) -> None:
        file = {"receivers": self.receivers, "sources": self.sources}
        (self.directory / "receivers.yaml").write_text(json.dumps(file))

    async def run(self, *names: str, receiver: str | None = None, **changes: Any) -> Diagnosis:
        """Run the doctor. `names`: run the probes of these checks only. `changes`: fields of the case to replace."""
        self.write()
        case = context_of_command(self.settings, self.environ, frozenset(ROLES), self.clock, receiver)
        case = replace(case, **changes)
        probes = [probe for probe in PROBES if not names or {probe.check.name, *probe.check.also} & {*names}]
        try:
            return await examine(case, probes=probes)
        finally:
            await case.close()


@asynccontextmanager
async def doctor_rig(broker: Broker, redis: ValkeyServer, directory: Path, prefix: str) -> AsyncIterator[DoctorRig]:
    environ = {
        "RELAY_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "RELAY_REDIS_URL": redis.url,
        "RELAY_TOPIC_PREFIX": prefix,
        "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8",
        "RELAY_RECEIVERS_FILE": str(directory / "receivers.yaml"),
    }
    yield DoctorRig(environ, directory)


def named(found: Diagnosis, name: str) -> list[Checked]:
    return [each for each in found.checks if each.name == name]


def only(found: Diagnosis, name: str, severity: str) -> Checked:
    """The only result of that severity about it."""
    [line] = [each for each in named(found, name) if each.severity == severity]
    return line


def formatted(lines: Sequence[Checked]) -> str:
    return "\n".join(f"{each.severity} {each.name} {each.subject}: {each.what} -> {each.todo}" for each in lines)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that accepts connections and never responds."""
    await reader.read()
    writer.close()
