"""The recovery pass: restores holds and parked references, which the state may lose and the log keeps.

Kafka holds the obligations, Redis the indexes: this is how the second is rebuilt from the first (rule 3). Until a tag
is ready its lanes wait. The same pass runs every few hours as a check, and changes nothing then.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field, replace

from relay.clock import Clock
from relay.domain.errors import LogUnavailable, RelayError
from relay.domain.numbering import Numbering, after_loss, decode_numbering
from relay.domain.sliced import sliced
from relay.domain.topics import TopicSpec
from relay.engine.holding import Holding
from relay.engine.observer import Observer, Recovered, StateMemory
from relay.engine.parked_copy import LIFE_KEY, decode_edition, unwrap_ours
from relay.engine.parked_reader import claim_cluster
from relay.engine.supervision import Retrier
from relay.log.partitioner import partition_of
from relay.log.port import Log, NewRecord, Record, TopicPartition
from relay.state.lease import LEASE_S, keeping_lease
from relay.state.port import IntakeRequest, Lane, LaneEnds, Restored, State
from relay.state.replies import answered, of
from relay.state.rows import TAGS, Parked, Row, Stage, tag_of

CHECK_EVERY_S = 6 * 3600.0
CHECK_LOST_EVERY_S = 30.0
LEASE = "recovery"
BATCH = 500


@dataclass(frozen=True, slots=True)
class _Kept:
    """The fields of a parked copy that the pass needs; not its payload, as there may be a million copies."""

    lane: Lane
    key: bytes
    due_ms: int
    parked_ms: int
    reference: Parked
    is_second: bool
    number: int | None

    def due_in_s(self, now: float) -> float:
        """At most the time that it was parked for, even if a clock was set back since."""
        return max(0.0, self.due_ms / 1000 - max(now, self.parked_ms / 1000))

    @property
    def owner(self) -> str:
        return self.reference.row.owner


Lanes = Callable[[], Awaitable[Mapping[str, Collection[int]]]]


@dataclass(eq=False, repr=False)
class Recovery:
    """One per process; a lease lets one of all processes do the pass. `owner`: unique per process.

    `in_doubt_s`: how long after a loss a delivery without a row counts as in doubt (the dedup window). `lanes`: the
    topics of deliveries, each with the hash tags of its receivers; None if unknown.
    """

    log: Log
    state: State
    parked: TopicSpec
    clock: Clock
    observer: Observer
    retrier: Retrier
    _: KW_ONLY
    owner: str
    in_doubt_s: float
    holding: Holding
    lanes: Lanes | None = None
    healed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when every tag is ready for the first time."""
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _edition: int = 0
    """The newest edition of the state's memory, by the log. Memory of a lower one was not in use since: an operator has
    put back a former server, or a snapshot."""
    _is_own: bool = True
    """Whether the state was first used with this log's cluster. The editions of another one are of another state."""

    def ask(self) -> None:
        """A call has found a tag that is not ready."""
        self._asked.set()

    async def run(self) -> None:
        """Run forever: restore lost state, and check it regularly."""
        checked_at = self.clock.monotonic()
        await self.retrier.until_done("find the edition of the state", self._find_edition)
        # A process that died in between may have written a hold to the log, and not to the state.
        await self.retrier.until_done("restore the holds", lambda: self._restore_holds(frozenset(range(TAGS))))
        while True:
            self._asked.clear()
            await self.retrier.until_done("check for lost state", self.heal)
            if not self.healed.is_set():
                await self.retrier.until_done("number the state", self._renew_edition)
            self.healed.set()
            if self.clock.monotonic() - checked_at > CHECK_EVERY_S:
                await self.retrier.until_done("check parked references", self.check)
                checked_at = self.clock.monotonic()
            await self.clock.wait(self._asked, CHECK_LOST_EVERY_S)

    async def heal(self) -> None:
        """Make every tag ready; return when all are, also by other processes."""
        while tags := await self._lost():
            if await self.state.lease(LEASE, self.owner, LEASE_S):
                async with keeping_lease(self.state, self.clock, LEASE, self.owner):
                    await self._pass(tags, everything=False)
            else:
                await self.clock.sleep(0.5)

    async def check(self) -> Recovered | None:
        """Make all tags ready, and restore missing references, even if no loss is known. None if another process does
        so."""
        if not await self.state.lease(LEASE, self.owner, LEASE_S):
            return None
        await self._find_edition()
        async with keeping_lease(self.state, self.clock, LEASE, self.owner):
            return await self._pass(await self._lost(), everything=True)

    async def preview(self) -> Recovered:
        """What `check` would do now. Changes nothing, except that a loss is noticed."""
        await self._find_edition()
        begun, tags = self.clock.monotonic(), await self._lost()
        forgotten = self.state.forgotten()
        copies, _, was_ready = await self._read_parked()
        found: list[tuple[_Kept, Restored]] = []
        for lane, batch in _in_lane_order(copies):
            found += zip(batch, await self._preview_batch(lane, batch, tags), strict=True)
        return self._result(tags, _memory(tags, forgotten, was_ready=was_ready), found, begun)

    async def _lost(self) -> frozenset[int]:
        tags = await self.state.lost(self._edition if self._is_own else 0)
        if self.state.outdated():
            self.observer.state_outdated()
        self.observer.not_ready(tags, self.state.forgotten())
        return tags

    async def _pass(self, tags: frozenset[int], *, everything: bool) -> Recovered:
        """Restore the holds and the parked references of `tags` (or all), and make these ready."""
        begun, forgotten = self.clock.monotonic(), self.state.forgotten()
        if tags:
            self.observer.recovery_begun(tags, forgotten)
        await self._restore_holds(frozenset(range(TAGS)) if everything else tags)
        copies, numbers, was_ready = await self._read_parked()
        found = await self._restore([copy for copy in copies if everything or tag_of(copy.owner) in tags])
        await self._number_again(copies, numbers, tags, forgotten)
        memory = _memory(tags, forgotten, was_ready=was_ready)
        if everything or tags & forgotten or not was_ready:
            await self._renew_edition()
        if tags:
            # An empty state under a log that never saw a ready one is a new installation: nothing can be in doubt.
            in_doubt_s = self.in_doubt_s if was_ready else 0.0
            await self.state.ready(sorted(tags), in_doubt_s=in_doubt_s, ends=await self._ends(tags & forgotten))
        result = self._result(tags, memory, found, begun)
        self.observer.recovered(result)
        return result

    def _result(
        self, tags: frozenset[int], memory: StateMemory, found: Iterable[tuple[_Kept, Restored]], begun: float
    ) -> Recovered:
        counted: dict[str, Counter[Restored]] = defaultdict(Counter)
        for copy, what in found:
            counted[copy.owner][what] += 1
        return Recovered(
            tags=tags,
            memory=memory,
            owners=dict(counted),
            seconds=self.clock.monotonic() - begun,
            doubt_until=self.clock.time() + self.in_doubt_s if memory is StateMemory.LOST else None,
        )

    async def _ends(self, tags: frozenset[int]) -> LaneEnds | None:
        """Ends of the lanes of these tags. No attempt of theirs begins now, so later records are from after the loss.
        None if they cannot be read."""
        if not tags or self.lanes is None:
            return None
        ends: dict[int, dict[TopicPartition, int]] = {tag: {} for tag in tags}
        try:
            lanes = await self.lanes()
            found = await self.log.describe(list(lanes))
            partitions = [TopicPartition(topic, n) for topic in found for n in range(found[topic].spec.partitions)]
            for at, end in (await self.log.ends(partitions)).items():
                for tag in tags.intersection(lanes[at.topic]):
                    ends[tag][at] = end
        except RelayError:  # this process may lack the rights; then new deliveries are in doubt, too
            return None
        return ends

    async def _find_edition(self) -> None:
        self._is_own = await claim_cluster(self.log, self.state)
        if not self._is_own:
            self.observer.other_cluster()
        partition = partition_of(LIFE_KEY, self.parked.partitions)
        async for records in self.log.scan(self.parked.name, partition, batch=BATCH):
            for record in records:
                if record.key == LIFE_KEY:
                    self._edition = decode_edition(record.value)

    async def _renew_edition(self) -> None:
        """A server that is away keeps its former edition: so the log does, until all have the new one."""
        edition = max(self._edition + 1, round(self.clock.time() * 1e6))
        if self._is_own and await self.state.set_edition(edition):
            self._edition = edition
        await self.log.append([NewRecord(self.parked.name, LIFE_KEY, b"%d" % self._edition)])

    async def _restore_holds(self, tags: frozenset[int]) -> None:
        await self.holding.restore(tags, self.clock.time())

    async def _number_again(
        self, copies: Sequence[_Kept], numbers: Mapping[str, Numbering], tags: Set[int], forgotten: Set[int]
    ) -> None:
        """Restore the numbers of `tags`. Those that are not `forgotten` may lack only the newest."""
        parked: dict[str, set[int]] = {owner: set() for owner in numbers}
        for copy in copies:
            if copy.number is not None and not copy.reference.generation:  # a replay keeps its number
                parked.setdefault(copy.owner, set()).add(copy.number)
        restored: dict[str, Numbering] = {}
        for owner, kept in parked.items():
            tag, known = tag_of(owner), numbers.get(owner)
            if tag in tags & forgotten:
                restored[owner] = after_loss(known or Numbering(), kept)
            elif tag in tags and known is not None:
                restored[owner] = known
        for part in sliced(list(restored.items()), BATCH):
            await self.state.number_again(dict(part))

    async def _read_parked(self) -> tuple[list[_Kept], dict[str, Numbering], bool]:
        """All parked copies, the newest numbers of each owner, and whether the state was ever ready before."""
        copies: list[_Kept] = []
        numbers: dict[str, Numbering] = {}
        was_ready = False
        for partition in range(self.parked.partitions):
            newest: dict[bytes | None, _Kept | LogUnavailable] = {}
            # only references are kept, so payloads take no memory
            async for records in self.log.scan(self.parked.name, partition, batch=BATCH):
                for record in records:
                    newest.pop(record.key, None)
                    if record.key == LIFE_KEY:
                        was_ready, self._edition = record.value is not None, decode_edition(record.value)
                    elif (numbered := decode_numbering(record.key, record.value)) is not None:
                        owner, numbering = f"r:{numbered[0]}", numbered[1]
                        if numbering.last >= numbers.get(owner, numbering).last:
                            numbers[owner] = numbering
                    elif (found := _kept_of(record)) is not None:
                        newest[record.key] = found
            for each in newest.values():
                if isinstance(each, LogUnavailable):
                    raise each
                copies.append(each)
        return copies, numbers, was_ready

    async def _restore(self, copies: Sequence[_Kept]) -> list[tuple[_Kept, Restored]]:
        """Restore missing references, and write the tombstones that are owed."""
        found: list[tuple[_Kept, Restored]] = []
        for lane, batch in _in_lane_order(copies):
            found += zip(batch, await self._restore_batch(lane, batch), strict=True)
        return found

    async def _restore_batch(self, lane: Lane, copies: Sequence[_Kept]) -> list[Restored]:
        now = self.clock.time()
        references = [replace(copy.reference, due_in_s=copy.due_in_s(now)) for copy in copies]
        found = await self.state.restore(lane, references)
        over = [copy.key for copy, what in zip(copies, found, strict=True) if what is Restored.FINISHED]
        if over:
            await self.log.append([NewRecord(self.parked.name, key, None) for key in over])
        return found

    async def _preview_batch(self, lane: Lane, copies: Sequence[_Kept], lost: frozenset[int]) -> list[Restored]:
        """What `restore` would do with each. Tags that are not ready count as having no references."""
        asked = [copy for copy in copies if tag_of(copy.owner) not in lost]
        asks = [IntakeRequest(copy.reference.row, copy.reference.generation, None) for copy in asked]
        rows = (
            dict(zip(map(id, asked), await answered(self.state.intake(of(lane, asks))), strict=True)) if asked else {}
        )
        return [_would_be(copy, rows.get(id(copy))) for copy in copies]


def _memory(tags: frozenset[int], forgotten: frozenset[int], *, was_ready: bool) -> StateMemory:
    if not tags & forgotten:
        return StateMemory.KEPT
    return StateMemory.LOST if was_ready else StateMemory.NEW


def _would_be(copy: _Kept, row: Row | None) -> Restored:
    if row is None:
        return Restored.PUT_BACK
    if (row.generation, row.stage >= Stage.DONE) >= (copy.reference.generation, True):
        return Restored.FINISHED
    return Restored.THERE if row.kept else Restored.PUT_BACK


def _kept_of(record: Record) -> _Kept | LogUnavailable | None:
    """LogUnavailable if a newer release wrote it, which counts if no newer record of its key follows."""
    try:
        copy = None if record.value is None else unwrap_ours(record)
    except LogUnavailable as error:
        return error.with_traceback(None)  # a traceback would keep the record in memory
    if copy is None:
        return None
    lane = Lane(copy.record.topic, copy.record.partition, 0)
    reference = Parked(copy.row, copy.generation, copy.at, 0.0, copy.queue, copy.record.offset, copy.poll)
    return _Kept(lane, copy.key, copy.due_ms, record.timestamp_ms, reference, copy.is_second, copy.number)


def _in_lane_order(copies: Iterable[_Kept]) -> Iterator[tuple[Lane, Sequence[_Kept]]]:
    """Batches of one lane each, in the order of the lane's topic."""
    by_lane: dict[Lane, list[_Kept]] = defaultdict(list)
    for copy in copies:
        by_lane[copy.lane].append(copy)
    for lane, of_lane in by_lane.items():
        of_lane.sort(key=lambda copy: (copy.reference.order, copy.is_second))
        for batch in sliced(of_lane, BATCH):
            yield lane, batch
