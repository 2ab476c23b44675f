"""Plans and starts replays and discards: one is done at once, many become a job, and a dry run previews both."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple

from relay.clock import Clock
from relay.control.projections import Jobs, ReplayJob
from relay.control.records import ControlWriter
from relay.domain.control_key import ControlKey, encode_value
from relay.domain.directory import Directory, Moves
from relay.domain.erasure import Erasures
from relay.domain.errors import NotYet
from relay.domain.fair_share import OF_RESERVE, may_have_one_more
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import DeliveryId
from relay.domain.reasons import DISCARDED
from relay.domain.replay_job import Action, OffsetSpan, ReplayOrder, Selection
from relay.domain.result_delivery import Handover, from_code
from relay.domain.topics import DAY_S, SHARED, Topics, lane_of
from relay.log.port import Coordinate, Log, TopicPartition
from relay.replay.cancel import UnsentLife, cancel, unsent_spans
from relay.replay.executor import ReplayExecutor
from relay.replay.letter import Letter, read_dead_letter
from relay.replay.life import is_claimed
from relay.replay.plan import Original, ReplayPlan
from relay.replay.scanner import ReplayScanner, ScanChunk, start_at
from relay.state.attempts import Change, Settlement
from relay.state.gaps import check_no_gap
from relay.state.port import State
from relay.state.replies import answered
from relay.state.rows import Result, Row, Stage, callback_row, delivery_row

MOST_OPEN: Final = 100
"""Most unfinished jobs."""
MOST_SPANS: Final = 5_000
"""Most partitions of lanes that one job reads."""
AT_ONCE: Final = 500
REACH_S: Final = 5.0
INDEXED: Final = 10_000


@dataclass(slots=True)
class ExpiredRecords:
    """Records that the log may have deleted. `records`: all that the partitions concerned ever had. `before_ms`:
    they begin there (Unix ms)."""

    records: int = 0
    before_ms: int | None = None


@dataclass(slots=True)
class ReplayPreview:
    """What a job would do now. `complete`: false if the time ran out. `not_found`, `no_delivery`: ids and receivers
    without a match.
    `unremembered`: those to be sent that failed so long ago that an earlier replay of them would be forgotten."""

    counted: int = 0
    to_send: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    complete: bool = True
    not_found: tuple[str, ...] = ()
    no_delivery: tuple[str, ...] = ()
    unremembered: int = 0


class Spans(NamedTuple):
    letters: tuple[OffsetSpan, ...]
    lanes: tuple[OffsetSpan, ...]
    gone: ExpiredRecords


class TooMany(NotYet):
    """The request exceeds a limit."""


@dataclass(eq=False)
class ReplayService:
    """Its methods raise the errors of log and state. `lanes`: receivers with topics of their own. `known_to`:
    returns when `receiver_config` is read here up to an offset."""

    log: Log
    state: State
    topics: Topics
    directory: Directory
    moves: Moves
    jobs: Jobs
    clock: Clock
    _: KW_ONLY
    lanes: Callable[[], Iterable[str]]
    known_to: Callable[[int], Awaitable[None]]
    max_payload_bytes: int
    dedup_window_s: float = 7 * DAY_S
    erasures: Erasures = field(default_factory=Erasures)

    def __post_init__(self) -> None:
        stores, most = (self.log, self.state, self.topics), self.max_payload_bytes
        self._writer = ControlWriter(self.log, self.topics.receiver_config, self.known_to)
        self.executor = ReplayExecutor(
            *stores, self.directory, self.moves, self.clock, max_payload_bytes=most, erasures=self.erasures
        )

    # jobs

    async def order(
        self,
        action: Action,
        selection: Selection,
        *,
        only_failed: bool = True,
        rate: float | None = None,
        by: str = "",
        id: str = "",
    ) -> tuple[ReplayOrder, ExpiredRecords]:
        """Fix the job's scope, as of now. `by`: its owner. `id`: default: a random one. Raises TooMany."""
        if action == "cancel":
            unsent = await unsent_spans(self.log, self.topics, self._lanes_of(selection), self.clock)
            spans = Spans((), _few_enough(unsent), ExpiredRecords())
        else:
            spans = await self._spans(selection, only_failed=only_failed)
        made_at = round(self.clock.time(), 3)
        id = id or secrets.token_hex(8)
        order = ReplayOrder(id, action, selection, made_at, spans.letters, spans.lanes, rate, by)
        return order, spans.gone

    async def submit(self, order: ReplayOrder, *, unlimited: bool = True) -> ReplayJob:
        """Publishes the job, which is then done even if this process ends. `unlimited`: it may take the last free
        place; otherwise a reserve and a share for other callers are left free. Returns another job if a request with
        the same id came first. Raises TooMany."""
        open_ones = [job for job in self.jobs.all() if not job.is_over]
        if len(open_ones) >= MOST_OPEN:
            raise TooMany(f"{MOST_OPEN} jobs are not finished yet: wait for them, or stop some")
        if not unlimited:
            own = sum(job.order.by == order.by for job in open_ones)
            most = MOST_OPEN - MOST_OPEN // OF_RESERVE
            if not may_have_one_more(own, most - len(open_ones), most // 2):
                raise TooMany(
                    f"This caller has {own} of the {len(open_ones)} jobs that are not over yet, which is its share: "
                    "wait for them, or stop some"
                )
        key = ControlKey("replay", order.id)
        await self._writer.write((key, encode_value(order)))
        job = self.jobs.get(order.id) or ReplayJob(order)
        if job.order != order:  # the first order counts, so it is written again: compaction keeps the newest
            await self._writer.write((key, encode_value(job.order)))
        return job

    async def stop(self, id: str) -> ReplayJob | None:
        """Stops a job; what it has sent stays sent. Returns None if there is no such job."""
        job = await self.job(id)
        if job is None or job.is_over:
            return job
        await self._writer.write((ControlKey("replay-stop", id), b"{}"))
        return self.jobs.get(id)

    async def job(self, id: str) -> ReplayJob | None:
        """The job with this id, also one that another process has just accepted."""
        return self.jobs.get(id) or await self._caught_up(id)

    async def _caught_up(self, id: str) -> ReplayJob | None:
        place = TopicPartition(self.topics.receiver_config, 0)
        await self.reach((await self.log.ends([place]))[place])
        return self.jobs.get(id)

    async def reach(self, offset: int) -> None:
        """Return when `receiver_config` is read here up to `offset`, or when that takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REACH_S):
                await self.known_to(offset)

    async def preview(self, order: ReplayOrder, *, seconds: float) -> ReplayPreview:
        """What a job would do, without copies of what it sends. After the time limit, only the part that was read."""
        found, seen, receivers, begun = ReplayPreview(), set[str](), set[str](), set[tuple[DeliveryId, int]]()
        end, remembered_ms = self.clock.monotonic() + seconds, (self.clock.time() - self.dedup_window_s) * 1000
        async for chunk in ReplayScanner(self.log, self.topics, order).chunks(size=AT_ONCE):
            letters: Sequence[Letter | None] = chunk.letters or [None] * len(chunk)
            for letter, plan in zip(letters, await self.plans(order, chunk), strict=True):
                if plan.is_copy or plan.generations & begun:
                    continue
                begun |= plan.generations
                found.counted += 1
                found.to_send += plan.acts
                found.skipped.update(() if plan.skip is None else (plan.skip,))
                if letter is not None:
                    found.unremembered += bool(plan.out) and letter.facts.failed_ms < remembered_ms
            seen.update(_ids(chunk))
            receivers |= chunk.receivers()
            if self.clock.monotonic() > end:
                found.complete = False
                break
        found.not_found = tuple(sorted(order.selection.ids - seen))
        found.no_delivery = tuple(sorted(order.selection.receivers - receivers))
        return found

    async def plans(self, order: ReplayOrder, chunk: ScanChunk) -> list[ReplayPlan]:
        """A plan for each record in the chunk. A name may have another owner since a limited key requested the job."""
        same_life = order.selection.only_own
        if chunk.group == 0:
            if not chunk.letters:
                return []
            return await self.executor.plan(order.action, chunk.letters, same_life=same_life)
        if not chunk.records:
            return []
        if order.action == "cancel":
            return await self.executor.plan_cancels(chunk.hops)
        topic, partition = chunk.records[0].topic, chunk.records[0].partition
        committed = await self._committed(topic, partition)
        return await self.executor.plan_delivered(
            list(zip(chunk.records, chunk.hops, strict=True)), chunk.newest, committed, same_life=same_life
        )

    async def _committed(self, topic: str, partition: int) -> int:
        backlogs = await self.log.backlogs({topic: self.topics.group("to-receiver")})
        return next((each.committed or 0 for each in backlogs if each.partition.partition == partition), 0)

    # what to read

    async def _spans(self, selection: Selection, *, only_failed: bool) -> Spans:
        topics, gone = self.topics, ExpiredRecords()
        groups = {topics.failed_messages: topics.fixed_groups()[topics.failed_messages]}
        letters = await self._of_topics(groups, selection, gone)
        lanes: tuple[OffsetSpan, ...] = ()
        if not only_failed:
            own = {topics.to_receiver(lane): topics.group("to-receiver") for lane in self._lanes_of(selection)}
            lanes = await self._of_topics(own, selection, gone)
        return Spans(letters, _few_enough(lanes), gone)

    def _lanes_of(self, selection: Selection) -> list[str]:
        if not selection.receivers:
            return sorted({*self.lanes(), SHARED})
        named = filter(None, map(self.directory.receiver, selection.receivers))
        return sorted(
            {lane for receiver in named for lane in (lane_of(receiver), *([SHARED] if receiver.move else []))}
        )

    async def _of_topics(
        self, groups: dict[str, str], selection: Selection, gone: ExpiredRecords
    ) -> tuple[OffsetSpan, ...]:
        found = []
        for each in await self.log.backlogs(groups):
            span = OffsetSpan(*each.partition, each.first, each.end)
            if each.first > 0:
                await self._note_gone(span, selection, gone)
            if selection.since_ms is not None:
                span = await start_at(self.log, span, selection.since_ms)
            if span.end > span.start:
                found.append(span)
        return tuple(found)

    async def _note_gone(self, span: OffsetSpan, selection: Selection, gone: ExpiredRecords) -> None:
        (oldest,) = await self.log.read([(Coordinate(span.topic, span.partition, span.start), None)])
        begins_ms = oldest.timestamp_ms if oldest is not None else int(self.clock.time() * 1000)
        if selection.since_ms is None or selection.since_ms < begins_ms:
            gone.records += span.start
            gone.before_ms = max(begins_ms, gone.before_ms or 0)

    # a single letter or delivery

    async def letter_at(self, partition: int, offset: int) -> Letter | None:
        """The dead letter at a coordinate; None if there is none, or it was deleted."""
        (record,) = await self.log.read([(Coordinate(self.topics.failed_messages, partition, offset), None)])
        return None if record is None else read_dead_letter(record, self.topics)

    async def letter_of(self, delivery: DeliveryId, row: Row) -> Letter | None:
        """The newest dead letter of a delivery: named by its row, or listed in the index. Where the topic was created
        again, it has another's letter there, or none."""
        place = await self._place_of(delivery, row)
        letter = await self.letter_at(*place) if place is not None else None
        if letter is not None and _is_of(delivery, letter):
            return letter
        if row.stage not in (Stage.NONE, Stage.FAILED) and not is_claimed(row):
            return None
        for entry in await self.state.failed(delivery.receiver, limit=INDEXED):
            if (entry.source_id, entry.message_id) == delivery[1:]:
                letter = await self.letter_at(entry.at.partition, entry.at.offset)
                return letter if letter is not None and _is_of(delivery, letter) else None
        return None

    async def _place_of(self, delivery: DeliveryId, row: Row) -> tuple[int, int] | None:
        if row.stage is Stage.FAILED:
            return row.at
        if row.stage is Stage.DONE and from_code(row.code).how is Handover.FAILED:
            own = await self.executor.peek([callback_row(delivery, row.generation, failed=False)])
            return own[0].at
        return None

    async def do(self, action: Action, letter: Letter, *, same_life: bool) -> ReplayPlan:
        """Replay or discard one, now. `same_life`: see Planner. Raises StateUnavailable, also while rows are
        missing."""
        await self.check_rows([letter.facts.receiver or NO_RECEIVER])
        plans = await self.executor.plan(action, [letter], same_life=same_life)
        done = await self.executor.carry_out(plans)
        await self.executor.close([letter], done)
        return done[0]

    async def check_rows(self, receivers: Iterable[str]) -> None:
        """Raises StateUnavailable while rows of these receivers' deliveries are missing: without them, a letter that
        was replayed before would be sent again, and a delivery that has ended would be discarded."""
        await check_no_gap(self.state, (f"r:{receiver}" for receiver in receivers))

    async def send_again(self, original: Original, delivery: DeliveryId, row: Row, *, same_life: bool) -> ReplayPlan:
        """Send a delivery that did not fail again, now. `same_life`: see Planner."""
        plan = self.executor.erased(delivery, original.accepted_ms / 1000) or self.executor.planner.once_more(
            original, delivery, row, same_life=same_life
        )
        (done,) = await self.executor.carry_out([plan])
        return done

    async def cancel(self, delivery: DeliveryId, row: Row, accepted_ms: int | None) -> bool:
        """Cancel a delivery. `accepted_ms`: when its message was accepted (None: not known). False if an attempt was
        started, or may have been before the state lost its memory, or the delivery has ended. Raises StateUnavailable
        if that is unknown."""
        await self.check_rows([delivery.receiver])
        return (await cancel(self.state, [UnsentLife(delivery, row.generation, accepted_ms or 0)]))[0]

    async def discard_waiting(self, delivery: DeliveryId, row: Row) -> bool:
        """End an unfinished delivery. Its lane writes the dead letter when it reaches the record; an attempt in
        flight is not undone. False: it has just ended otherwise. Raises StateUnavailable, also while rows are
        missing."""
        await self.check_rows([delivery.receiver])
        detail = "discarded by hand, while it was unfinished"
        receiver = self.directory.receiver(delivery.receiver)
        settlement = Settlement(
            delivery_row(delivery),
            row.generation,
            b"",
            Change.RESULT,
            result=Result("dead", reason=DISCARDED, detail=detail),
            reason=DISCARDED,
            last_status=row.last_status,
            settle_s=0.0 if receiver is None else receiver.post.settle_s,
        )
        (now,) = await answered(self.state.settle([settlement]))
        stored = now.result if now is not None and now.generation == row.generation else None
        return stored is not None and stored.reason == DISCARDED


def _is_of(delivery: DeliveryId, letter: Letter) -> bool:
    entry = letter.entry
    return delivery in (letter.delivery, (entry.receiver, entry.source_id, entry.message_id))


def _few_enough(spans: tuple[OffsetSpan, ...]) -> tuple[OffsetSpan, ...]:
    """Raises TooMany."""
    if len(spans) > MOST_SPANS:
        raise TooMany(f"there are {len(spans)} partitions to read, and {MOST_SPANS} are allowed: name receivers")
    return spans


def _ids(chunk: ScanChunk) -> Sequence[str]:
    if chunk.group:
        return [hop.delivery.message_id for hop in chunk.hops]
    return [letter.facts.message_id for letter in chunk.letters if letter.facts.message_id]
