"""Consumer groups whose members live in one process: which member is to read which partition, and which one still holds
it; and the events that wake members.

Nothing here waits or calls back. A group says what each member has to release and what it may take; members look when
they are woken, so that a step that failed is simply taken again.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from relay.log.assignment import Wish, balance
from relay.log.port import TopicPartition


class Member(Protocol):
    """A consumer in a group."""

    def wake(self) -> None:
        """Poll again: the assignment may have changed."""
        ...


class ConsumerGroup:
    """One consumer group. A partition is held by one member at a time; a new owner waits until it is given up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._wanted: dict[Member, Wish[TopicPartition]] = {}
        self._target: dict[TopicPartition, Member] = {}
        self._held: dict[TopicPartition, Member] = {}

    def __contains__(self, member: Member) -> bool:
        return member in self._wanted

    def join(self, member: Member, wanted: Wish[TopicPartition]) -> None:
        """Add `member`, or replace its wish."""
        self._wanted[member] = wanted
        self._rebalance()

    def leave(self, member: Member) -> None:
        """Remove `member`; the partitions that it held are free."""
        self._wanted.pop(member, None)
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
        self._target = balance(self._wanted, self._target)
        self._wake_all()

    def _wake_all(self) -> None:
        for member in self._wanted:
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
