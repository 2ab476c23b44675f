"""The assignor: every wanted partition has exactly one owner, and members have equal shares."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from relay.log.groups import Application, Wish, assign, balance
from relay.log.port import TopicPartition

PARTITIONS = [TopicPartition(topic, n) for topic in ("a", "b") for n in range(4)]
members = st.sampled_from("uvwxyz")
some = st.frozensets(st.sampled_from(PARTITIONS))
wish = st.builds(Wish, some, st.booleans(), st.integers(0, 2), some)
wishes = st.dictionaries(members, wish, max_size=6)
owners = st.dictionaries(st.sampled_from(PARTITIONS), members)
applications = st.dictionaries(
    members,
    st.builds(Application, wish, some, st.integers(-1, 3)),
    min_size=1,
    max_size=6,
)

Wishes = Mapping[str, Wish[TopicPartition]]
Applications = Mapping[str, Application[TopicPartition]]


def may_have(wishes: Wishes, partition: TopicPartition) -> set[str]:
    all_of_them = {member for member, wish in wishes.items() if partition in wish.wants}
    all_of_them = {member for member in all_of_them if partition not in wishes[member].unable} or all_of_them
    return {member for member in all_of_them if wishes[member].named} or all_of_them


# whose it is to be


@given(wishes, owners)
def test_every_wanted_partition_has_one_owner_who_may_have_it(
    wishes: Wishes, before: dict[TopicPartition, str]
) -> None:
    target = balance(wishes, before)

    assert target.keys() == frozenset[TopicPartition]().union(*(wish.wants for wish in wishes.values()))
    assert all(owner in may_have(wishes, partition) for partition, owner in target.items())


@given(wishes, owners)
def test_no_owner_has_two_more_than_another_who_may_have_one(wishes: Wishes, before: dict[TopicPartition, str]) -> None:
    target = balance(wishes, before)

    load = Counter(target.values())
    for partition, owner in target.items():
        assert all(load[owner] <= load[other] + 1 for other in may_have(wishes, partition))


@given(wishes, owners)
def test_what_is_balanced_stays(wishes: Wishes, before: dict[TopicPartition, str]) -> None:
    target = balance(wishes, before)

    assert balance(wishes, target) == target


def test_one_who_joins_takes_no_more_than_its_share_and_of_each_topic() -> None:
    everything = Wish(frozenset(PARTITIONS))
    before = balance({"old": everything}, {})

    after = balance({"old": everything, "new": everything}, before)

    assert Counter((owner, topic) for (topic, _), owner in after.items()) == {
        (member, topic): 2 for member in ("old", "new") for topic in ("a", "b")
    }


def test_ranks_decide_who_gets_the_odd_one() -> None:
    only = frozenset(PARTITIONS[:1])
    assert balance({"one": Wish(only, rank=1), "two": Wish(only, rank=0)}, {}) == {PARTITIONS[0]: "two"}


def test_what_one_cannot_serve_goes_to_another_and_each_has_as_many_as_before() -> None:
    everything = frozenset(PARTITIONS)
    able, unable = Wish(everything), Wish(everything, unable=frozenset(PARTITIONS[:1]))
    before = balance({"unable": able, "able": able}, {})
    assert before[PARTITIONS[0]] == "unable"

    after = balance({"unable": unable, "able": able}, before)

    assert after[PARTITIONS[0]] == "able"
    assert Counter(after.values()) == Counter(before.values())
    moved = [partition for partition in PARTITIONS if after[partition] != before[partition]]
    assert len(moved) == 2, "that one, and one in its place"


def test_where_none_can_serve_it_nothing_changes() -> None:
    everything = frozenset(PARTITIONS)
    before = balance({"one": Wish(everything), "two": Wish(everything)}, {})
    neither = Wish(everything, unable=frozenset(PARTITIONS[:3]))

    assert balance({"one": neither, "two": neither}, before) == before


# handing over


@given(applications)
def test_nothing_is_dealt_to_two(applications: Applications) -> None:
    assigned = [partition for partitions in assign(applications).values() for partition in partitions]

    assert len(assigned) == len(set(assigned))


@given(applications)
def test_what_somebody_claims_is_dealt_to_nobody_else_but_a_claimant_of_a_newer_generation(
    applications: Applications,
) -> None:
    for member, partitions in assign(applications).items():
        for partition in partitions:
            for other, application in applications.items():
                if other != member and partition in application.claims:
                    assert partition in applications[member].claims
                    assert applications[member].generation > application.generation


def settled(applications: Applications, rounds: int = 4) -> dict[str, Application[TopicPartition]]:
    """The partitions that each member owns after so many rounds, in each of which all follow their assignment."""
    now = dict(applications)
    for generation in range(10, 10 + rounds):
        assigned = assign(now)
        now = {m: replace(a, claims=frozenset(assigned[m]), generation=generation) for m, a in now.items()}
    return now


@given(applications)
def test_all_that_is_wanted_is_soon_held_and_then_nothing_moves(applications: Applications) -> None:
    four, five = settled(applications, 4), settled(applications, 5)

    wanted = frozenset[TopicPartition]().union(*(each.wish.wants for each in applications.values()))
    held = [partition for each in four.values() for partition in each.claims]
    assert sorted(held) == sorted(wanted)
    assert {m: each.claims for m, each in four.items()} == {m: each.claims for m, each in five.items()}


def test_a_deployment_of_its_own_takes_over_its_receiver_and_the_pool_takes_it_back() -> None:
    everything, mine = Wish(frozenset(PARTITIONS)), frozenset(PARTITIONS[:1])
    pool = settled({"p": Application(everything), "q": Application(everything)})
    owner = next(member for member, each in pool.items() if mine <= each.claims)

    first = assign({**pool, "own": Application(Wish(mine, named=True))})
    assert first["own"] == [], "its owner has to give it up first"
    assert not mine & set(first[owner])
    then = settled({**pool, "own": Application(Wish(mine, named=True))})
    assert then["own"].claims == mine
    for member in pool:
        assert pool[member].claims - mine <= then[member].claims | then["p"].claims | then["q"].claims

    del then["own"]
    back = settled(then)
    assert back["p"].claims | back["q"].claims == frozenset(PARTITIONS)


@given(st.integers(2, 6))
def test_a_member_that_comes_and_goes_takes_nothing_from_the_others_that_they_would_not_have_back(count: int) -> None:
    """Those who stay keep all but the share of the one who came, and when it is gone, only that share moves."""
    everything = Wish(frozenset(TopicPartition("t", n) for n in range(60)))
    staying = settled({f"m{n}": Application(everything) for n in range(count)})

    with_guest = settled({**staying, "guest": Application(everything)})
    lost = sum(len(staying[m].claims - with_guest[m].claims) for m in staying)
    assert lost == len(with_guest["guest"].claims)
    del with_guest["guest"]
    again = settled(with_guest)
    assert all(with_guest[m].claims <= again[m].claims for m in staying)


def test_two_equal_claims_are_dealt_to_neither_until_one_gives_up() -> None:
    wish = Wish(frozenset(PARTITIONS[:1]))
    both = {m: Application(wish, wish.wants, 7) for m in ("one", "two")}

    assert assign(both) == {"one": [], "two": []}
    assert assign({**both, "two": Application(wish)}) == {"one": PARTITIONS[:1], "two": []}


def test_thousands_of_receivers_are_dealt_evenly() -> None:
    everything = Wish(frozenset(TopicPartition(f"to_receiver_r{n}", 0) for n in range(5_000)))
    pool = {f"m{n:02d}": Application(everything) for n in range(20)}
    assigned = assign(pool)
    assert {len(each) for each in assigned.values()} == {250}
