"""Keeps the embedded server below its limit of memory: records that every group has finished are removed before their
retention ends, the oldest first. Without that, no message would be accepted or sent until they expire.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final, NamedTuple

from relay.domain.errors import LogUnavailable
from relay.log.port import TopicPartition
from relay.log.streams.store import StreamStore
from relay.telemetry.logging import get_logger

FULL: Final = 0.8
"""Share of the memory from which records are removed, and `ENOUGH` that down to which they are."""
ENOUGH: Final = 0.7
LOOK_S: Final = 5.0
LEAST_S: Final = 60
"""Younger records stay: a request may be waiting for the answer in one."""

_log = get_logger("relay.process")


class Memory(NamedTuple):
    """Bytes. `limit`: 0 for none."""

    used: int
    limit: int


class MemoryWatch:
    """Removes finished records early when the embedded server is short of memory. `store`: its own, which it closes.
    `kept`: topics whose records stay for their whole retention."""

    def __init__(self, store: StreamStore, kept: Collection[str], *, least_s: int = LEAST_S) -> None:
        self._store = store
        self._kept = kept
        self._least_s = least_s

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                with suppress(LogUnavailable):
                    await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._store.close()

    async def look(self) -> None:
        """Removes records if too much memory is in use. Raises LogUnavailable."""
        before = memory = await self._memory()
        if memory.used < FULL * memory.limit or not memory.limit:
            return
        retentions = await self._retentions()
        kept_s = max(retentions.values(), default=0)
        while memory.used > ENOUGH * memory.limit and kept_s > self._least_s:
            kept_s = max(self._least_s, kept_s // 2)
            for partition, retention_s in retentions.items():
                await self._store.trim(partition, min(kept_s, retention_s))
            memory = await self._memory()
        freed = before.used - memory.used
        if freed > memory.limit // 100:  # buffers of the server come and go, too
            _log.warning("log_shortened", kept_s=kept_s, freed_bytes=freed, limit_bytes=memory.limit)

    async def _memory(self) -> Memory:
        info = await self._store.info("memory")
        return Memory(int(info["used_memory"]), int(info["maxmemory"]))

    async def _retentions(self) -> dict[TopicPartition, int]:
        """Of the partitions whose records may be removed, in seconds: those that a group has begun to read."""
        specs = [spec for spec in await self._store.topics() if spec.name not in self._kept]
        return {
            TopicPartition(spec.name, number): spec.retention_s
            for spec in specs
            if spec.retention_s is not None
            for number in await self._store.begun(spec.name)
        }
