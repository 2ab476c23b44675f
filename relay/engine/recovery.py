"""The recovery pass: after a loss of state, what is parked on the log goes back into the due index.

Kafka holds the obligations, Redis the indexes: this is how the second is rebuilt from the first (rule 3). Until a tag
is ready its lanes stand still. The same pass runs every few hours as a check, and changes nothing then.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from relay.domain.errors import InvalidRecord, Unavailable
from relay.domain.topics import TopicSpec
from relay.engine.clock import Clock
from relay.engine.observer import Observer
from relay.engine.parked_copy import LIFE_KEY, unwrap
from relay.engine.patience import Patience
from relay.log.port import Log, NewRecord, Record
from relay.state.port import Lane, Parked, Restored, State, tag_of

T = TypeVar("T")

CHECK_EVERY_S = 6 * 3600.0
LOOK_EVERY_S = 30.0
LEASE = "recovery"
LEASE_S = 15.0
BATCH = 500


@dataclass(frozen=True, slots=True)
class _Found:
    """What the pass keeps of a parked copy: there may be a million of them, so not its payload."""

    lane: Lane
    key: bytes
    due_ms: int
    reference: Parked


class Recovery:
    """One per process; a lease lets one of all processes do the pass. `owner`: unique per process.

    `in_doubt_s`: how long after a loss a delivery without a row counts as in doubt (the dedup window).
    """

    def __init__(
        self,
        log: Log,
        state: State,
        parked: TopicSpec,
        clock: Clock,
        observer: Observer,
        patience: Patience,
        *,
        owner: str,
        in_doubt_s: float,
    ) -> None:
        self._log = log
        self._state = state
        self._parked = parked
        self._clock = clock
        self._observer = observer
        self._patience = patience
        self._owner = owner
        self._in_doubt_s = in_doubt_s
        self._asked = asyncio.Event()
        self.healed = asyncio.Event()
        """Set when every tag was found, or made, ready for the first time."""

    def ask(self) -> None:
        """Somebody met a tag that is not ready."""
        self._asked.set()

    async def run(self) -> None:
        """Look after the state for ever."""
        checked_at = self._clock.monotonic()
        while True:
            self._asked.clear()
            await self._patience.until_done("look for lost state", self.heal)
            self.healed.set()
            if self._clock.monotonic() - checked_at > CHECK_EVERY_S:
                await self._patience.until_done("check parked references", self.check)
                checked_at = self._clock.monotonic()
            await self._clock.wait(self._asked, LOOK_EVERY_S)

    async def heal(self) -> None:
        """Make every tag ready that is not; return when all are, whoever did it."""
        while tags := await self._state.lost():
            if await self._state.lease(LEASE, self._owner, LEASE_S):
                async with self._keeping_lease():
                    await self._recover(tags)
            else:
                await self._clock.sleep(0.5)

    async def check(self) -> None:
        """Put back what no reference knows of, although nothing was lost as far as anybody knows."""
        if await self._state.lease(LEASE, self._owner, LEASE_S):
            async with self._keeping_lease():
                copies, _ = await self._read_parked()
                await self._restore(copies)

    async def _recover(self, tags: frozenset[int]) -> None:
        copies, was_alive = await self._read_parked()
        put_back = await self._restore([copy for copy in copies if tag_of(copy.reference.row.owner) in tags])
        if not was_alive:
            await self._log.append([NewRecord(self._parked.name, LIFE_KEY, b"ready")])
        # An empty state under a log that never saw a ready one is a new installation: nothing can be in doubt.
        await self._state.ready(sorted(tags), in_doubt_s=self._in_doubt_s if was_alive else 0.0)
        self._observer.recovered(tags, put_back, was_alive)

    async def _read_parked(self) -> tuple[list[_Found], bool]:
        """All parked copies, and whether the state was ever ready before."""
        copies: list[_Found] = []
        was_alive = False
        for partition in range(self._parked.partitions):
            for record in await self._log.snapshot(self._parked.name, partition):
                if record.key == LIFE_KEY:
                    was_alive = True
                elif (found := _found(record)) is not None:
                    copies.append(found)
        return copies, was_alive

    async def _restore(self, copies: Sequence[_Found]) -> int:
        """Put references back, per lane and in the order of the lane's topic. Returns how many were missing."""
        by_lane: dict[Lane, list[_Found]] = defaultdict(list)
        for copy in copies:
            by_lane[copy.lane].append(copy)
        put_back = 0
        for lane, of_lane in by_lane.items():
            of_lane.sort(key=lambda copy: copy.reference.order)
            for batch in _batches(of_lane):
                put_back += await self._restore_batch(lane, batch)
        return put_back

    async def _restore_batch(self, lane: Lane, copies: Sequence[_Found]) -> int:
        now = self._clock.time()
        references = [replace(copy.reference, due_in_s=max(0.0, copy.due_ms / 1000 - now)) for copy in copies]
        found = await self._state.restore(lane, references)
        over = [copy.key for copy, what in zip(copies, found, strict=True) if what is Restored.FINISHED]
        if over:
            await self._log.append([NewRecord(self._parked.name, key, None) for key in over])
        return sum(what is Restored.PUT_BACK for what in found)

    @contextlib.asynccontextmanager
    async def _keeping_lease(self) -> AsyncIterator[None]:
        """Renew the lease while the pass goes on: it reads a whole topic."""
        keeper = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(Unavailable):
                await self._state.release(LEASE, self._owner)

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(LEASE_S / 3)
            with contextlib.suppress(Unavailable):
                await self._state.lease(LEASE, self._owner, LEASE_S)


def _found(record: Record) -> _Found | None:
    try:
        copy = unwrap(record)
    except InvalidRecord:
        return None  # not ours, so not an obligation of ours
    lane = Lane(copy.record.topic, copy.record.partition, 0)
    reference = Parked(copy.row, copy.generation, copy.at, 0.0, copy.queue, copy.record.offset, copy.poll)
    return _Found(lane, copy.key, copy.due_ms, reference)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]
