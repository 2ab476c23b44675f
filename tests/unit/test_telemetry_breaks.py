"""Reports about a lane that a bug has ended: work, phase and event, in the log and in Sentry."""

import pytest

from relay.domain.errors import OffsetMissing
from relay.engine.observer import Observer
from relay.engine.phases import Event, IllegalTransition, Phase, advance
from relay.engine.quarantine import WorkerFault
from relay.engine.work import Work
from relay.log.port import Record, TopicPartition
from relay.telemetry.observer import TelemetryObserver
from relay.telemetry.sentry import SentryReporter
from tests.unit.test_outages import Rig, rig
from tests.unit.test_sentry import CANARY, DSN, Captured

__all__ = ["rig"]

LANE = TopicPartition("to_receiver_ci", 3)


@pytest.fixture
def sent(rig: Rig) -> Captured:
    """What goes to Sentry."""
    sent = Captured()
    sentry = SentryReporter(transport=sent)
    sentry.start(DSN, "test", "1")
    rig.observer = TelemetryObserver(rig.metrics, sentry, lambda: None)
    return sent


def _work() -> Work:
    return Work(Record(*LANE, 41, b"k", CANARY.encode(), (), 0), None, 0, None, "r:ci")


def test_an_illegal_transition_names_work_phase_and_event(rig: Rig, sent: Captured) -> None:
    work = _work()
    with pytest.raises(IllegalTransition) as raised:
        advance(work, Event.FIRST_LEFT, Phase.OVER)
    rig.observer.lane_broken(LANE, raised.value, work.record, 2)
    [said] = rig.lines()
    assert (said["event"], said["level"]) == ("lane_broken", "error")
    assert (said["topic"], said["partition"], said["offset"], said["times"]) == (*LANE, 41, 2)
    assert (said["phase"], said["work_event"]) == ("read", "first left")
    assert "to_receiver_ci/3/41" in said["error"]
    [event] = sent.events
    assert event["tags"] == {"page": "yes", "stage": "to_receiver_ci"}
    facts = {"partition": 3, "offset": 41, "phase": "read", "work_event": "first left", "times": 2}
    assert event["extra"] == {"suppressed": 0, **facts}
    assert CANARY not in sent.text


def test_a_lane_that_is_given_back_leaves_no_level(rig: Rig) -> None:
    """Another process has it, and its own."""
    rig.observer.lane(LANE, unfinished=7)
    assert list(rig.metrics.lane_window_records.every())
    rig.observer.lane(LANE, unfinished=None)
    assert not list(rig.metrics.lane_window_records.every())


def test_one_of_another_phase_is_another_one_to_sentry(rig: Rig, sent: Captured) -> None:
    for phase in (Phase.READ, Phase.WAITING, Phase.READ):
        work = _work()
        work.phase = phase
        with pytest.raises(IllegalTransition) as raised:
            advance(work, Event.FIRST_LEFT, Phase.OVER)
        rig.observer.lane_broken(LANE, raised.value, work.record, 1)
    assert [event["extra"]["phase"] for event in sent.events] == ["read", "waiting"]
    assert rig.value("relay_services_restarted_total", reason="lane_broken") == 3


def test_of_what_a_worker_raised_the_cause_is_told(rig: Rig, sent: Captured) -> None:
    try:
        raise WorkerFault(_work()) from ZeroDivisionError("a bug")
    except WorkerFault as error:
        rig.observer.lane_broken(LANE, error, None, 0)
    [said] = rig.lines()
    assert said["error"] == "ZeroDivisionError: a bug"
    assert said["offset"] is None
    assert [value["type"] for value in sent.events[0]["exception"]["values"]] == ["ZeroDivisionError"]


def test_whatever_the_engine_tells_is_told_on() -> None:
    told = {name for name, what in vars(Observer).items() if callable(what) and not name.startswith("_")}
    assert len(told) > 20
    assert told <= vars(TelemetryObserver).keys()


def test_records_that_were_deleted_unread_page_a_person_once_for_a_topic(rig: Rig, sent: Captured) -> None:
    rig.observer.service_failed("to-receiver", OffsetMissing("no record", [LANE, LANE._replace(partition=4)]), 1.0)
    assert rig.lines()[0]["event"] == "offset_missing"
    [event] = sent.events
    expected = {"reason": "offset_missing", "stage": "to_receiver_ci", "page": "yes"}
    assert event["tags"] == {**event["tags"], **expected}


def test_a_log_that_came_back_shorter_is_an_alarm_that_names_what_is_lost(rig: Rig, sent: Captured) -> None:
    rig.observer.service_failed("to-receiver", OffsetMissing("no record", [LANE], {LANE: (20, 30)}), 1.0)
    said = rig.lines()[0]
    assert (said["event"], said["level"]) == ("log_truncated", "critical")
    assert (said["topic"], said["partition"], said["first"], said["last"]) == (*LANE, 20, 29)
    assert b'relay_log_truncated_offsets_total{topic="to_receiver_ci"} 10.0' in rig.metrics.render()
    [event] = sent.events
    assert event["tags"]["reason"] == "log_truncated"
    assert event["tags"] == {**event["tags"], "stage": "to_receiver_ci", "page": "yes"}
