"""Carries out plans: claim, append, acknowledge, mark, in that order; then entries without open work leave the index.

Every step can be repeated at any point: a repeat does what was not done yet.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from msgspec import structs

from relay.clock import Clock
from relay.domain.directory import Directory, Moves
from relay.domain.erasure import Erasures, received_at
from relay.domain.errors import RecordTooLarge, StateUnavailable
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.replay_job import Action
from relay.domain.topics import Topics
from relay.engine.completion import ever_smaller
from relay.engine.slices import slices, weight_of
from relay.log.port import Coordinate, Log, Record
from relay.replay.cancel import UnsentLife, cancel, obstacle
from relay.replay.letter import Letter, is_erased, kept
from relay.replay.life import Claim, ended_as
from relay.replay.plan import HERE, Planner, ReplayPlan
from relay.state.attempts import Change, Settlement
from relay.state.port import FailedEntry, State
from relay.state.replies import answered
from relay.state.rows import Mark, Result, Row, RowKey, Stage, delivery_row

TOO_LARGE: Final = ReplayPlan(skip="too_large")
ERASED: Final = ReplayPlan(skip="erased")


@dataclass(eq=False)
class ReplayExecutor:
    """Its methods raise the errors of log and state."""

    log: Log
    state: State
    topics: Topics
    directory: Directory
    moves: Moves
    clock: Clock
    _: KW_ONLY
    max_payload_bytes: int
    erasures: Erasures = field(default_factory=Erasures)

    def __post_init__(self) -> None:
        self.planner = Planner(self.topics, self.directory, max_payload_bytes=self.max_payload_bytes)

    async def plan(self, action: Action, letters: Sequence[Letter], *, same_life: bool) -> list[ReplayPlan]:
        """A plan for each letter. Of two letters of one life the first counts. `same_life`: see Planner."""
        if action == "discard":
            rows = await self.rows([letter.delivery for letter in letters])
            remaining = [kept(letter, self.erasures, self.topics) for letter in letters]
            plans = [self.planner.discard(letter, rows, now=self.clock.time()) for letter in remaining]
        else:
            await self.moves.catch_up()
            rows = await self.rows([one for letter in letters for one in self.planner.deliveries(letter)])
            plans = [
                ERASED if is_erased(letter, self.erasures) else self.planner.replay(letter, rows, same_life=same_life)
                for letter in letters
            ]
        return _each_life_once(plans)

    async def plan_delivered(
        self, records: Sequence[tuple[Record, Hop]], newest: Sequence[int], committed: int, *, same_life: bool
    ) -> list[ReplayPlan]:
        """Plans for deliveries in their lane that have not failed. `newest`: the last life of each when the job was
        made. `committed`: the lane's committed offset. `same_life`: see Planner."""
        await self.moves.catch_up()
        rows = await self.rows([hop.delivery for _, hop in records])
        plans = [
            self.erased(hop.delivery, received_at(record.headers, record.timestamp_ms))
            or self.planner.delivered(
                record, hop, last, rows[hop.delivery], over=record.offset < committed, same_life=same_life
            )
            for (record, hop), last in zip(records, newest, strict=True)
        ]
        return _each_life_once(plans)

    def erased(self, delivery: DeliveryId, received: float) -> ReplayPlan | None:
        """The plan for an erased payload. `received`: when the message was received (Unix seconds)."""
        return ERASED if self.erasures.has_delivery(*delivery, received) else None

    async def plan_cancels(self, hops: Sequence[Hop]) -> list[ReplayPlan]:
        """Plans for deliveries that may not have been sent."""
        rows = await self.rows([hop.delivery for hop in hops])
        plans = []
        for hop in hops:
            skip = obstacle(hop, rows[hop.delivery])
            life = UnsentLife(hop.delivery, hop.generation, hop.accepted_ms)
            plans.append(ReplayPlan(skip=skip, cancels=None if skip else life))
        return _each_life_once(plans)

    async def rows(self, deliveries: Sequence[DeliveryId]) -> dict[DeliveryId, Row]:
        """The row of each."""
        wanted = list(dict.fromkeys(deliveries))
        found = await self.peek(list(map(delivery_row, wanted)))
        return dict(zip(wanted, found, strict=True))

    async def peek(self, keys: Sequence[RowKey]) -> list[Row]:
        return await answered(self.state.peek(keys)) if keys else []

    async def carry_out(self, plans: Sequence[ReplayPlan]) -> list[ReplayPlan]:
        """Carries out plans, and returns what was done: records that the log rejects for their size are left out. Works
        in slices: marked records are not appended again, even if the rest fails."""
        weights = [weight_of([out.record for out in plan.out]) for plan in plans]
        return [plan for some in slices(plans, weights) for plan in await self._carry_out(some)]

    async def _carry_out(self, plans: Sequence[ReplayPlan]) -> list[ReplayPlan]:
        done = await self._append(await self._claimed(plans))
        marks = [
            _at(mark, at)
            for plan, places in done
            for out, at in zip(plan.out, places, strict=True)
            for mark in out.marks
        ]
        if marks:
            await answered(self.state.mark(marks))
        return await self._cancelled([plan for plan, _ in done])

    async def _claimed(self, plans: Sequence[ReplayPlan]) -> list[ReplayPlan]:
        """A life may have begun, or ended, since it was planned. A repeated claim succeeds. Raises StateUnavailable if
        the state may have lost that."""
        claims = [plan.claim for plan in plans if plan.claim is not None]
        if not claims:
            return list(plans)
        now_ms = int(self.clock.time() * 1000)
        ends = [_end(claim, now_ms) for claim in claims]
        found = iter(await answered(self.state.settle(ends)))
        deliveries = await self.rows([claim.delivery for claim in claims])
        skips = [
            None if (claim := plan.claim) is None else _obstacle(claim, next(found), deliveries[claim.delivery])
            for plan in plans
        ]
        return [plan if skip is None else ReplayPlan(skip=skip) for plan, skip in zip(plans, skips, strict=True)]

    async def _cancelled(self, plans: Sequence[ReplayPlan]) -> list[ReplayPlan]:
        """An attempt may have begun since it was planned."""
        wanted = [plan.cancels for plan in plans if plan.cancels is not None]
        if not wanted:
            return list(plans)
        done = dict(zip(wanted, await cancel(self.state, wanted), strict=True))
        return [ReplayPlan(skip="sent") if plan.cancels and not done[plan.cancels] else plan for plan in plans]

    async def close(self, letters: Sequence[Letter], plans: Sequence[ReplayPlan]) -> None:
        """Removes from the index the letters that were carried out or turned out to be finished."""
        over = [letter.entry for letter, plan in zip(letters, plans, strict=True) if plan.out or plan.skip in _OVER]
        await self.forget(over)

    async def forget(self, entries: Sequence[FailedEntry]) -> None:
        """Removes entries from the index."""
        if entries:
            await self.state.drop_failed(entries)

    async def _append(self, plans: Sequence[ReplayPlan]) -> list[tuple[ReplayPlan, list[Coordinate]]]:
        records = [out.record for plan in plans for out in plan.out]
        try:
            places = iter(await self.log.append(records) if records else [])
        except RecordTooLarge:
            return [await self._append_one(plan) for plan in plans]
        return [(plan, [next(places) for _ in plan.out]) for plan in plans]

    async def _append_one(self, plan: ReplayPlan) -> tuple[ReplayPlan, list[Coordinate]]:
        """Appends the records of a plan together, dead letters in the largest form that the log accepts; none of them
        if it rejects one."""
        records = [out.record for out in plan.out]
        for form in (records, *ever_smaller(records)):
            try:
                return plan, await self.log.append(form) if form else []
            except RecordTooLarge:
                continue
        return TOO_LARGE, []


_OVER: Final = frozenset({"replayed", "discarded", "delivered"})


def _each_life_once(plans: Sequence[ReplayPlan]) -> list[ReplayPlan]:
    seen: set[tuple[DeliveryId, int]] = set()
    found = []
    for plan in plans:
        generations = plan.generations
        found.append(ReplayPlan(skip="replayed", is_copy=True) if generations & seen else plan)
        seen |= generations
    return found


def _end(claim: Claim, now_ms: int) -> Settlement:
    result = Result("dead", reason=claim.reason, detail=claim.detail)
    return Settlement(claim.row, claim.generation, b"", Change.RESULT, result=result, unsent_ms=now_ms)


def _obstacle(claim: Claim, row: Row | None, delivery: Row) -> str | None:
    """Why a claim failed; None if it did not. `row`: after it."""
    if row is None or row.stage is Stage.NONE:
        raise StateUnavailable("rows of this delivery may have been lost: try again")
    if row.generation != claim.generation or row.stage is not Stage.RESULT:
        return ended_as(row)
    if row.result is None or row.result.reason != claim.reason:
        return "under_way"
    # of a result that was returned, the row of the callback is gone
    return "replayed" if delivery.stage is Stage.DONE and delivery.generation >= claim.generation else None


def _at(mark: Mark, at: Coordinate) -> Mark:
    return structs.replace(mark, at=(at.partition, at.offset)) if mark.at == HERE else mark
