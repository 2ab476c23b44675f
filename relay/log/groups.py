"""Consumer groups: the assignment of partitions to members, and groups whose members live in one process.

The assignment is pure: subscriptions in, assignment out. It is sticky, and cooperative: a partition that a member owns
is assigned to another only when that member rejoins without it (as in KIP-429). A member that lost its membership owns
nothing; if two own the same nevertheless, the one of the newer generation counts, and of two equal ones neither, until
one releases it.

Groups in one process neither wait nor call back. A group says what each member has to release and what it may take;
members look when they are woken, so that a step that failed is simply taken again.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

from relay.log.port import TopicPartition

M = TypeVar("M")
P = TypeVar("P", bound=tuple[Any, int])
"""A partition: a name of its topic, and its number."""


@dataclass(frozen=True, slots=True)
class MemberSubscription(Generic[P]):
    """A member's subscription, as it joins the group. `wants`: the partitions to read. `named`: it was configured for
    these; it goes before members that read everything, and they get its partitions back once it is gone. `rank`: of
    equal members, the lower one is first. `unable`: partitions of which it cannot finish all records; if another member
    can, they count as not wanted. `owned`: its partitions until now; `generation`: of the group, when it last had some.
    """

    wants: frozenset[P]
    named: bool = False
    rank: int = 0
    unable: frozenset[P] = frozenset()
    owned: frozenset[P] = frozenset()
    generation: int = -1


def assign(members: Mapping[M, MemberSubscription[P]]) -> dict[M, list[P]]:
    """The partitions that each member may have now. It has to release its other ones, and to rejoin: only then the new
    owners get these."""
    owners, owned = _owners(members)
    target = balance(members, owners)
    assigned: dict[M, list[P]] = {member: [] for member in members}
    for partition, member in target.items():
        if partition not in owned or owners.get(partition) == member:
            assigned[member].append(partition)
    return assigned


def _owners(members: Mapping[M, MemberSubscription[P]]) -> tuple[dict[P, M], frozenset[P]]:
    """The rightful owners by partition, and all partitions that have an owner."""
    claimants: dict[P, list[M]] = defaultdict(list)
    for member, subscription in members.items():
        for partition in subscription.owned:
            claimants[partition].append(member)
    owners: dict[P, M] = {}
    for partition, several in claimants.items():
        newest = max(members[member].generation for member in several)
        rightful = [member for member in several if members[member].generation == newest]
        if len(rightful) == 1:
            owners[partition] = rightful[0]
    return owners, frozenset(claimants)


def balance(members: Mapping[M, MemberSubscription[P]], before: Mapping[P, M]) -> dict[P, M]:
    """Assign each wanted partition to a member that may have it, evenly, moving few away from `before`. Those that may
    have it: those able to serve it that name it; if there are none, all that are able to; else all.

    No owner of a partition then has two or more partitions more than another member that may have it. Partitions of one
    topic, which are about as busy as each other, are spread first.
    """
    assignment = _Assignment(members)
    for partition, owner in before.items():
        if owner in assignment.may_have.get(partition, ()):
            assignment.put(partition, owner)
    for partition in sorted(assignment.may_have.keys() - assignment.target.keys()):
        assignment.put(partition, assignment.least_loaded(partition))
    assignment.relieve(of_topics=True)
    assignment.relieve(of_topics=False)
    while assignment.even_out():
        pass
    return assignment.target


class _Assignment(Generic[M, P]):
    """An assignment in progress. Members are numbered by rank, which decides between equals."""

    def __init__(self, members: Mapping[M, MemberSubscription[P]]) -> None:
        in_order = sorted(members, key=lambda member: members[member].rank)
        self.may_have = _who_may_have({member: members[member] for member in in_order})
        self.target: dict[P, M] = {}
        self._load: dict[M, int] = dict.fromkeys(in_order, 0)
        self._size = Counter(partition[0] for partition in self.may_have)
        self._of_topic: Counter[tuple[M, Any]] = Counter()
        """Of topics with several partitions: the number that a member has."""

    def put(self, partition: P, member: M) -> None:
        if (former := self.target.get(partition)) is not None:
            self._count(former, partition[0], -1)
        self.target[partition] = member
        self._count(member, partition[0], 1)

    def least_loaded(self, partition: P) -> M:
        load, topic = self._load, partition[0]
        if self._size[topic] == 1:
            return min(self.may_have[partition], key=load.__getitem__)
        return min(self.may_have[partition], key=lambda member: (load[member], self._of_topic[member, topic]))

    def relieve(self, *, of_topics: bool) -> None:
        """Move partitions from the member with most to members that may have them and have fewer. `of_topics`: only
        partitions of topics of which the owner has more than the other."""
        held: dict[M, list[P]] = {member: [] for member in self._load}
        for partition, owner in self.target.items():
            if of_topics <= (self._size[partition[0]] > 1):
                held[owner].append(partition)
        fullest = [(-self._load[member], number, member) for number, member in enumerate(held)]
        heapify(fullest)
        while fullest:
            _, number, owner = heappop(fullest)
            while held[owner]:
                partition = held[owner].pop()
                other = self.least_loaded(partition)
                if self._is_uneven(owner, other) and not (of_topics and self._has_no_more(owner, other, partition[0])):
                    self.put(partition, other)
                    heappush(fullest, (-self._load[owner], number, owner))
                    break

    def even_out(self) -> bool:
        """Move partitions of any member. True if any moved. Each move evens out two loads, so this ends."""
        load, moved = self._load, False
        floors = {those: min(map(load.__getitem__, those)) for those in set(self.may_have.values())}
        for partition, owner in self.target.items():
            if load[owner] > floors[self.may_have[partition]] + 1:
                other = self.least_loaded(partition)
                if self._is_uneven(owner, other):
                    self.put(partition, other)
                    moved = True
        return moved

    def _count(self, member: M, topic: Any, change: int) -> None:
        self._load[member] += change
        if self._size[topic] > 1:
            self._of_topic[member, topic] += change

    def _is_uneven(self, owner: M, other: M) -> bool:
        return self._load[owner] > self._load[other] + 1

    def _has_no_more(self, owner: M, other: M, topic: Any) -> bool:
        return self._of_topic[owner, topic] <= self._of_topic[other, topic] + 1


def _who_may_have(members: Mapping[M, MemberSubscription[P]]) -> dict[P, tuple[M, ...]]:
    """By partition the members that may have it, in their order. Those that want the same share one tuple."""
    by_wants: dict[tuple[bool, frozenset[P]], list[M]] = {}
    unable = frozenset[P]().union(*(each.unable for each in members.values()))
    able = frozenset[P]().union(*((unable & each.wants) - each.unable for each in members.values()))
    for member, each in members.items():
        by_wants.setdefault((each.named, each.wants - (each.unable & able)), []).append(member)
    named = _by_partition((members, wants) for (is_named, wants), members in by_wants.items() if is_named)
    others = _by_partition((members, wants) for (is_named, wants), members in by_wants.items() if not is_named)
    return others | named


def _by_partition(groups: Iterable[tuple[Sequence[M], frozenset[P]]]) -> dict[P, tuple[M, ...]]:
    found: dict[P, tuple[M, ...]] = {}
    joined: dict[tuple[tuple[M, ...], tuple[M, ...]], tuple[M, ...]] = {}
    for members, wants in groups:
        those = tuple(members)
        for partition in wants:
            before = found.get(partition)
            found[partition] = those if before is None else joined.setdefault((before, those), before + those)
    return found


class Member(Protocol):
    """A consumer in a group."""

    def wake(self) -> None:
        """Poll again: the assignment may have changed."""
        ...


class ConsumerGroup:
    """One consumer group. A partition is held by one member at a time; a new owner waits until it is given up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._members: dict[Member, MemberSubscription[TopicPartition]] = {}
        self._target: dict[TopicPartition, Member] = {}
        self._held: dict[TopicPartition, Member] = {}

    def __contains__(self, member: Member) -> bool:
        return member in self._members

    def join(self, member: Member, subscription: MemberSubscription[TopicPartition]) -> None:
        """Add `member`, or replace its subscription."""
        self._members[member] = subscription
        self._rebalance()

    def leave(self, member: Member) -> None:
        """Remove `member`; the partitions that it held are free."""
        self._members.pop(member, None)
        self._held = {partition: holder for partition, holder in self._held.items() if holder is not member}
        self._rebalance()

    def holds(self, member: Member, partition: TopicPartition) -> bool:
        return self._held.get(partition) is member

    def meant_for(self, member: Member, partition: TopicPartition) -> bool:
        """Whether `member` holds `partition` and may keep it."""
        return self._held.get(partition) is member is self._target.get(partition)

    def claim(self, member: Member, but: Collection[TopicPartition] = ()) -> list[TopicPartition]:
        """The partitions assigned to `member` that no member holds, except `but`; from now on `member` holds them."""
        free = sorted(
            p for p, owner in self._target.items() if owner is member and p not in self._held and p not in but
        )
        self._held.update(dict.fromkeys(free, member))
        return free

    def release(self, member: Member, partitions: Iterable[TopicPartition]) -> None:
        """Free these of `member`, and wake the members."""
        for partition in partitions:
            if self.holds(member, partition):
                del self._held[partition]
        self._wake_all()

    def _rebalance(self) -> None:
        self._target = balance(self._members, self._target)
        self._wake_all()

    def _wake_all(self) -> None:
        for member in self._members:
            member.wake()


class Watchers:
    """Events that are set whenever a topic may have a new record."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    def add(self, topics: Iterable[str], event: asyncio.Event) -> None:
        for topic in topics:
            self._events.setdefault(topic, set()).add(event)

    def remove(self, topics: Iterable[str], event: asyncio.Event) -> None:
        for topic in topics:
            events = self._events.get(topic, set())
            events.discard(event)
            if not events:
                self._events.pop(topic, None)

    @contextmanager
    def watching(self, topic: str) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self.add([topic], event)
        try:
            yield event
        finally:
            self.remove([topic], event)

    def notify(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for event in self._events.get(topic, ()):
                event.set()

    def notify_all(self) -> None:
        self.notify(list(self._events))
