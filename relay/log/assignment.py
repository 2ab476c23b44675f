"""Which member of a consumer group is to have which partition. Pure: applications in, assignment out.

Sticky, and cooperative in effect: what a member claims is dealt to another only when that one applies again without
claiming it (as KIP-429 has it). A member that has lost touch with its group claims nothing; should two claim the same
all the same, the claim of the newer generation counts, and of two equal ones neither, until one is given up.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

M = TypeVar("M")
P = TypeVar("P", bound=tuple[Any, int])
"""A partition: its topic, under whatever name, and its number."""


@dataclass(frozen=True, slots=True)
class Wish(Generic[P]):
    """What a member wants to read. `named`: it was configured for these; it goes before members that read everything,
    and they get its partitions back once it is gone. `rank`: of equal members, the lower one is first. `unable`:
    partitions of which it cannot finish all records; if another member can, they count as not wanted."""

    wants: frozenset[P]
    named: bool = False
    rank: int = 0
    unable: frozenset[P] = frozenset()


@dataclass(frozen=True, slots=True)
class Application(Generic[P]):
    """What a member says when it joins. `claims`: what it holds; `generation`: of the group, in which it last did."""

    wish: Wish[P]
    claims: frozenset[P] = frozenset()
    generation: int = -1


def deal(applications: Mapping[M, Application[P]]) -> dict[M, list[P]]:
    """The partitions that each member may have now. It has to release the others that it holds, and to rejoin: only
    then the new owner gets them."""
    owners, claimed = _claims(applications)
    target = balance({member: each.wish for member, each in applications.items()}, owners)
    dealt: dict[M, list[P]] = {member: [] for member in applications}
    for partition, member in target.items():
        if partition not in claimed or owners.get(partition) == member:
            dealt[member].append(partition)
    return dealt


def _claims(applications: Mapping[M, Application[P]]) -> tuple[dict[P, M], frozenset[P]]:
    """Who rightly holds what, and all that anybody takes for its own."""
    claimants: dict[P, list[M]] = defaultdict(list)
    for member, application in applications.items():
        for partition in application.claims:
            claimants[partition].append(member)
    owners: dict[P, M] = {}
    for partition, members in claimants.items():
        newest = max(applications[member].generation for member in members)
        rightful = [member for member in members if applications[member].generation == newest]
        if len(rightful) == 1:
            owners[partition] = rightful[0]
    return owners, frozenset(claimants)


def balance(wishes: Mapping[M, Wish[P]], before: Mapping[P, M]) -> dict[P, M]:
    """Give each wanted partition to one of those who may have it, evenly, moving few away from `before`. Those who
    may: members that are able to serve it and name it, or else all that are able to, or else as if all were.

    No owner of a partition then has two or more partitions beyond another member who may have it. Partitions of one
    topic, which are about as busy as each other, are spread first.
    """
    deck = _Deck(wishes)
    for partition, owner in before.items():
        if owner in deck.may_have.get(partition, ()):
            deck.give(partition, owner)
    for partition in sorted(deck.may_have.keys() - deck.target.keys()):
        deck.give(partition, deck.least_loaded(partition))
    deck.relieve(of_topics=True)
    deck.relieve(of_topics=False)
    while deck.even_out():
        pass
    return deck.target


class _Deck(Generic[M, P]):
    """Partitions being dealt. Members are numbered in the order in which equals are dealt to."""

    def __init__(self, wishes: Mapping[M, Wish[P]]) -> None:
        in_order = sorted(wishes, key=lambda member: wishes[member].rank)
        self.may_have = _who_may_have([(member, wishes[member]) for member in in_order])
        self.target: dict[P, M] = {}
        self._load: dict[M, int] = dict.fromkeys(in_order, 0)
        self._size = Counter(partition[0] for partition in self.may_have)
        self._of_topic: Counter[tuple[M, Any]] = Counter()
        """Of topics with several partitions: how many of them a member has."""

    def give(self, partition: P, member: M) -> None:
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
        """Take from the member that has most, as long as another one may have it and has less. `of_topics`: only
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
                    self.give(partition, other)
                    heappush(fullest, (-self._load[owner], number, owner))
                    break

    def even_out(self) -> bool:
        """The remaining ones, of any member: whether anything moved. Each move evens out two loads, so this ends."""
        load, moved = self._load, False
        floors = {those: min(map(load.__getitem__, those)) for those in set(self.may_have.values())}
        for partition, owner in self.target.items():
            if load[owner] > floors[self.may_have[partition]] + 1:
                other = self.least_loaded(partition)
                if self._is_uneven(owner, other):
                    self.give(partition, other)
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


def _who_may_have(wishes: Sequence[tuple[M, Wish[P]]]) -> dict[P, tuple[M, ...]]:
    """By partition, in the order of `wishes`. Members who want the same share one tuple."""
    by_wants: dict[tuple[bool, frozenset[P]], list[M]] = {}
    unable = frozenset[P]().union(*(wish.unable for _, wish in wishes))
    able = frozenset[P]().union(*((unable & wish.wants) - wish.unable for _, wish in wishes))
    for member, wish in wishes:
        by_wants.setdefault((wish.named, wish.wants - (wish.unable & able)), []).append(member)
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
