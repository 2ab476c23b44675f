"""Mistakes that the search has to find, planted into the engine, the steps, or the state that they trust in. Some are
those of the harness."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any
from unittest.mock import patch

from msgspec import structs

import workers.delivery
import workers.from_sender
from relay.engine import attempt
from relay.engine.commands import CallQueue
from relay.engine.effects import Effects
from relay.engine.lane import Lane, WorksByDelivery
from relay.engine.phases import TRANSITIONS, Event, Phase
from relay.engine.work import LookupResult
from relay.log.port import Coordinate
from relay.state.attempts import BeginRequest, Verdict
from relay.state.replies import answered
from relay.state.rows import MessageRow
from tests.fakes.state_begin import Beginning
from tests.fakes.state_memory import Memory, Tag
from tests.fakes.state_rows import StoredRow
from tests.faults.harness.planted import PLANTED
from tests.faults.harness.planted_times import PLANTED_IN_TIMES

AnyWork = Any
"""A patched method serves the works of all workers."""


def _asks(change: Callable[[BeginRequest], BeginRequest]) -> AbstractContextManager[Any]:
    """Begins are asked for with this changed."""

    def asks(lane: Lane[AnyWork], works: Sequence[AnyWork], now: float) -> list[BeginRequest]:
        return [change(one) for one in rightly(lane, works, now)]

    rightly = attempt.begin_requests
    return patch.object(attempt, "begin_requests", asks)


@contextmanager
def seen_is_proof() -> Iterator[None]:
    """A message that came before is taken for one that was handed on."""

    def seen(work: AnyWork, row: MessageRow | None) -> LookupResult:
        return LookupResult.READY if row is None else LookupResult.FINISHED

    with patch.object(workers.from_sender, "_seen", seen):
        yield


@contextmanager
def commit_before_mark() -> Iterator[None]:
    """A record counts as finished when what it leads to is acknowledged, and not only when its row says so."""

    def next_offset(self: Lane[AnyWork]) -> int | None:
        marking = {work.record.offset for work, _ in (*asks(self).in_flight, *asks(self).waiting)}
        unfinished = [offset for offset in self.watermark.unfinished if offset not in marking]
        return unfinished[0] if unfinished else self.watermark.seen_next

    def asks(lane: Lane[AnyWork]) -> Any:
        return lane.calls._queues[CallQueue.MARK]

    with patch.object(Lane, "next_offset", property(next_offset)):
        yield


@contextmanager
def no_order() -> Iterator[None]:
    """Nothing of a source has to stay in order."""
    with patch.object(workers.delivery, "order_key", lambda receiver, delivery, order: None):
        yield


@contextmanager
def duplicates_stay() -> Iterator[None]:
    """Records that wait for another of the same delivery are forgotten when that one ends."""
    with patch.object(WorksByDelivery, "remove", lambda self, work: []):
        yield


@contextmanager
def unforeseen() -> Iterator[None]:
    """Something happens to a work that the table of phases does not have."""
    known = {event: to for event, to in TRANSITIONS[Phase.BEGINNING].items() if event is not Event.VERDICT}
    with patch.dict(TRANSITIONS, {Phase.BEGINNING: known}):
        yield


@contextmanager
def no_fence() -> Iterator[None]:
    """No owner learns that the lane has a newer one."""

    def refused(self: Memory, tag: int, lane: Any = None) -> Any:
        return rightly(self, tag)

    rightly = Memory._refused
    with patch.object(Memory, "_refused", refused):
        yield


@contextmanager
def no_lease() -> Iterator[None]:
    """What was begun long ago is sent all the same."""
    with patch.object(attempt, "is_too_late", lambda lane, work, now: False):
        yield


@contextmanager
def no_suspicion() -> Iterator[None]:
    """After a loss of the state, receivers are not asked which messages they have."""
    with _asks(lambda one: structs.replace(one, ask_first=False, unseen=False)):
        yield


@contextmanager
def stale_proof() -> Iterator[None]:
    """That a receiver has never seen a message counts whatever was begun or forgotten since."""

    def unresolved(self: Beginning, ask: BeginRequest, row: StoredRow) -> Verdict | None:
        return None if ask.resolved is not None else rightly(self, ask, row)

    rightly = Beginning._unresolved
    with patch.object(Beginning, "_unresolved", unresolved):
        yield


@contextmanager
def first_hop_is_enough() -> Iterator[None]:
    """A message counts as handed on when the first of its receivers has it."""

    async def append(self: Effects, lane: Lane[AnyWork], works: Sequence[AnyWork]) -> Sequence[Coordinate]:
        if lane.worker.stage != "from_sender":
            return await rightly(self, lane, works)
        first = await self._log.append([work.out[0] for work in works])
        await answered(self._state.enqueued([work.arrival for work in works]))
        others = [record for work in works for record in work.out[1:]]
        rest = iter(await self._log.append(others) if others else ())
        return [at for work, it in zip(works, first, strict=True) for at in (it, *islice(rest, len(work.out) - 1))]

    rightly = Effects._append
    with patch.object(Effects, "_append", append):
        yield


@contextmanager
def time_goes_back() -> Iterator[None]:
    """Moments that the state keeps are compared with its clock as that is."""
    with patch.object(Memory, "now", Memory.server_now):
        yield


@contextmanager
def loss_forgotten() -> Iterator[None]:
    """After a loss of the state, a message counts as unsent if no row says otherwise."""
    with patch.object(Tag, "may_have_lost", lambda self, at_ms, now: False):
        yield


FLAWS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    **PLANTED_IN_TIMES,
    **{
        name: PLANTED[name]
        for name in (
            "mark_before_produce",
            "delete_at_done",
            "skip_on_delivered",
            "commit_before_produce",
            "no_settle",
            "index_before_park",
            "tombstone_before_hop",
            "no_life_in_removals",
            "no_life_in_tombstones",
        )
    },
    **{
        flaw.__name__: flaw
        for flaw in (
            commit_before_mark,
            seen_is_proof,
            no_order,
            duplicates_stay,
            unforeseen,
            no_fence,
            no_lease,
            no_suspicion,
            stale_proof,
            first_hop_is_enough,
            time_goes_back,
            loss_forgotten,
        )
    },
}
"""By name. Each is a context manager: the flaw is there from entering it to leaving it."""
