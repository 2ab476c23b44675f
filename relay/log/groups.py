"""Consumer groups whose members live in one process: who is meant to read which partition, and who still holds it.

Nothing here waits or calls back. A group says what each member has to give up and what it may take; members look when
they are woken, so that a step that failed is simply taken again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from relay.log.port import TopicPartition


class Member(Protocol):
    """Someone who reads in a group."""

    def wake(self) -> None:
        """Look again: what is yours may have changed."""
        ...


M = TypeVar("M")


def balance(
    wanted: Mapping[M, frozenset[TopicPartition]], before: Mapping[TopicPartition, M]
) -> dict[TopicPartition, M]:
    """Give each wanted partition to one of those who want it, evenly, moving as few away from `before` as that takes.

    No owner of a partition then has two or more partitions beyond another member who wants it.
    """
    target = {partition: owner for partition, owner in before.items() if partition in wanted.get(owner, frozenset())}
    load = Counter(target.values())

    def least_loaded(partition: TopicPartition) -> M:
        return min((member for member in wanted if partition in wanted[member]), key=lambda member: load[member])

    for partition in sorted(frozenset[TopicPartition]().union(*wanted.values()) - target.keys()):
        target[partition] = owner = least_loaded(partition)
        load[owner] += 1
    moved = True
    while moved:  # each move evens out two loads, so this ends
        moved = False
        for partition, owner in target.items():
            other = least_loaded(partition)
            if load[owner] > load[other] + 1:
                target[partition], moved = other, True
                load[owner] -= 1
                load[other] += 1
    return target


class Group:
    """One consumer group. A partition is held by one member at a time; a new owner waits until it is given up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._wanted: dict[Member, frozenset[TopicPartition]] = {}
        self._target: dict[TopicPartition, Member] = {}
        self._held: dict[TopicPartition, Member] = {}

    def __contains__(self, member: Member) -> bool:
        return member in self._wanted

    def join(self, member: Member, wanted: frozenset[TopicPartition]) -> None:
        self._wanted[member] = wanted
        self._rebalance()

    def leave(self, member: Member) -> None:
        """`member` is gone, and whatever it held is free."""
        self._wanted.pop(member, None)
        self._held = {partition: holder for partition, holder in self._held.items() if holder is not member}
        self._rebalance()

    def holds(self, member: Member, partition: TopicPartition) -> bool:
        return self._held.get(partition) is member

    def meant_for(self, member: Member, partition: TopicPartition) -> bool:
        """Whether `member` holds `partition` and may keep it."""
        return self._held.get(partition) is member is self._target.get(partition)

    def claim(self, member: Member) -> list[TopicPartition]:
        """What `member` is meant to have and nobody holds; from now on `member` does."""
        free = sorted(p for p, owner in self._target.items() if owner is member and p not in self._held)
        self._held.update(dict.fromkeys(free, member))
        return free

    def release(self, member: Member, partitions: Iterable[TopicPartition]) -> None:
        """`member` gives these up; others who wait for them are woken."""
        for partition in partitions:
            if self.holds(member, partition):
                del self._held[partition]
        self._wake_all()

    def _rebalance(self) -> None:
        self._target = balance(self._wanted, self._target)
        self._wake_all()

    def _wake_all(self) -> None:
        for member in self._wanted:
            member.wake()
