"""Parked references of a lane in the memory of the state's fake: due times, queues, and who has what in hand."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from relay.state.onlooker import ParkedHead
from relay.state.port import Counts, Due, DueAsk, Parked


@dataclass(slots=True)
class LaneIndex:
    """Parked references of one lane and tag. `due` holds the heads of queues, and what has no queue."""

    epoch: int = -1
    before: int = -1
    """The highest epoch of before it began anew, remembered until `before_until`."""
    before_until: float = 0.0
    references: dict[bytes, Parked] = field(default_factory=dict)
    due: dict[bytes, float] = field(default_factory=dict)
    hand: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Lent references; the epochs of who has them, and the numbers of the takes that lent them."""
    last_take: int = 0
    freed: set[bytes] = field(default_factory=set)
    """References that count no more, and are only to be removed."""

    def fence(self, epoch: int, now: float) -> tuple[int, bool]:
        """What counts against an owner's epoch, or is its own; whether that fences it."""
        of_before = self.epoch < epoch <= self.before and epoch - self.epoch > max(1, self.before - epoch)
        if self.epoch >= 0 and of_before and now < self.before_until:
            return self.before, True
        return self.epoch, self.epoch > epoch

    def head(self, queue: bytes) -> bytes | None:
        ranked = [(one.order, member) for member, one in self.references.items() if one.queue == queue]
        return min(ranked)[1] if ranked else None

    def parked_head(self, queue: bytes) -> ParkedHead | None:
        head = self.head(queue)
        behind = sum(one.queue == queue for one in self.references.values()) - 1
        return None if head is None else ParkedHead(head, self.references[head].at, behind)

    def promote(self, queue: bytes | None, now: float) -> bool:
        """Whether the head of `queue` is due; one that waited behind another is due now."""
        head = None if queue is None else self.head(queue)
        return head is not None and self.due.setdefault(head, now) <= now

    def put(self, one: Parked, now: float) -> None:
        member = one.row.digest
        self.hand.pop(member, None)
        before = None if one.queue is None else self.head(one.queue)
        former = self.references.get(member)
        self.references[member] = one
        self.freed.discard(member)
        if former is not None and former.queue != one.queue:
            self.due.pop(member, None)
            self.promote(former.queue, now)
        if one.queue is not None and self.head(one.queue) != member:
            self.due.pop(member, None)
            self.promote(one.queue, now)
            return
        if before is not None and before != member:
            self.due.pop(before, None)
        self.due[member] = now + max(0.0, one.due_in_s)

    def free(self, member: bytes, now: float) -> None:
        if member in self.references:
            self.freed.add(member)
        self._due_again([member], now)

    def counted(self) -> list[Parked]:
        return [one for member, one in self.references.items() if member not in self.freed]

    def drop(self, member: bytes, queue: bytes | None, now: float) -> bool:
        one = self.references.pop(member, None)
        self.freed.discard(member)
        self.due.pop(member, None)
        self.hand.pop(member, None)
        return self.promote(queue if one is None or one.queue is None else one.queue, now)

    def lend(self, epoch: int, now: float, ask: DueAsk, lease_s: float) -> list[Due]:
        """Put what is due into that owner's hand, earliest first; also what the same take lent before."""
        if ask.take and ask.take == self.last_take:
            self._due_again([member for member, (_, take) in self.hand.items() if take == ask.take], now)
        ripe = sorted((at, member) for member, at in self.due.items() if at <= now)[: ask.limit]
        for _, member in ripe:
            self.due[member] = now + lease_s
            self.hand[member] = (epoch, ask.take)
            self.last_take = ask.take
        return [Due(self.references[member].row, self.references[member].at) for _, member in ripe]

    def take_back(self, epoch: int, now: float) -> None:
        """What a former owner had in hand is due."""
        former = [member for member, (owner, _) in self.hand.items() if owner < epoch]
        self._due_again(former, now)
        for member in former:
            del self.hand[member]

    def _due_again(self, members: Iterable[bytes], now: float) -> None:
        for member in members:
            if member in self.due:
                self.due[member] = min(self.due[member], now)


def count_of(references: Iterable[Parked]) -> Counts:
    polls = [one.poll for one in references]
    return Counts(len(polls) - sum(polls), sum(polls))
