"""Which works share a request: the first ones of each order key, within the bounds."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from relay.domain.receiver import BatchPolicy, BreakerPolicy
from relay.engine.batch import waits_first
from relay.engine.order import Order
from relay.engine.work import EndpointRules, SharedRequest, Work
from relay.log.port import Record
from relay.state.attempts import Limits, LookedUp, Verdict, Wait
from relay.state.rows import Row, RowKey

LIMITS = Limits(0.0, 25.0, BreakerPolicy(), 20.0)


def rules(most: int = 4, size: int = 1_000_000, linger: float = 0.0, in_flight: int = 3) -> EndpointRules:
    return EndpointRules(LIMITS, in_flight, batch=BatchPolicy(most, size, linger))


def work(number: int, key: bytes | None, of: EndpointRules, size: int = 10) -> Work:
    record = Record("t", 0, number, None, b"x" * size, (), 0)
    return Work(record, RowKey("r:r", b"%12d" % number), 0, key, "r:r", rules=of)


def waiting(count: int, **of: Any) -> tuple[Order[Work], list[Work]]:
    """Works of one key that wait for their turn. `of`: their rules."""
    order: Order[Work] = Order()
    works = [work(n, b"a", rules(**of)) for n in range(count)]
    for each in works:
        order.add(each, 0.0)
    return order, works


def numbers(works: list[Work]) -> list[int]:
    return [each.record.offset for each in works]


def test_the_works_of_a_key_go_together_and_the_next_ones_when_they_have_ended() -> None:
    order, works = waiting(6)
    assert numbers(order.take(0.0, 100)) == [0, 1, 2, 3]
    for each in works[:3]:
        order.finish(each, 0.0)
    assert order.take(0.0, 100) == []
    order.finish(works[3], 0.0)
    assert numbers(order.take(0.0, 100)) == [4, 5]


def test_one_that_is_held_goes_again_before_all_later_ones() -> None:
    order, works = waiting(6)
    order.take(0.0, 100)
    order.finish(works[0], 0.0)
    order.hold(works[1], 5.0, 0.0)
    order.finish(works[2], 0.0)
    order.hold(works[3], 3.0, 0.0)
    assert order.take(4.0, 100) == []
    assert numbers(order.take(5.0, 100)) == [1, 3, 4, 5]


def test_a_later_one_that_waits_for_longer_does_not_go_early() -> None:
    order, works = waiting(5)
    order.take(0.0, 100)
    order.hold(works[0], 1.0, 0.0)
    order.hold(works[1], 1.0, 0.0)
    order.hold(works[2], 9.0, 0.0)
    order.finish(works[3], 0.0)
    assert numbers(order.take(1.0, 100)) == [0, 1]


def test_works_that_wait_are_back_in_their_keys_before_others_of_the_call_go_on() -> None:
    works = [work(n, b"a", rules()) for n in range(4)]
    for each in works[:3]:
        each.batch = SharedRequest(3)
    verdicts: list[Verdict] = [LookedUp(Row()), Wait(0.0, "settling"), Wait(1.0, "rate"), Wait(1.0, "rate")]
    waits, others, of_others = waits_first(works, verdicts)
    assert [each.record.offset for each, _ in waits] == [2, 1], "the first one is put before the others last"
    assert numbers(others) == [0, 3]
    assert of_others == [verdicts[0], verdicts[3]]


def test_one_that_is_parked_takes_along_none_that_is_held_before_it() -> None:
    order, works = waiting(6)
    assert numbers(order.take(0.0, 100)) == [0, 1, 2, 3]
    order.hold(works[0], 1.0, 0.0)
    assert order.withdraw_followers(works[1]) == [], "some of its batch are in flight"
    assert order.withdraw_followers(works[2]) == []
    order.finish(works[3], 0.0)
    assert numbers(order.withdraw_stranded()) == [4, 5]
    assert (order.waiting, numbers(order.take(1.0, 100))) == (1, [0])
    order.finish(works[0], 1.0)
    assert order.waiting == 0


def test_one_that_is_parked_last_leaves_those_that_are_held_before_it() -> None:
    order, works = waiting(3, most=2)
    assert numbers(order.take(0.0, 100)) == [0, 1]
    order.hold(works[0], 0.0, 0.0)
    assert numbers(order.withdraw_followers(works[1])) == [2]
    order.add(work(3, b"a", rules(most=2)), 0.0)
    assert numbers(order.take(0.0, 100)) == [0, 3]


def test_a_batch_takes_one_place_in_flight_until_all_of_it_have_ended() -> None:
    order: Order[Work] = Order()
    works = [work(n, None, rules(in_flight=1)) for n in range(8)]
    for each in works:
        order.add(each, 0.0)
    first = order.take(0.0, 100)
    for each in first[:-1]:
        order.finish(each, 0.0)
        assert order.take(0.0, 100) == []
    order.finish(first[-1], 0.0)
    assert len(order.take(0.0, 100)) == 4


def test_a_batch_that_is_not_full_lingers_but_not_longer_and_a_full_one_does_not() -> None:
    order: Order[Work] = Order()
    for n in range(3):
        order.add(work(n, b"%d" % n, rules(linger=2.0)), 0.0)
    assert order.take(0.0, 100) == []
    assert order.next_due() == 2.0
    order.add(work(3, b"0", rules(linger=2.0)), 1.0)
    assert numbers(order.take(1.0, 100)) == [0, 3, 1, 2]
    order.add(work(4, b"x", rules(linger=2.0)), 1.5)
    assert order.take(1.9, 100) == []
    assert order.take(2.0, 100) == []
    assert numbers(order.take(3.9, 100)) == [4]


def test_what_was_rejected_together_goes_in_halves() -> None:
    order, _ = waiting(10, most=10, linger=9.0)
    for each in order.take(0.0, 100):
        each.batch_limit = 5
        order.hold(each, 0.0, 0.0)
    assert numbers(order.take(0.0, 100)) == [0, 1, 2, 3, 4]


def test_one_that_must_go_alone_ends_the_batch_before_it() -> None:
    order: Order[Work] = Order()
    works = [work(n, b"a", rules()) for n in range(4)]
    works[1].suspect = True
    works[3].shares = False
    for each in works:
        order.add(each, 0.0)
    for expected in ([0], [1], [2], [3]):
        taken = order.take(0.0, 100)
        assert numbers(taken) == expected
        order.finish(taken[0], 0.0)


keys = st.sampled_from([b"a", b"b", b"c", None])
fates = st.sampled_from(["end", "hold", "later", "reject", "stay"])


@given(
    st.lists(st.tuples(keys, st.integers(1, 300)), max_size=40),
    st.integers(1, 6),
    st.integers(1, 900),
    st.sampled_from([0.0, 2.0]),
    st.lists(fates, min_size=1, max_size=60),
)
def test_a_batch_has_a_prefix_of_each_key_within_the_bounds(
    items: list[tuple[bytes | None, int]], most: int, size: int, linger: float, ends: list[str]
) -> None:
    """Whatever becomes of each work of a batch."""
    of = rules(most, size, linger)
    order: Order[Work] = Order()
    works = [work(n, key, replace(of), bytes_) for n, (key, bytes_) in enumerate(items)]
    left: dict[bytes | None, list[Work]] = defaultdict(list)
    for each in works:
        order.add(each, 0.0)
        left[each.queue].append(each)
    now, fate, flying, ended = 0.0, 0, list[Work](), 0
    for _ in range(400):
        taken = order.take(now, 100)
        batches: dict[int, list[Work]] = defaultdict(list)
        for each in taken:
            assert each.batch is not None
            batches[id(each.batch)].append(each)
        for batch in batches.values():
            assert len(batch) <= most
            assert len(batch) == 1 or sum(each.post_bytes for each in batch) <= size
            for key in {each.queue for each in batch} - {None}:
                own = [each for each in batch if each.queue == key]
                assert left[key][: len(own)] == own, "a later one went without an earlier one"
        flying += taken
        places = {id(each.batch) for each in flying}
        assert len(places) <= 3
        staying: list[Work] = []
        for each in flying:
            what, fate = ends[fate % len(ends)], fate + 1
            if what == "stay" and _ < 200:
                staying.append(each)
            elif what == "end" or _ >= 200:
                left[each.queue].remove(each)
                order.finish(each, now)
                ended += 1
            else:
                each.batch_limit = max(1, most // 2) if what == "reject" else each.batch_limit
                order.hold(each, now + 3.0 if what == "later" else now, now)
        flying = staying
        now += 1.0
    assert ended == len(works)
    assert order.waiting == 0
