"""The assignor: every wanted partition has exactly one owner, and members have equal shares."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from relay.log.groups import MemberSubscription, assign, balance
from relay.log.port import TopicPartition

PARTITIONS = [TopicPartition(topic, n) for topic in ("a", "b") for n in range(4)]
members = st.sampled_from("uvwxyz")
some = st.frozensets(st.sampled_from(PARTITIONS))
wanting = st.builds(MemberSubscription, some, st.booleans(), st.integers(0, 2), some)
wishes = st.dictionaries(members, wanting, max_size=6)
owners = st.dictionaries(st.sampled_from(PARTITIONS), members)
owning = st.builds(MemberSubscription, some, st.booleans(), st.integers(0, 2), some, some, st.integers(-1, 3))
subscriptions = st.dictionaries(members, owning, min_size=1, max_size=6)

Subscriptions = Mapping[str, MemberSubscription[TopicPartition]]


def may_have(wishes: Subscriptions, partition: TopicPartition) -> set[str]:
    all_of_them = {member for member, wish in wishes.items() if partition in wish.wants}
    all_of_them = {member for member in all_of_them if partition not in wishes[member].unable} or all_of_them
    return {member for member in all_of_them if wishes[member].named} or all_of_them


# whose it is to be


@given(wishes, owners)
def test_every_wanted_partition_has_one_owner_who_may_have_it(
    wishes: Subscriptions, before: dict[TopicPartition, str]
) -> None:
    target = balance(wishes, before)

    assert target.keys() == frozenset[TopicPartition]().union(*(wish.wants for wish in wishes.values()))
    assert all(owner in may_have(wishes, partition) for partition, owner in target.items())


@given(wishes, owners)
def test_no_owner_has_two_more_than_another_who_may_have_one(
    wishes: Subscriptions, before: dict[TopicPartition, str]
) -> None:
    target = balance(wishes, before)

    load = Counter(target.values())
    for partition, owner in target.items():
        assert all(load[owner] <= load[other] + 1 for other in may_have(wishes, partition))


@given(wishes, owners)
def test_what_is_balanced_stays(wishes: Subscriptions, before: dict[TopicPartition, str]) -> None:
    target = balance(wishes, before)

    assert balance(wishes, target) == target


def test_one_who_joins_takes_no_more_than_its_share_and_of_each_topic() -> None:
    everything = MemberSubscription(frozenset(PARTITIONS))
    before = balance({"old": everything}, {})

    after = balance({"old": everything, "new": everything}, before)

    assert Counter((owner, topic) for (topic, _), owner in after.items()) == {
        (member, topic): 2 for member in ("old", "new") for topic in ("a", "b")
    }


def test_ranks_decide_who_gets_the_odd_one() -> None:
    only = frozenset(PARTITIONS[:1])
    assert balance({"one": MemberSubscription(only, rank=1), "two": MemberSubscription(only, rank=0)}, {}) == {
        PARTITIONS[0]: "two"
    }


def test_what_one_cannot_serve_goes_to_another_and_each_has_as_many_as_before() -> None:
    everything = frozenset(PARTITIONS)
    able, unable = MemberSubscription(everything), MemberSubscription(everything, unable=frozenset(PARTITIONS[:1]))
    before = balance({"unable": able, "able": able}, {})
    assert before[PARTITIONS[0]] == "unable"

    after = balance({"unable": unable, "able": able}, before)

    assert after[PARTITIONS[0]] == "able"
    assert Counter(after.values()) == Counter(before.values())
    moved = [partition for partition in PARTITIONS if after[partition] != before[partition]]
    assert len(moved) == 2, "that one, and one in its place"


def test_where_none_can_serve_it_nothing_changes() -> None:
    everything = frozenset(PARTITIONS)
    before = balance({"one": MemberSubscription(everything), "two": MemberSubscription(everything)}, {})
    neither = MemberSubscription(everything, unable=frozenset(PARTITIONS[:3]))

    assert balance({"one": neither, "two": neither}, before) == before


# handing over


@given(subscriptions)
def test_nothing_is_dealt_to_two(subscriptions: Subscriptions) -> None:
    assigned = [partition for partitions in assign(subscriptions).values() for partition in partitions]

    assert len(assigned) == len(set(assigned))


@given(subscriptions)
def test_what_somebody_claims_is_dealt_to_nobody_else_but_a_claimant_of_a_newer_generation(
    subscriptions: Subscriptions,
) -> None:
    for member, partitions in assign(subscriptions).items():
        for partition in partitions:
            for other, subscription in subscriptions.items():
                if other != member and partition in subscription.owned:
                    assert partition in subscriptions[member].owned
                    assert subscriptions[member].generation > subscription.generation


def settled(subscriptions: Subscriptions, rounds: int = 4) -> dict[str, MemberSubscription[TopicPartition]]:
    """The partitions that each member owns after so many rounds, in each of which all follow their assignment."""
    now = dict(subscriptions)
    for generation in range(10, 10 + rounds):
        assigned = assign(now)
        now = {m: replace(a, owned=frozenset(assigned[m]), generation=generation) for m, a in now.items()}
    return now


@given(subscriptions)
def test_all_that_is_wanted_is_soon_held_and_then_nothing_moves(subscriptions: Subscriptions) -> None:
    four, five = settled(subscriptions, 4), settled(subscriptions, 5)

    wanted = frozenset[TopicPartition]().union(*(each.wants for each in subscriptions.values()))
    held = [partition for each in four.values() for partition in each.owned]
    assert sorted(held) == sorted(wanted)
    assert {m: each.owned for m, each in four.items()} == {m: each.owned for m, each in five.items()}


def test_a_deployment_of_its_own_takes_over_its_receiver_and_the_pool_takes_it_back() -> None:
    everything, mine = MemberSubscription(frozenset(PARTITIONS)), frozenset(PARTITIONS[:1])
    pool = settled({"p": everything, "q": everything})
    owner = next(member for member, each in pool.items() if mine <= each.owned)

    first = assign({**pool, "own": MemberSubscription(mine, named=True)})
    assert first["own"] == [], "its owner has to give it up first"
    assert not mine & set(first[owner])
    then = settled({**pool, "own": MemberSubscription(mine, named=True)})
    assert then["own"].owned == mine
    for member in pool:
        assert pool[member].owned - mine <= then[member].owned | then["p"].owned | then["q"].owned

    del then["own"]
    back = settled(then)
    assert back["p"].owned | back["q"].owned == frozenset(PARTITIONS)


@given(st.integers(2, 6))
def test_a_member_that_comes_and_goes_takes_nothing_from_the_others_that_they_would_not_have_back(count: int) -> None:
    """Those who stay keep all but the share of the one who came, and when it is gone, only that share moves."""
    everything = MemberSubscription(frozenset(TopicPartition("t", n) for n in range(60)))
    staying = settled({f"m{n}": everything for n in range(count)})

    with_guest = settled({**staying, "guest": everything})
    lost = sum(len(staying[m].owned - with_guest[m].owned) for m in staying)
    assert lost == len(with_guest["guest"].owned)
    del with_guest["guest"]
    again = settled(with_guest)
    assert all(with_guest[m].owned <= again[m].owned for m in staying)


def test_two_equal_claims_are_dealt_to_neither_until_one_gives_up() -> None:
    only = frozenset(PARTITIONS[:1])
    both = {m: MemberSubscription(only, owned=only, generation=7) for m in ("one", "two")}

    assert assign(both) == {"one": [], "two": []}
    assert assign({**both, "two": MemberSubscription(only)}) == {"one": PARTITIONS[:1], "two": []}


def test_thousands_of_receivers_are_dealt_evenly() -> None:
    everything = MemberSubscription(frozenset(TopicPartition(f"to_receiver_r{n}", 0) for n in range(5_000)))
    pool = {f"m{n:02d}": everything for n in range(20)}
    assigned = assign(pool)
    assert {len(each) for each in assigned.values()} == {250}
