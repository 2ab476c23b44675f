"""Seats are given out fairly, and never more than there are."""

from collections import Counter, deque
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from relay.domain.fair_share import FairShare

PARTIES = "abcdefgh"
steps = st.lists(st.tuples(st.sampled_from(["ask", "ask", "leave", "give up"]), st.sampled_from(PARTIES)), max_size=120)


class Room:
    """Asks for seats, and knows who has them."""

    def __init__(self, most: int) -> None:
        self.share = FairShare(most)
        self.seated: Counter[str] = Counter()
        self.waiting: deque[list[str]] = deque()  # the party of each, or none any more

    def ask(self, party: str) -> bool:
        if self.share.take(party):
            self.seated[party] += 1
            return True
        waiting = [party]
        self.waiting.append(waiting)

        def sit() -> bool:
            self.waiting.remove(waiting)
            self.seated.update(waiting)
            return bool(waiting)

        self.share.wait(party, sit)
        return False

    def leave(self, party: str) -> None:
        if self.seated[party]:
            self.seated[party] -= 1
            self.share.leave(party)
            self.share.call_up()

    def give_up(self, party: str) -> None:
        for waiting in self.waiting:
            if waiting == [party]:
                waiting.clear()
                return

    def fill(self, party: str) -> int:
        while self.ask(party):
            pass
        return self.seated[party]


def test_one_alone_gets_a_part_and_leaves_a_seat_for_each_of_many() -> None:
    room = Room(400)
    assert room.fill("a") == 100
    newcomers = [f"n{number}" for number in range(200)]
    assert all(room.ask(name) for name in newcomers)


def test_parties_that_hang_get_the_same_and_leave_half_of_the_seats() -> None:
    room = Room(400)
    hanging = [f"h{number}" for number in range(60)]
    for _ in range(20):
        for name in hanging:
            room.ask(name)
    assert {room.seated[name] for name in hanging} <= {3, 4}
    assert room.seated.total() <= 400 - 190


def test_who_has_the_fewest_comes_first() -> None:
    room = Room(8)
    room.fill("a")
    room.fill("b")
    assert [room.ask(name) for name in "cdefgh"] == [True] * 5 + [False]
    room.leave("a")
    assert (room.seated["a"], room.seated["h"]) == (1, 1)


def test_one_at_a_time_where_it_is_asked_for() -> None:
    share = FairShare(100)
    called: list[str] = []

    def sit(name: str) -> bool:
        called.append(name)
        return True

    for name in "abc":
        share.wait(name, partial(sit, name))
    share.call_up(1)
    assert called == ["a"]
    share.call_up()
    assert called == ["a", "b", "c"]
    assert not share.waiting


@given(st.integers(1, 12), steps)
def test_never_too_many_and_nobody_waits_in_vain(most: int, steps: list[tuple[str, str]]) -> None:
    room = Room(most)
    for step, party in steps:
        match step:
            case "ask":
                room.ask(party)
            case "leave":
                room.leave(party)
            case _:
                room.give_up(party)
        assert room.seated.total() <= most
        wanting = {waiting[0] for waiting in room.waiting if waiting}
        assert not (room.seated.total() < most and any(room.seated[name] == 0 for name in wanting))
    while room.seated.total():
        for party in PARTIES:
            room.leave(party)
    assert not any(room.waiting)
    assert room.seated.total() == 0
