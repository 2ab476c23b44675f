"""Subscription data of group members: nothing is lost in encoding, and thousands of receivers take little room."""

from hypothesis import given
from hypothesis import strategies as st

from relay.log.groups import MemberSubscription, assign
from relay.log.kafka.member_metadata import MemberMetadata, decode_subscription, encode_assignment, fingerprint
from relay.log.port import TopicPartition

LARGEST_RECORD = 512 * 1024
RECEIVERS, MEMBERS = 5_000, 20

names = st.text("abcdefgh_-", min_size=1, max_size=30)
topics = st.dictionaries(names, st.integers(1, 40), max_size=20)


@given(topics, st.booleans(), st.integers(0, 9), st.integers(-1, 2**31 - 1), st.data())
def test_a_subscription_comes_back_as_it_was(
    topics: dict[str, int], named: bool, rank: int, generation: int, data: st.DataObject
) -> None:
    everything = [TopicPartition(name, n) for name, count in topics.items() for n in range(count)]
    some = st.frozensets(st.sampled_from(everything)) if everything else st.just(frozenset[TopicPartition]())
    owned, unable = data.draw(some), data.draw(some)

    applied = decode_subscription(MemberMetadata(topics, unable).encode(owned, generation, named=named, rank=rank))

    wants = frozenset((fingerprint(topic), n) for topic, n in everything)
    held = frozenset((fingerprint(topic), n) for topic, n in owned)
    left = frozenset((fingerprint(topic), n) for topic, n in unable)
    assert applied == MemberSubscription(wants, named, rank, left, held, generation)


@given(topics)
def test_what_is_dealt_comes_back_as_what_the_member_wants(topics: dict[str, int]) -> None:
    wanted = MemberMetadata(topics)
    applied = decode_subscription(wanted.encode((), -1))
    strange = (fingerprint("of nobody here"), 0)

    assigned = encode_assignment([*assign({"m": applied})["m"], strange])

    assert wanted.partitions(assigned) == {
        TopicPartition(name, n) for name, count in topics.items() for n in range(count)
    }


def test_what_is_held_and_not_wanted_any_more_is_still_claimed() -> None:
    held = TopicPartition("gone", 3)
    applied = decode_subscription(MemberMetadata({"stays": 1}).encode([held], 5))
    assert applied.owned == {(fingerprint("gone"), 3)}


def test_thousands_of_receivers_fit_into_the_record_of_their_group() -> None:
    """Which holds of each member its subscription and what it was assigned."""
    known = MemberMetadata({f"to_receiver_customer-{n * 7919}-production": 1 for n in range(RECEIVERS)})
    first = {f"m{n}": decode_subscription(known.encode((), -1)) for n in range(MEMBERS)}
    held = {member: known.partitions(encode_assignment(places)) for member, places in assign(first).items()}
    assert sum(map(len, held.values())) == RECEIVERS

    applied = {member: known.encode(partitions, 7) for member, partitions in held.items()}
    assigned = assign({member: decode_subscription(data) for member, data in applied.items()})

    size = sum(map(len, applied.values())) + sum(len(encode_assignment(places)) for places in assigned.values())
    assert size < LARGEST_RECORD - MEMBERS * 500, "with what the broker writes of each member beside it"
