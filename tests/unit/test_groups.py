"""Sharing partitions out among members, and handing them over one holder at a time."""

from hypothesis import given
from hypothesis import strategies as st

from relay.log.groups import Group, balance
from relay.log.port import TopicPartition

PARTITIONS = [TopicPartition(topic, n) for topic in ("a", "b") for n in range(4)]
wishes = st.dictionaries(st.integers(0, 5), st.frozensets(st.sampled_from(PARTITIONS)), max_size=6)
owners = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 8))


@given(wishes, owners)
def test_every_wanted_partition_has_one_owner_who_wants_it(
    wanted: dict[int, frozenset[TopicPartition]], before: dict[TopicPartition, int]
) -> None:
    target = balance(wanted, before)

    assert target.keys() == frozenset[TopicPartition]().union(*wanted.values())
    assert all(partition in wanted[owner] for partition, owner in target.items())


@given(wishes, owners)
def test_no_owner_has_two_more_than_another_who_would_take_one(
    wanted: dict[int, frozenset[TopicPartition]], before: dict[TopicPartition, int]
) -> None:
    target = balance(wanted, before)

    load = {member: sum(owner == member for owner in target.values()) for member in wanted}
    for partition, owner in target.items():
        assert all(load[owner] <= load[other] + 1 for other in wanted if partition in wanted[other])


@given(wishes, owners)
def test_what_is_balanced_stays(
    wanted: dict[int, frozenset[TopicPartition]], before: dict[TopicPartition, int]
) -> None:
    target = balance(wanted, before)

    assert balance(wanted, target) == target


def test_one_who_joins_takes_no_more_than_its_share() -> None:
    everything = frozenset(PARTITIONS)
    before = balance({"old": everything}, {})

    after = balance({"old": everything, "new": everything}, before)

    assert sorted(after.values()) == ["new"] * 4 + ["old"] * 4


class Sleeper:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_a_new_owner_waits_until_the_old_one_has_given_up() -> None:
    group, old, new = Group("group"), Sleeper(), Sleeper()
    both = frozenset(PARTITIONS[:2])
    group.join(old, both)
    assert group.claim(old) == sorted(both)

    group.join(new, both)
    [moving] = [partition for partition in both if not group.meant_for(old, partition)]
    assert group.claim(new) == []
    assert group.holds(old, moving)  # what it commits still counts

    woken = new.woken
    group.release(old, [moving])
    assert new.woken > woken
    assert group.claim(new) == [moving]
    assert not group.holds(old, moving)


def test_who_leaves_without_a_word_holds_nothing() -> None:
    group, gone, left = Group("group"), Sleeper(), Sleeper()
    group.join(gone, frozenset(PARTITIONS))
    group.claim(gone)
    group.join(left, frozenset(PARTITIONS))

    group.leave(gone)

    assert gone not in group
    assert group.claim(left) == sorted(PARTITIONS)
    group.release(gone, PARTITIONS)  # a late one takes nothing from the new holder
    assert all(group.holds(left, partition) for partition in PARTITIONS)
