"""Eviction at the limits of the API's connections, compared with a naive model."""

from hypothesis import given
from hypothesis import strategies as st

from relay.api.connection_limiter import ConnectionLimiter, Seated

ADDRESSES = ("a", "b", "c", None)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(ADDRESSES)),
        st.tuples(st.sampled_from(("works", "waits", "leave")), st.integers(0, 40)),
    ),
    max_size=120,
)


class Naive:
    """A list of those that are in, in the order in which they began to wait."""

    def __init__(self, most: int, per_address: int, reserve: int) -> None:
        self.most, self.per_address, self.reserve = most, per_address, reserve
        self.address: dict[int, str | None] = {}
        self.extra: list[int] = []
        self.waiting: list[int] = []

    def enter(self, one: int, address: str | None) -> Seated[int] | None:
        same = [each for each, other in self.address.items() if other == address and address is not None]
        full_of_it = len(same) >= self.per_address
        closes = None
        if full_of_it or len(self.address) >= self.most:
            among = same if full_of_it else list(self.address)
            closes = next((each for each in self.waiting if each in among), None)
            if closes is None:
                return self.enter_reserve(one)
            self.leave(closes)
        self.address[one] = address
        self.waiting.append(one)
        return Seated(closes)

    def enter_reserve(self, one: int) -> Seated[int] | None:
        closes = None
        if len(self.extra) >= self.reserve:
            closes = next((each for each in self.waiting if each in self.extra), None)
            if closes is None:
                return None
            self.leave(closes)
        self.extra.append(one)
        self.waiting.append(one)
        return Seated(closes, reserve=True)

    def works(self, one: int) -> None:
        if one in self.waiting:
            self.waiting.remove(one)

    def waits(self, one: int) -> None:
        if (one in self.address or one in self.extra) and one not in self.waiting:
            self.waiting.append(one)

    def leave(self, one: int) -> None:
        self.works(one)
        self.address.pop(one, None)
        if one in self.extra:
            self.extra.remove(one)


@given(steps, st.integers(1, 6), st.integers(1, 4), st.integers(0, 2))
def test_the_one_that_has_waited_longest_gives_way(
    steps: list[tuple[str, int]], most: int, per_address: int, reserve: int
) -> None:
    seats, naive = (
        ConnectionLimiter[int](most=most, per_address=per_address, reserve=reserve),
        Naive(most, per_address, reserve),
    )
    for number, (step, argument) in enumerate(steps):
        if step == "enter":
            assert seats.enter(number, argument) == naive.enter(number, argument)  # type: ignore[arg-type]
        else:
            getattr(seats, step)(argument)
            getattr(naive, step)(argument)
        assert len(seats) == len(naive.address) + len(naive.extra) <= most + reserve
        assert all(seats.in_reserve(each) == (each in naive.extra) for each in range(number + 1))


def test_when_all_work_one_may_still_look_and_the_next_is_refused() -> None:
    seats = ConnectionLimiter[int](most=2, per_address=2, reserve=1)
    for number in (1, 2):
        seats.enter(number, "a")
        seats.works(number)
    assert seats.enter(3, "a") == Seated(None, reserve=True)
    assert seats.enter(4, "b") == Seated(3, reserve=True)  # nor may one that only waits keep that place
    seats.works(4)
    assert seats.enter(5, "b") is None
    seats.leave(1)
    assert seats.enter(6, "b") == Seated(None)
