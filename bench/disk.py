"""What messages keep on disk: `python -m bench.disk [MESSAGES [RATE]]`.

A relay takes MESSAGES of 1 kB over its API, delivers them, and brings back answers of 200 bytes: RATE a second, or as
fast as it can. What its topics then take on the broker's disk is divided by their offsets. The same once more with
`compression.type=uncompressed` on the topics. From their records histories are filled, and their tables are measured.
"""

import asyncio
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition

from bench.cases import BASE
from bench.history_sizes import Place, history_lines
from bench.phases import drain, steady
from bench.rig import Options, Rig
from relay.domain.topics import Topics
from relay.history.lag import topics_read

_CASE: Final = replace(BASE, round_trip=True, payload=1000, answer=200)
_ATTEMPTS: Final = 2
"""Logged for each message: the POST to its receiver, and that to its sender's callback."""
_TOLD_S: Final = 60.0
_LOOK_S: Final = 0.2
_BLOCK: Final = 512
"""The unit of `st_blocks`, whatever the file system's blocks are."""

Ends = Mapping[TopicPartition, int]


class Kept(NamedTuple):
    """So many bytes on disk for so many records."""

    bytes: int
    records: int

    @property
    def each(self) -> float:
        return self.bytes / self.records


def by_kind(partitions: Mapping[TopicPartition, Kept], prefix: str) -> dict[str, Kept]:
    """Of all topics of a kind together: receivers' own are `to_receiver_*`. Without those that have no record."""
    found: dict[str, Kept] = defaultdict(lambda: Kept(0, 0))
    for place, kept in partitions.items():
        kind = re.sub(r"^(to_receiver|pending_from_receiver)_.*", r"\1_*", place.topic.removeprefix(prefix))
        found[kind] = Kept(found[kind].bytes + kept.bytes, found[kind].records + kept.records)
    return {kind: kept for kind, kept in sorted(found.items()) if kept.records}


def since(before: Mapping[str, Kept], now: Mapping[str, Kept]) -> dict[str, Kept]:
    """What has come of each kind."""
    gone = {kind: before.get(kind, Kept(0, 0)) for kind in now}
    return {
        kind: Kept(kept.bytes - gone[kind].bytes, kept.records - gone[kind].records)
        for kind, kept in now.items()
        if kept.records > gone[kind].records
    }


def record_lines(packed: Mapping[str, Kept], plain: Mapping[str, Kept]) -> Iterator[str]:
    for kind, kept in packed.items():
        unpacked = f"{plain[kind].each:,.0f} uncompressed" if kind in plain else "none uncompressed"
        yield f"{kind:24} {kept.each:7,.0f} bytes a record ({kept.records:,}), {unpacked}"


def on_disk(directory: Path) -> int:
    """As `du` has it: the broker makes its indexes large and sparse."""
    return sum(file.stat().st_blocks * _BLOCK for file in directory.iterdir())


class _Topics:
    """Those of a rig's relay, on its broker."""

    def __init__(self, rig: Rig, admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer) -> None:
        self._admin = admin
        self._consumer = consumer
        self._prefix = rig.relay.topic.removesuffix(Topics().from_sender)
        self._data = rig.directory / "kafka" / "data"
        self._named = Topics(self._prefix)

    async def names(self) -> list[str]:
        return [name for name in await self._admin.list_topics() if name.startswith(self._prefix)]

    async def ends(self) -> Ends:
        described = await self._admin.describe_topics(await self.names())
        places = [
            TopicPartition(topic["topic"], partition["partition"])
            for topic in described
            for partition in topic["partitions"]
        ]
        found: Ends = await self._consumer.end_offsets(places)
        return found

    async def read_by_history(self) -> dict[Place, int]:
        read = topics_read(self._named)
        return {
            (place.topic, place.partition): end for place, end in (await self.ends()).items() if place.topic in read
        }

    async def told(self) -> int:
        ends = await self.ends()
        return sum(end for place, end in ends.items() if place.topic == self._named.delivery_attempts)

    async def until_told(self, count: int) -> None:
        """Wait until `count` attempts are logged, a moment after they were made. Raises TimeoutError."""
        async with asyncio.timeout(_TOLD_S):
            while await self.told() < count:  # noqa: ASYNC110 - a broker has no event for it
                await asyncio.sleep(_LOOK_S)

    async def kept(self) -> dict[str, Kept]:
        ends = await self.ends()
        directories = {place: self._data / f"{place.topic}-{place.partition}" for place in ends}
        found = {place: Kept(on_disk(directory), ends[place]) for place, directory in directories.items()}
        return by_kind(found, self._prefix)

    async def do_not_compress(self) -> None:
        """From now on, where nothing is compacted: all other settings are the broker's own then."""
        used = {place.topic for place, end in (await self.ends()).items() if end}
        used -= {self._named.receiver_config, self._named.parked_messages}
        setting = {"compression.type": "uncompressed"}
        await self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, setting) for name in used])


async def measure(messages: int, rate: float) -> list[str]:
    """What was found, line by line."""
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(Rig(_CASE, Options(processes=1, via="http")))
        consumer = await stack.enter_async_context(AIOKafkaConsumer(bootstrap_servers=rig.kafka))
        admin = AIOKafkaAdminClient(bootstrap_servers=rig.kafka)
        stack.push_async_callback(admin.close)
        await admin.start()
        return await _measured(rig, _Topics(rig, admin, consumer), messages, rate)


async def _measured(rig: Rig, topics: _Topics, messages: int, rate: float) -> list[str]:
    await rig.relay.start()
    fresh = await topics.kept()
    await _send(rig, topics, messages, rate)
    packed = await topics.kept()
    await topics.do_not_compress()
    await _send(rig, topics, messages, rate)
    plain = since(packed, await topics.kept())
    await rig.relay.stop()
    return [*record_lines(since(fresh, packed), plain), *await history_lines(rig, await topics.read_by_history())]


async def _send(rig: Rig, topics: _Topics, messages: int, rate: float) -> None:
    """Have `messages` more go all their way."""
    wanted = await topics.told() + _ATTEMPTS * messages
    await (steady(rig, rate, messages / rate) if rate else drain(rig, messages))
    await topics.until_told(wanted)


def _numbers(arguments: Iterable[str]) -> tuple[int, float]:
    messages, rate, *_ = (*map(float, arguments), 0.0, 0.0)
    return int(messages) or 20_000, rate


def main() -> None:
    for line in asyncio.run(measure(*_numbers(sys.argv[1:]))):
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
