"""How fast records pass, and who serves a lane: pure."""

import pytest

from relay.api.overview.snapshot import Passed, counted, passed, rates
from relay.domain.coordinate import Coordinate
from relay.domain.topics import Topics
from relay.incidents.stuck import why_stuck
from relay.log.port import Backlog, TopicPartition
from relay.state.lanes import LaneNow, lanes_of, to_be_read
from relay.state.port import FailedEntry
from relay.state.read_model import UNSERVED_S, RowDetails, Served
from relay.state.rows import Row, Stage
from tests.expecting import present

NOW = 1_700_000_000.0
TOPICS = Topics("t-")


def lane(topic: str = "t-to_receiver_ci", partition: int = 0, *, seen_s: float | None = 1.0, end: int = 10) -> LaneNow:
    backlog = Backlog("t-relay.to-receiver", TopicPartition(topic, partition), 0, end, 4)
    return LaneNow(backlog, "to-receiver", "ci", None if seen_s is None else Served(ago_s=seen_s))


@pytest.mark.parametrize(
    ("watched", "why"),
    [
        (RowDetails(Row(Stage.ENQUEUED, attempts=2, due_in_s=1.0), detail="500"), "attempt 2 did not succeed: 500"),
        (RowDetails(Row(Stage.ENQUEUED, attempts=1, due_in_s=90.0), detail="500"), "attempt 1 did not succeed: 500"),
        (RowDetails(Row(Stage.SENDING, attempts=3), under_way=True, detail="500"), "attempt 2 did not succeed: 500"),
        (RowDetails(Row(Stage.SENDING, attempts=2)), "it is unknown whether attempt 2 arrived"),
        (RowDetails(Row(Stage.ENQUEUED, attempts=1, due_in_s=1.0), detail="500"), None),
        (RowDetails(Row(Stage.SENDING, attempts=2), under_way=True), None),
        (RowDetails(Row(Stage.ENQUEUED)), None),
        (RowDetails(Row(Stage.AWAITING, attempts=5, due_in_s=900.0)), None),
        (RowDetails(Row(Stage.DONE, attempts=5)), None),
    ],
)
def test_a_head_holds_others_up_when_it_fails_again_and_again_or_for_long(watched: RowDetails, why: str | None) -> None:
    assert why_stuck(watched) == why


def test_who_serves_a_lane_and_what_is_in_flight_is_as_of_a_sign_that_is_fresh() -> None:
    group = "t-relay.to-receiver"
    backlogs = [Backlog(group, TopicPartition("t-to_receiver_ci", n), 0, 3, 1) for n in range(3)]
    signs = [
        Served((), "host-1-a", 5, ago_s=1.0),
        Served((), "host-2-b", 7, ago_s=UNSERVED_S + 1),
        Served(ago_s=1.0),
    ]
    found = lanes_of(TOPICS, backlogs, signs)
    assert [(one.process, one.in_flight) for one in found] == [("host-1-a", 5), (None, 0), (None, 0)]


def test_a_lane_belongs_to_a_receiver_or_to_many() -> None:
    group = "t-relay.to-receiver"
    backlogs = [
        Backlog(group, TopicPartition("t-to_receiver_ci", 0), 0, 3, 1),
        Backlog(group, TopicPartition("t-to_receiver_shared", 0), 0, 3, None),
        Backlog("t-relay.from-sender", TopicPartition("t-from_sender", 0), 5, 9, 2),
    ]
    found = lanes_of(TOPICS, backlogs, [Served(ago_s=UNSERVED_S), Served(ago_s=UNSERVED_S + 1), None])
    assert [(one.stage, one.receiver, one.lag, one.served) for one in found] == [
        ("to_receiver", "ci", 2, True),
        ("to_receiver", None, 3, False),
        ("from_sender", None, 4, False),
    ]
    assert to_be_read(found) == [found[1], found[0]]


def test_a_rate_is_what_passed_between_two_looks() -> None:
    before, now = passed([lane(end=10)], 100.0), passed([lane(end=30)], 104.0)
    found = present(rates(before, now))
    assert (found.come["to_receiver"], found.done["to_receiver"], found.come["to_sender"]) == (5.0, 0.0, 0.0)
    assert rates(now, now) is None


def test_a_topic_made_anew_is_no_negative_rate() -> None:
    found = rates(Passed(0.0, {"to_sender": 9}, {"to_sender": 9}), Passed(1.0, {"to_sender": 1}, {"to_sender": 1}))
    assert present(found).come["to_sender"] == 0.0


def test_dead_letters_are_counted_by_receiver_and_reason() -> None:
    def letter(receiver: str, reason: str, ago_s: float) -> FailedEntry:
        return FailedEntry(receiver, Coordinate("failed_messages", 0, 0), NOW - ago_s, reason, "s", "m")

    letters = [
        letter("ci", "expired", 5),
        letter("cd", "gone", 9),
        letter("ci", "expired", 2),
        letter("ci", "gone", 4000),
    ]
    found = counted([*letters, letter("ci", "discarded", 1)], NOW)
    assert [(one.newest.receiver, one.newest.reason, one.number, one.newest.failed_at) for one in found] == [
        ("ci", "expired", 2, NOW - 2),
        ("cd", "gone", 1, NOW - 9),
    ]
