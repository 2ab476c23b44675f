"""A consumer that has stopped fetching is noticed within a minute; one that waits, or was not asked, is not accused."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.errors import ConsumerBroken
from relay.log.kafka import membership
from relay.log.kafka.membership import Progress
from relay.log.kafka.watchdog import Watchdog
from relay.log.port import TopicPartition

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
NOTICED_S = 60.0


class Client:
    """Stands for the library's consumer: `seen` is what its private parts would tell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dead: str | None = None
        self.seen = {PLACE: Progress(5, 5, 1), OTHER: Progress(5, 5, 1)}
        monkeypatch.setattr(membership, "dead_task", lambda _: self.dead)
        monkeypatch.setattr(membership, "progress", lambda _, partition: self.seen[partition])
        self.inner: Any = SimpleNamespace()

    def moves(self, place: TopicPartition, second: int) -> None:
        self.seen[place] = Progress(5 + second, 5 + second, second)

    def answered(self, place: TopicPartition, second: int) -> None:
        """The broker said that there is nothing new."""
        self.seen[place] = self.seen[place]._replace(answered=second)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def noticed(
    watchdog: Watchdog,
    client: Client,
    start: int,
    end: int,
    *,
    busy: bool = False,
    ready: Sequence[TopicPartition] = (PLACE, OTHER),
) -> int | None:
    """The second at which it is said; a poll looks each second, as the runner's do."""
    for second in range(start, end):
        if busy:
            client.moves(OTHER, second)
        else:
            client.answered(OTHER, second)
        try:
            watchdog.check(client.inner, ready, float(second))
        except ConsumerBroken:
            return second
    return None


def test_a_dead_task_is_noticed_at_once(client: Client) -> None:
    client.dead = "fetch"
    with pytest.raises(ConsumerBroken, match="g: the client's fetch task is dead"):
        Watchdog("g").check(client.inner, [], 0.0)


@pytest.mark.parametrize("busy", [False, True])
def test_a_partition_that_is_not_asked_for_is_noticed_within_a_minute(client: Client, busy: bool) -> None:
    second = noticed(Watchdog("g"), client, 0, 200, busy=busy)
    assert second is not None
    assert second <= NOTICED_S


@pytest.mark.parametrize("behind", [Progress(5, 9, 1), Progress(None, None, 1)])
def test_answers_do_not_help_where_records_do_not_come(client: Client, behind: Progress) -> None:
    watchdog = Watchdog("g")
    for second in range(200):
        client.seen[PLACE] = behind._replace(answered=second)
        client.answered(OTHER, second)
        try:
            watchdog.check(client.inner, [PLACE, OTHER], float(second))
        except ConsumerBroken:
            assert second <= NOTICED_S
            return
    raise AssertionError("not noticed")


def test_it_is_said_anew_after_another_while(client: Client) -> None:
    watchdog = Watchdog("g")
    first = noticed(watchdog, client, 0, 200)
    assert first is not None
    second = noticed(watchdog, client, first + 1, 400)
    assert second is not None
    assert 40 < second - first <= NOTICED_S


def test_who_gets_answers_is_well(client: Client) -> None:
    watchdog = Watchdog("g")
    for second in range(1000):
        client.answered(PLACE, second)
        client.answered(OTHER, second)
        watchdog.check(client.inner, [PLACE, OTHER], float(second))


def test_a_member_without_an_assignment_is_noticed_within_a_minute(client: Client) -> None:
    watchdog = Watchdog("g")
    watchdog.unassigned(0.0)
    second = noticed(watchdog, client, 0, 200, ready=())
    assert second is not None
    assert second <= NOTICED_S
    watchdog = Watchdog("g")
    watchdog.unassigned(0.0)
    watchdog.assigned()
    for second in range(200):
        watchdog.check(client.inner, [], float(second))


@given(st.lists(st.integers(16, 1000), min_size=1, max_size=20))
def test_when_nobody_polled_nothing_follows(pauses: list[int]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        client, watchdog, now = Client(monkeypatch), Watchdog("g"), 0.0
        for pause in pauses:
            watchdog.check(client.inner, [PLACE], now)
            now += pause
