"""Records of one delivery and generation never run at once."""

import pytest

from relay.engine.lane import WorksByDelivery
from relay.engine.work import Work
from relay.log.port import Coordinate, Record
from relay.state.rows import RowKey


def _work(offset: int, digest: bytes | None, generation: int = 0, *, endpoint_id: str = "r:ci") -> Work:
    """Appended `offset` seconds after 1970 began."""
    row = None if digest is None else RowKey(endpoint_id, digest)
    return Work(Record("t", 0, offset, None, b"", (), offset * 1_000), row, generation, None, endpoint_id)


@pytest.fixture
def here() -> WorksByDelivery[Work]:
    return WorksByDelivery()


def test_the_later_ones_wait_and_leave_with_the_first(here: WorksByDelivery[Work]) -> None:
    first, second, third = (_work(offset, b"d") for offset in range(3))
    assert [here.add(work) for work in (first, second, third)] == [False, True, True]
    assert list(here) == [first]
    assert here.has_other(third)
    assert here.remove(first) == [second, third]
    assert not here.has_other(third)
    assert not here.add(_work(4, b"d")), "the next one is a first again"


def test_only_the_first_takes_them_along(here: WorksByDelivery[Work]) -> None:
    first, second, stranger = (_work(offset, b"d") for offset in range(3))
    here.add(first)
    here.add(second)
    assert here.remove(stranger) == []
    assert here.remove(first) == [second]


def test_another_generation_or_delivery_is_no_duplicate(here: WorksByDelivery[Work]) -> None:
    here.add(_work(0, b"d"))
    assert not here.add(_work(1, b"d", generation=1))
    assert not here.add(_work(2, b"e"))


def test_one_that_is_looked_up_again_is_not_its_own_duplicate(here: WorksByDelivery[Work]) -> None:
    """It left the memory as one, and stayed in the way of its parked copy until the process ended."""
    first = _work(0, b"d")
    here.add(first)
    assert not here.has_other(first)
    assert here.has_other(_work(1, b"d"))


def test_works_without_a_row_are_nobodys_duplicates(here: WorksByDelivery[Work]) -> None:
    works = [_work(offset, None) for offset in range(2)]
    assert not any(here.add(work) for work in works)
    assert here.remove(works[0]) == []


def test_the_oldest_of_each_endpoint(here: WorksByDelivery[Work]) -> None:
    works = [
        _work(n, b"%d" % n, endpoint_id=endpoint_id)
        for n, endpoint_id in enumerate(("r:ci", "r:ci", "r:cd", "r:ce", "r:cf"))
    ]
    for work in works:
        here.add(work)
    assert here.oldest(3_000, 9) == [works[0], works[2], works[3]]
    assert here.oldest(3_000, 2) == [works[0], works[2]]
    here.remove(works[0])
    assert here.oldest(9_000, 9) == works[1:]
    assert here.oldest(0, 9) == []


def test_the_works_of_each_endpoint_are_counted(here: WorksByDelivery[Work]) -> None:
    works = [
        _work(n, b"%d" % n, endpoint_id=endpoint_id)
        for n, endpoint_id in enumerate(("r:ci", "r:cd", "r:cd", "r:ce", "r:ce"))
    ]
    works[-1].parked_at = Coordinate("parked_messages", 0, 0)  # a reference counts it
    for work in works:
        here.add(work)
    assert here.counts(9) == {"r:cd": 2, "r:ci": 1, "r:ce": 1}
    assert here.counts(1) == {"r:cd": 2}
