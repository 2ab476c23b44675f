"""The log for requests that people wait for: reads fail soon while it does not answer at all."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from relay.clock import Clock
from relay.domain.errors import LogUnavailable
from relay.log.port import Backlog, Coordinate, Log, NewRecord, Record, TopicPartition, TopicState

A = TypeVar("A")
T = TypeVar("T")

PATIENCE_S: Final = 2.0
"""A read that takes longer goes on only if the log answers something else within PROBE_S: the log's own limit is 15 s,
within which a leader may be elected."""
PROBE_S: Final = 1.0
SILENT_S: Final = 3.0
"""For so long, a log that did not answer is not asked again: a page reads from it several times."""


class PromptLog:
    """`log`, which raises LogUnavailable soon while it is silent. Appends, scans and followers wait as it does."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._silent_until = 0.0
        self.start, self.close, self.consumer, self.about = log.start, log.close, log.consumer, log.about
        self.create, self.grow, self.lacking = log.create, log.grow, log.lacking
        self.scan, self.follow, self.cluster_id, self.topic_id = log.scan, log.follow, log.cluster_id, log.topic_id

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        return await self._log.append(records)

    async def read(self, wanted: Sequence[tuple[Coordinate, bytes | None]]) -> list[Record | None]:
        return await self._soon(self._log.read, wanted)

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._soon(self._log.ends, partitions)

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        return await self._soon(self._log.describe, topics)

    async def backlogs(self, groups: Mapping[str, str]) -> list[Backlog]:
        return await self._soon(self._log.backlogs, groups)

    async def _soon(self, ask: Callable[[A], Coroutine[Any, Any, T]], asked: A) -> T:
        if self._clock.monotonic() < self._silent_until:
            raise LogUnavailable("the log does not answer")
        asking = asyncio.ensure_future(ask(asked))
        try:
            while not (await asyncio.wait([asking], timeout=PATIENCE_S))[0]:
                async with asyncio.timeout(PROBE_S):
                    await self._log.cluster_id()
            return await asking
        except TimeoutError as error:
            self._silent_until = self._clock.monotonic() + SILENT_S
            raise LogUnavailable("the log does not answer") from error
        finally:
            asking.cancel()
