"""Whom to suspect after a process has ended abnormally: the records that it had in hand.

While all is well nothing is written for a record. A lane reserves offsets in the state, some hundreds at a time, before
it takes their records up, and gives the reservation back when it ends properly. Its next owner finds what was left
behind; then each record that may have been in hand is alone, in the whole process, while something of ours runs with
it, and under a mark in the state meanwhile. A record under whose mark the process has ended each of three times is
poison. What waits for somebody outside has no mark: whoever kills the process then says nothing of the record.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from relay.domain.errors import Unavailable
from relay.engine.context import LaneContext
from relay.engine.work import Dead
from relay.log.port import Record
from relay.state.port import Remains

T = TypeVar("T")

AHEAD: Final = 500
"""Offsets reserved beyond those that are taken up: one call to the state for so many records."""
NO_OFFSET: Final = -1
TIMES: Final = 3
"""Ends of a process, one after the other, with the same record alone under its mark."""
WARY_S: Final = 60.0
"""So long the parked records that come up are suspected, too: those that were in hand come up at once."""


class Quarantine:
    """One for each lane. `reserved`: records with offsets below it may be taken up; else `enter` first."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self.reserved = -1
        self.wary = False
        """Whether there may be suspects."""
        self._suspected_below = -1
        self._wary_until = 0.0
        self._left: dict[
            int, int
        ] = {}  # offset -> how often a process ended under its mark, as the former owner left it
        self._under: int | None = None  # the mark that may be there
        self._entering = asyncio.Lock()
        self._has_left = False

    async def enter(self, offset: int) -> None:
        """Records up to `offset`, or with NO_OFFSET parked ones, are about to be taken up."""
        context = self._context
        async with self._entering:
            if 0 <= offset < self.reserved or (offset == NO_OFFSET and self.reserved >= 0):
                return
            before = offset + 1 + AHEAD
            remains = await context.patience.until_done(
                "reserve offsets", lambda: context.state.reserve(context.lane, before)
            )
            if self.reserved < 0 and remains is not None:
                await self._beware(remains)
            self.reserved = before

    async def _beware(self, remains: Remains) -> None:
        """The former owner did not say goodbye. What came after its end it cannot have had."""
        context = self._context
        at = context.partition
        ends = await context.patience.until_done("ask for the log's end", lambda: context.log.ends([at]))
        self._suspected_below = min(remains.reserved, ends[at])
        self._left = dict(remains.marked)
        self._wary_until = context.clock.monotonic() + WARY_S
        self.wary = True
        context.observer.wary(at, self._suspected_below, len(self._left))

    def suspects(self, record: Record, *, parked: bool) -> bool:
        if not self.wary:
            return False
        if record.offset in self._left:
            return True
        if parked:
            return self._context.clock.monotonic() < self._wary_until
        return record.offset < self._suspected_below

    async def alone(self, record: Record, part: Callable[[], T]) -> T | Dead:
        """What `part` returns, which runs while no other suspect of this process does; or that the record is poison."""
        offset = record.offset
        times = self._left.get(offset, 0)
        if times >= TIMES:
            return Dead("poison", f"the process ended {times} times while it worked at this record alone")
        if self._has_left:
            return part()
        async with self._context.alone:
            if self._has_left:  # meanwhile
                return part()
            self._under = offset
            await self._mark(offset, times + 1)
            result = part()
            await self._mark(offset, 0)
            self._under = None
        return result

    async def leave(self, next_offset: int | None) -> None:
        """The lane ends properly; `next_offset`: all before it is finished. Its next owner has nobody to suspect, but
        whom we had no time for."""
        self._has_left = True
        if self.reserved < 0:
            return
        if self._under is not None:  # we were cancelled in between, which says nothing of the record
            with suppress(Unavailable):
                await self._context.state.suspect(self._context.lane, self._under, self._left.get(self._under, 0))
        rest = next_offset is None or next_offset < self._suspected_below
        if self.wary and (rest or self._context.clock.monotonic() < self._wary_until):
            return
        with suppress(Unavailable):  # then it is wary without need
            await self._context.state.leave(self._context.lane)

    async def _mark(self, offset: int, times: int) -> None:
        context = self._context
        await context.patience.until_done("mark a suspect", lambda: context.state.suspect(context.lane, offset, times))
