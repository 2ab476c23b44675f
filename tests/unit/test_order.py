"""What may start now: FIFO per order key, caps per endpoint, waits; whatever happens in whatever order."""

from collections import Counter, defaultdict
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from relay.domain.receiver import BatchPolicy, BreakerPolicy
from relay.engine.order import Order
from relay.engine.policy import BudgetShare, ByteBudget
from relay.engine.window_shares import WindowShares
from relay.engine.work import EndpointRules, Work
from relay.log.port import Record
from relay.state.attempts import Limits

LIMITS = Limits(0.0, 1.0, BreakerPolicy(), 1.0)
CAPS = {"r:one": 1, "r:two": 2, "r:many": 50}
OWNERS = {"r:one": "owner", "r:two": "owner"}
KEYS: tuple[tuple[bytes | None, str], ...] = (
    (b"a", "r:one"),
    (b"b", "r:one"),
    (b"c", "r:two"),
    (b"d", "r:many"),
    (None, "r:two"),
    (None, "r:many"),
)


def _work(number: int, queue: bytes | None, endpoint_id: str) -> Work:
    work = Work(Record("t", 0, number, None, b"", (), 0), None, 0, queue, endpoint_id)
    work.rules = EndpointRules(LIMITS, CAPS[endpoint_id], owner=OWNERS.get(endpoint_id))
    return work


def _free(order: Order[Work]) -> int:
    return 0 if order.shares is None else order.shares.free


class Orders(RuleBasedStateMachine):
    """Runs an Order beside a list of who is where."""

    def __init__(self) -> None:
        super().__init__()
        self.order: Order[Work] = Order()
        self.now = 0.0
        self.number = 0
        self.waiting: list[Work] = []
        self.flying: list[Work] = []
        self.out: list[Work] = []
        self.closed: dict[str, float] = defaultdict(float)

    @rule(key=st.sampled_from(KEYS), due_in=st.sampled_from([0.0, 0.0, 3.0]))
    def add(self, key: tuple[bytes | None, str], due_in: float) -> None:
        work = _work(self.number, *key)
        work.due = self.now + due_in
        self.number += 1
        self.order.add(work, self.now)
        self.waiting.append(work)

    @rule(limit=st.integers(1, 5))
    def take(self, limit: int) -> None:
        self._taken(self.order.take(self.now, limit), limit)

    def _taken(self, taken: list[Work], limit: int) -> None:
        assert len(taken) <= limit
        for work in taken:
            assert work.taken
            assert work.due <= self.now
            assert self.closed[work.endpoint_id] <= self.now
            self.waiting.remove(work)
            if work.queue is not None:
                line = [each.record.offset for each in (*self.waiting, *self.flying) if each.queue == work.queue]
                assert all(work.record.offset < other for other in line), "an earlier one of its key is here"
            self.flying.append(work)
        if len(taken) < limit:
            self._nothing_is_left_behind()

    @rule(limit=st.integers(1, 5), every=st.integers(1, 3))
    def take_over(self, limit: int, every: int) -> None:
        """A finished work needs no endpoint_id; it ends at once, and the next of its key takes its place."""
        taken = self.order.take_over(lambda work: work.record.offset % every == 0, limit)
        assert len(taken) <= limit
        for work in taken:
            assert work.taken
            assert work.due <= self.now
            assert work.record.offset % every == 0
            line = [each.record.offset for each in (*self.waiting, *self.flying) if each.queue == work.queue]
            assert work.queue is None or work.record.offset == min(line), "an earlier one of its key is here"
        for work in taken:
            self.waiting.remove(work)
            self.order.finish(work, self.now)
            self.out.append(work)

    def _nothing_is_left_behind(self) -> None:
        """Every work that could have started did."""
        for work in self.waiting:
            if work.due > self.now or self.closed[work.endpoint_id] > self.now:
                continue
            if sum(each.endpoint_id == work.endpoint_id for each in self.flying) >= CAPS[
                work.endpoint_id
            ] or self._has_its_share(work):
                continue
            before = [each for each in (*self.waiting, *self.flying) if each.queue == work.queue and each is not work]
            assert work.queue is not None
            assert any(each.record.offset < work.record.offset for each in before)

    def _has_its_share(self, work: Work) -> bool:
        return False

    @precondition(lambda self: self.flying)
    @rule(pick=st.integers(0), due_in=st.sampled_from([0.0, 2.0, 5.0]))
    def hold(self, pick: int, due_in: float) -> None:
        work = self.flying.pop(pick % len(self.flying))
        self.order.hold(work, self.now + due_in, self.now)
        self.waiting.append(work)

    @precondition(lambda self: self.flying)
    @rule(pick=st.integers(0))
    def finish(self, pick: int) -> None:
        work = self.flying.pop(pick % len(self.flying))
        self.order.finish(work, self.now)
        self.out.append(work)

    @rule(endpoint_id=st.sampled_from(sorted(CAPS)), seconds=st.sampled_from([0.5, 4.0]))
    def close(self, endpoint_id: str, seconds: float) -> None:
        self.order.close(endpoint_id, self.now + seconds)
        self.closed[endpoint_id] = max(self.closed[endpoint_id], self.now + seconds)
        assert self.order.is_closed(endpoint_id, self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(pick=st.integers(0), stuck=st.booleans())
    def withdraw(self, pick: int, stuck: bool) -> None:
        heads = self.order.stuck(self.now) if stuck else self.order.held()
        if heads:
            head = heads[pick % len(heads)]
            self._withdrawn(self.order.withdraw(head), head.queue, first=head)

    @precondition(lambda self: self.flying)
    @rule(pick=st.integers(0))
    def withdraw_followers(self, pick: int) -> None:
        work = self.flying.pop(pick % len(self.flying))
        self.out.append(work)
        self._withdrawn(self.order.withdraw_followers(work), work.queue)

    @rule(enough=st.integers(0, 4))
    def withdraw_longest(self, enough: int) -> None:
        out = self.order.withdraw_longest(enough)
        lines = {work.queue for work in out}
        for queue in lines:
            assert [work for work in self.flying if work.queue == queue], "its head is in flight, and stays"
            self._withdrawn([work for work in out if work.queue == queue], queue)
        if len(out) < enough:
            for work in self.waiting:
                same = [each for each in self.flying if each.queue == work.queue]
                assert work.queue is None or not same, "not enough, and there was more"

    def _withdrawn(self, line: list[Work], queue: bytes | None, first: Work | None = None) -> None:
        """The whole rest of an order key, in order."""
        if queue is not None:
            key = [work for work in self.waiting if work.queue == queue]
            assert line == sorted(key, key=lambda work: work.record.offset)
        if first is not None:
            assert line[0] is first
        for work in line:
            self.waiting.remove(work)
            self.out.append(work)

    @invariant()
    def caps_are_kept_and_everybody_is_somewhere(self) -> None:
        for endpoint_id, cap in CAPS.items():
            assert sum(work.endpoint_id == endpoint_id for work in self.flying) <= cap
        assert self.order.waiting == len(self.waiting)
        assert len(self.waiting) + len(self.flying) + len(self.out) == self.number

    @invariant()
    def everybody_waits_for_something(self) -> None:
        waits = self.order.waits(self.now)
        assert waits.total() == self.order.waiting
        assert min(waits.values(), default=0) >= 0
        if not self.flying and not any(until > self.now for until in self.closed.values()):
            assert waits["rate"] == waits["max_in_flight"] == 0

    @invariant()
    def it_says_when_to_look_again(self) -> None:
        later = [work.due for work in self.order.held()]
        if later:
            due = self.order.next_due()
            assert due is not None
            assert due <= min(later)

    def teardown(self) -> None:
        """Time heals: everything gets its turn."""
        for _ in range(self.number * 2 + 20):
            self.now += 5.0
            self._taken(self.order.take(self.now, 1000), 1000)
            for work in self.flying:
                self.order.finish(work, self.now)
            self.out += self.flying
            self.flying.clear()
        assert self.waiting == []
        assert len(self.out) == self.number


Orders.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestOrders = Orders.TestCase


class SharedOrders(Orders):
    """The same, in a lane whose endpoints and owners share its window."""

    def __init__(self) -> None:
        super().__init__()
        self.order = Order(WindowShares(6))

    def _has_its_share(self, work: Work) -> bool:
        """Only an owner with nothing in flight may always have one more."""
        own = OWNERS.get(work.endpoint_id, work.endpoint_id)
        return any(OWNERS.get(each.endpoint_id, each.endpoint_id) == own for each in self.flying)


SharedOrders.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestSharedOrders = SharedOrders.TestCase


@pytest.fixture
def order() -> Order[Work]:
    return Order()


def test_endpoints_take_turns(order: Order[Work]) -> None:
    for number in range(6):
        order.add(_work(number, None, "r:many"), 0.0)
    order.add(_work(6, None, "r:two"), 0.0)
    assert "r:two" in {work.endpoint_id for work in order.take(0.0, 2)}


@pytest.mark.parametrize(("endpoints", "each"), [(1, 12), (2, 8), (3, 6), (5, 4), (24, 1), (30, 1)])
def test_an_endpoint_has_no_more_in_flight_than_are_free_in_the_window(endpoints: int, each: int) -> None:
    order: Order[Work] = Order(WindowShares(24))
    for number in range(endpoints * 24):
        work = _work(number, None, "r:many")
        work.endpoint_id = f"r:{number % endpoints}"
        order.add(work, 0.0)
    taken = order.take(0.0, 1_000)
    assert Counter(work.endpoint_id for work in taken) == {f"r:{n}": each for n in range(endpoints)}
    assert len(order.stuck(0.0)) == order.waiting, "so they can be parked"
    for ended in range(endpoints * 24):  # nothing that waits is forgotten
        order.finish(taken[ended], 0.0)
        taken += order.take(0.0, 1_000)
    assert order.waiting == 0
    assert _free(order) == 24


@pytest.mark.parametrize(("endpoints", "each"), [(1, 6), (2, 4), (5, 2), (20, 1)])
def test_an_endpoint_has_no_more_bytes_in_flight_than_are_free_in_the_memory(endpoints: int, each: int) -> None:
    budget = ByteBudget(26_000)  # half of it is for one lane
    shares = WindowShares(1_000, BudgetShare(budget))
    order: Order[Work] = Order(shares)
    for number in range(endpoints * 10):
        work = _work(number, None, "r:many")
        work.record = structs.replace(work.record, value=bytes(1_000))
        work.endpoint_id = f"r:{number % endpoints}"
        order.add(work, 0.0)
    taken = order.take(0.0, 1_000)
    assert Counter(work.endpoint_id for work in taken) == {f"r:{n}": each for n in range(endpoints)}
    for ended in range(endpoints * 10):
        order.finish(taken[ended], 0.0)
        taken += order.take(0.0, 1_000)
    assert order.waiting == 0
    assert shares.free_size == 13_000


@pytest.mark.parametrize("size", [0, 1_000])
@pytest.mark.parametrize("endpoints", [8, 40])
def test_an_owner_leaves_a_quarter_of_the_lane_to_others_however_many_endpoints_it_has(
    endpoints: int, size: int
) -> None:
    window, budget = (1_000, 48_000) if size else (24, 0)
    shares = WindowShares(window, BudgetShare(ByteBudget(budget)) if size else None)
    order: Order[Work] = Order(shares)
    for number in range(endpoints * 4):
        work = _work(number, None, "r:two")
        work.record = structs.replace(work.record, value=bytes(size))
        work.endpoint_id = f"r:{number % endpoints}"
        order.add(work, 0.0)
    taken = order.take(0.0, 1_000)
    assert 15 <= len(taken) <= 18
    neighbour = _work(1_000, None, "r:many")
    order.add(neighbour, 0.0)
    assert order.take(0.0, 1_000) == [neighbour]
    for work in taken:
        order.finish(work, 0.0)
        taken += order.take(0.0, 1_000)
    assert len(taken) == endpoints * 4
    order.finish(neighbour, 0.0)
    assert shares.free == window


def test_parked_records_take_half_of_the_free_memory() -> None:
    memory = BudgetShare(ByteBudget(26_000))
    shares = WindowShares(1_000, memory)
    assert shares.room == 6_500
    work = _work(0, None, "r:many")
    work.record = structs.replace(work.record, value=bytes(3_000))
    memory.take(3_000)
    assert shares.room == 3_500
    shares.take(work)
    assert shares.room == 5_000
    memory.take(5_000)
    assert shares.room == 0


def test_who_had_its_share_may_have_more_when_others_end() -> None:
    order: Order[Work] = Order(WindowShares(9))
    works = [_work(number, None, "r:many") for number in range(9)]
    for number, work in enumerate(works):
        work.endpoint_id = "r:slow" if number < 6 else "r:quick"
        order.add(work, 0.0)
    taken = order.take(0.0, 9)
    assert Counter(work.endpoint_id for work in taken) == {"r:slow": 3, "r:quick": 3}
    for work in taken:
        if work.endpoint_id == "r:quick":
            order.finish(work, 0.0)
    assert order.take(0.0, 9) == works[3:5]


def test_works_that_share_a_request_count_each() -> None:
    order: Order[Work] = Order(WindowShares(12))
    for number in range(12):
        work = _work(number, None, "r:many")
        work.rules = replace(work.rules or EndpointRules(LIMITS, 50), batch=BatchPolicy(3, 1_000, 0.0))
        order.add(work, 0.0)
    taken = order.take(0.0, 12)
    assert (len(taken), _free(order)) == (6, 6)
    for work in taken:
        order.finish(work, 0.0)
    assert (len(order.take(0.0, 12)), _free(order)) == (6, 6)


def test_what_may_go_on_at_once_has_not_lost_its_turn(order: Order[Work]) -> None:
    """As when the rate allowed some of those that were taken, and not the others."""
    works = [_work(number, None, "r:two") for number in range(5)]
    for work in works:
        order.add(work, 0.0)
    assert order.take(0.0, 5) == works[:2]
    for work in reversed(works[:2]):
        order.hold(work, 0.0, 0.0)
    assert order.take(0.0, 5) == works[:2]


def test_what_is_over_passes_all_others_that_wait_for_a_closed_endpoint(order: Order[Work]) -> None:
    works = [_work(number, b"a" if number > 5 else None, "r:two") for number in range(9)]
    order.close("r:two", 5.0)
    for work in works:
        order.add(work, 0.0)
    assert order.take(0.0, 10) == []
    assert order.take_over(lambda work: False, 10) == []
    for moment in (5.0, 16.0, 17.0):
        for work in order.take(moment, 2):
            order.hold(work, moment, moment)
        order.close("r:two", moment + 10.0)
    ended = []
    while over := order.take_over(lambda work: work.record.offset > 3, 10):
        ended += over
        for work in over:
            order.finish(work, 17.0)
    assert ended == works[4:]
    assert order.waiting == 4


def test_what_is_withdrawn_from_a_line_leaves_none_in_flight_that_comes_after_it(order: Order[Work]) -> None:
    """One of a batch asks its receiver about an earlier attempt, while those before it wait to be sent again."""
    works = [_work(number, b"a", "r:two") for number in range(4)]
    rules = replace(works[0].rules or EndpointRules(LIMITS, 2), batch=BatchPolicy(3, 1_000, 0.0))
    for work in works:
        work.rules = rules
        order.add(work, 0.0)
    assert order.take(0.0, 9) == works[:3]
    order.hold(works[1], 20.0, 0.0)
    order.hold(works[0], 1.0, 0.0)
    assert order.take(2.0, 9) == works[:1]
    assert order.withdraw_longest(9) == works[3:], "the second one would be sent after the third"


def test_idle_endpoints_are_forgotten(order: Order[Work]) -> None:
    """Millions of them pass through a shared lane."""
    for number in range(100):
        work = _work(number, None, "r:many")
        work.endpoint_id = f"r:{number}"
        order.add(work, 0.0)
        order.close(work.endpoint_id, 1.0)
    for work in order.take(2.0, 1000):
        order.finish(work, 2.0)
    assert not order._endpoints


def test_what_each_waits_for(order: Order[Work]) -> None:
    for number in range(3):
        order.add(_work(number, b"a", "r:one"), 0.0)
    for number in range(3, 6):
        order.add(_work(number, None, "r:two"), 0.0)
    assert order.waits(0.0) == {"turn": 4, "order": 2}
    [first, *two] = order.take(0.0, 3)
    assert [work.endpoint_id for work in (first, *two)] == ["r:one", "r:two", "r:two"]
    assert order.waits(0.0) == {"max_in_flight": 1, "order": 2}
    first.held_for = "in_doubt"
    order.hold(first, 5.0, 0.0)
    order.close("r:two", 9.0, "breaker")
    order.close("r:two", 8.0, "rate")
    assert order.waits(0.0) == {"in_doubt": 1, "breaker": 1, "order": 2}
    order.close("r:two", 10.0, "offline")
    assert order.waits(0.0)["offline"] == 1
