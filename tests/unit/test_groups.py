"""Sharing partitions out among members, and handing them over one holder at a time."""

from relay.log.groups import ConsumerGroup, MemberSubscription
from relay.log.port import TopicPartition

PARTITIONS = [TopicPartition(topic, n) for topic in ("a", "b") for n in range(4)]


class Sleeper:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_a_new_owner_waits_until_the_old_one_has_given_up() -> None:
    group, old, new = ConsumerGroup("group"), Sleeper(), Sleeper()
    both = frozenset(PARTITIONS[:2])
    group.join(old, MemberSubscription(both))
    assert group.claim(old) == sorted(both)

    group.join(new, MemberSubscription(both))
    [moving] = [partition for partition in both if not group.meant_for(old, partition)]
    assert group.claim(new) == []
    assert group.holds(old, moving)  # what it commits still counts

    woken = new.woken
    group.release(old, [moving])
    assert new.woken > woken
    assert group.claim(new) == [moving]
    assert not group.holds(old, moving)


def test_who_leaves_without_a_word_holds_nothing() -> None:
    group, gone, left = ConsumerGroup("group"), Sleeper(), Sleeper()
    group.join(gone, MemberSubscription(frozenset(PARTITIONS)))
    group.claim(gone)
    group.join(left, MemberSubscription(frozenset(PARTITIONS)))

    group.leave(gone)

    assert gone not in group
    assert group.claim(left) == sorted(PARTITIONS)
    group.release(gone, PARTITIONS)  # a late one takes nothing from the new holder
    assert all(group.holds(left, partition) for partition in PARTITIONS)
