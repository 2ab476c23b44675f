"""Parked references of a lane in the memory of the state's fake: due times, queues, and who has what in hand."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from relay.state.read_model import ParkedHead
from relay.state.rows import Due, DueRequest, Parked


@dataclass(slots=True)
class LaneIndex:
    """Parked references of one lane and tag. `due` holds the heads of queues, and what has no queue."""

    epoch: int = -1
    before: int = -1
    """The highest epoch of before it began anew, remembered until `before_until`."""
    before_until: float = 0.0
    references: dict[bytes, Parked] = field(default_factory=dict)
    due: dict[bytes, float] = field(default_factory=dict)
    hand: dict[bytes, int] = field(default_factory=dict)
    """Lent references, and the epochs of who has them."""
    last_take: bytes = b""
    """Its token."""
    lent_last: set[bytes] = field(default_factory=set)
    """Of those in hand, what the last take lent."""
    first_at: dict[bytes, float] = field(default_factory=dict)
    """When a record that is parked for a retry, without an order key, was parked first."""
    freed: set[bytes] = field(default_factory=set)
    """References that count no more, and are only to be removed."""
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Those that count: of each owner, for retries and for polls."""

    def fence(self, epoch: int, now: float) -> tuple[int, bool]:
        """What counts against an owner's epoch, or is its own; whether that fences it."""
        of_before = self.epoch < epoch <= self.before and epoch - self.epoch > max(1, self.before - epoch)
        if self.epoch >= 0 and of_before and now < self.before_until:
            return self.before, True
        return self.epoch, self.epoch > epoch

    def head(self, queue: bytes) -> bytes | None:
        ranked = [(one.order, member) for member, one in self.references.items() if one.queue == queue]
        return min(ranked)[1] if ranked else None

    def first(self, queue: bytes) -> int | None:
        """The order of its head."""
        head = self.head(queue)
        return None if head is None else self.references[head].order

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
        self._hand_back(member)
        before = None if one.queue is None else self.head(one.queue)
        former = self._leave_out(member)
        self.references[member] = one
        if one.queue is None and not one.poll:
            self.first_at.setdefault(member, now)
        else:
            self.first_at.pop(member, None)
        self.freed.discard(member)
        self.counts[one.row.owner, one.poll] += 1
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
        if self._leave_out(member) is not None:
            self.freed.add(member)
            self.first_at.pop(member, None)
        self._due_again([member], now)

    def _leave_out(self, member: bytes) -> Parked | None:
        """The reference that is there; it does not count any more."""
        one = self.references.get(member)
        if one is not None and member not in self.freed:
            self.counts[one.row.owner, one.poll] -= 1
        return one

    def keeps(self, member: bytes, generation: int) -> bool:
        """Whether that life of it is parked, or a later one."""
        one = self.references.get(member)
        return one is not None and one.generation >= generation

    def is_listed(self, member: bytes) -> bool:
        """Whether it will become due: it is due at some time, or behind a head that is."""
        queue = self.references[member].queue
        return (member if queue is None else self.head(queue)) in self.due

    def drop(self, member: bytes, queue: bytes | None, now: float) -> bool:
        one = self._leave_out(member)
        self.references.pop(member, None)
        self.freed.discard(member)
        self.first_at.pop(member, None)
        self.due.pop(member, None)
        self._hand_back(member)
        return self.promote(queue if one is None or one.queue is None else one.queue, now)

    def lend(self, epoch: int, now: float, ask: DueRequest, lease_s: float) -> list[Due]:
        """Lease due records to that owner, earliest first, with those that the same call has leased before."""
        if ask.token and ask.token == self.last_take:
            self._due_again(self.lent_last, now)
        for member in [member for member, at in self.due.items() if at <= now and member not in self.references]:
            del self.due[member]
        ripe = sorted((at, member) for member, at in self.due.items() if at <= now)[: ask.limit]
        for _, member in ripe:
            self.due[member] = now + lease_s
            self.hand[member] = epoch
        if ripe:
            self.last_take, self.lent_last = ask.token, {member for _, member in ripe}
        lent = [self.references[member] for _, member in ripe]
        return [Due(one.row, one.generation, one.at) for one in lent]

    def take_back(self, epoch: int, now: float) -> None:
        """What a former owner had in hand is due."""
        former = [member for member, owner in self.hand.items() if owner < epoch]
        self._due_again(former, now)
        for member in former:
            self._hand_back(member)

    def _hand_back(self, member: bytes) -> None:
        self.hand.pop(member, None)
        self.lent_last.discard(member)

    def _due_again(self, members: Iterable[bytes], now: float) -> None:
        for member in members:
            if member in self.due:
                self.due[member] = min(self.due[member], now)
