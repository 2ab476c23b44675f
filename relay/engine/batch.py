"""Batches: works whose attempts share one request. Pure.

A batch has the first works of each of its order keys, in order: a work that cannot go with it stays behind, and so do
those after it in its key. Each work keeps its own row and its own outcome.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from relay.domain.receiver import BatchPolicy
from relay.engine.decision import Dead, Done, Later
from relay.engine.work import SharedRequest
from relay.state.attempts import Change, Verdict, Wait

End = Dead | Done | Later | None
BEHIND: Final = Later(0.0, "an earlier message of its order key waits", Change.RELEASED)


class Filling:
    """Takes works into a batch while they fit."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._limit = policy.max_events
        self._size = 0
        self.works: list[Any] = []
        self.full = False

    @property
    def may_go(self) -> bool:
        """It is full, or the next one of a batch that was too large, or waits for nothing."""
        return self.full or bool(self.works[0].batch_limit) or not self._policy.linger

    def add_line(self, line: Iterable[Any], now: float) -> None:
        """Take works of one order key, from its head on, up to the first that may not go now."""
        for at, work in enumerate(line):
            if at and (work.taken or work.due > now):
                return
            if self.works and not _may_share(work):
                return
            if not self._takes(work):
                self.full = True
                return
            if not _may_share(work):
                self.full = True

    def _takes(self, work: Any) -> bool:
        limit = min(self._limit, work.batch_limit or self._limit)
        size = self._size + work.post_bytes
        if self.full or (self.works and (len(self.works) >= limit or size > self._policy.max_bytes)):
            return False
        self.works.append(work)
        self._limit, self._size = limit, size
        self.full = len(self.works) >= limit or size >= self._policy.max_bytes
        return True


def filled(
    policy: BatchPolicy, ready: Iterable[tuple[int, Any]], lines: Mapping[bytes, Iterable[Any]], now: float
) -> Filling:
    """The next batch of an endpoint. `ready`: heads of order keys, with their tickets; `lines`: all works by key."""
    filling = Filling(policy)
    for ticket, head in ready:
        if head.ticket == ticket:
            filling.add_line((head,) if head.queue is None else lines[head.queue], now)
        if filling.full:
            break
    return filling


def _may_share(work: Any) -> bool:
    return bool(work.shares and not work.suspect and work.rules is not None and work.rules.batch is not None)


def left_out(batch: SharedRequest, work: Any, end: End) -> End:
    """The decision on a work of `batch` that is about to begin; None: it begins. `end`: the worker's decision. If the
    work has to wait, so do later ones of its order key. One whose settings no longer allow batches goes alone."""
    rules = work.rules
    if end is None and (work.queue in batch.stopped or (batch.first and batch.first is not work and not rules.batch)):
        end = BEHIND
    if isinstance(end, Later) and work.queue is not None:
        batch.stopped.add(work.queue)
    batch.first = batch.first or work
    return end


def has_seat(batch: SharedRequest, seats: Any, work: Any) -> bool:
    """Whether a work of `batch` may begin. Its request needs one seat, which its first work takes or waits for."""
    if batch.seated is None:
        batch.seated = seats.take(work)
    if not batch.seated:
        batch.seating.append(work)
    return batch.seated


def waits_first(
    works: Sequence[Any], verdicts: Sequence[Verdict]
) -> tuple[list[tuple[Any, Verdict]], list[Any], list[Verdict]]:
    """Works of batches that have to wait, the last one first, with their verdicts; and all others.

    The first ones are back in their order keys before the others go on: one of those that is parked takes along all
    that wait behind it.
    """
    pairs = list(zip(works, verdicts, strict=True))
    waits = [pair for pair in pairs if pair[0].batch is not None and isinstance(pair[1], Wait)]
    others = [pair for pair in pairs if pair[0].batch is None or not isinstance(pair[1], Wait)]
    return waits[::-1], [work for work, _ in others], [verdict for _, verdict in others]
