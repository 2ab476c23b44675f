"""Reports about endpoints that are down: each outage once, and the messages held up meanwhile."""

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from relay.domain.errors import ConsumerBroken, LogUnavailable
from relay.engine.decision import Dead, Done, Later
from relay.engine.work import Work
from relay.log.port import Record
from relay.state.attempts import Change
from relay.state.rows import Result
from relay.telemetry import logging
from relay.telemetry.metrics import Metrics
from relay.telemetry.observer import TelemetryObserver
from relay.telemetry.outages import HELD_S, MOST, Outages
from relay.telemetry.sentry import SentryReporter

CI = Work(Record("to_receiver_ci", 0, 1, b"s", b"{}", (), 0), None, 0, None, "r:ci")
DONE = Done(result=Result("answered", 200))


class Reported(SentryReporter):
    def __init__(self) -> None:
        super().__init__()
        self.failures: list[tuple[object, ...]] = []

    def report_failure(self, *about: object) -> None:
        self.failures.append(about)


class Rig:
    def __init__(self) -> None:
        self.out = io.StringIO()
        logging.configure("json", stream=self.out)
        self.metrics, self.sentry = Metrics("0"), Reported()
        self.observer = TelemetryObserver(self.metrics, self.sentry, lambda: None)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def rig() -> Iterator[Rig]:
    yield Rig()
    logging.configure()


def test_an_outage_begins_once_and_a_later_one_anew() -> None:
    outages = Outages()
    assert outages.begins("r:ci", 1000.0, 600.0)
    assert not outages.begins("r:ci", 1060.0, 660.1)
    assert outages.begins("r:cd", 1060.0, 600.0)
    assert outages.begins("r:ci", 9000.0, 600.0), "another process heard the end of the first"
    assert outages.ends("r:ci") == 8400.0
    assert outages.ends("r:ci") is None


def test_only_so_many_are_remembered() -> None:
    outages = Outages()
    for number in range(MOST + 1):
        assert outages.begins(f"r:{number}", 1000.0, 600.0)
        outages.hold(f"r:{number}", "offline", 0.0)
        assert len(outages.held) == min(number + 1, MOST)
    assert outages.ends("r:0") is None
    assert outages.ends("r:1") is not None


def test_pauses_without_a_request_are_remembered_of_so_many_endpoints(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.telemetry.observer.MOST", 2)
    rig.observer.logs_attempts = lambda _endpoint_id: True
    for endpoint_id in ("r:a", "r:b", "r:a", "r:c", "r:a", "r:b"):
        work = Work(CI.record, None, 0, None, endpoint_id)
        rig.observer.attempt("to_receiver", work, Later(5.0, "paused", Change.RELEASED))
    assert [line["receiver"] for line in rig.lines()] == ["r:a", "r:b", "r:c", "r:b"], "the oldest was forgotten"


def test_who_is_not_told_of_any_more_is_held_no_longer() -> None:
    outages = Outages()
    outages.hold("r:ci", "offline", 0.0)
    outages.hold("r:ci", "offline", 30.0)
    outages.hold("r:cd", "pause", 30.0)
    outages.let_go(HELD_S + 1)
    assert set(outages.held) == {("r:ci", "offline"), ("r:cd", "pause")}
    outages.hold("r:ci", "offline", 80.0)
    outages.let_go(HELD_S + 31)
    assert set(outages.held) == {("r:ci", "offline")}


def test_one_line_when_it_goes_and_one_when_it_comes_back(rig: Rig) -> None:
    for down_for_s in (600.0, 600.0, 600.1):
        rig.observer.endpoint_offline("r:ci", down_for_s, 0.0)
        rig.observer.ping_unanswered("r:ci")
    rig.observer.attempt("pending", CI, DONE)
    rig.observer.attempt("to_receiver", CI, Later(1.0, "refused"))
    assert rig.events() == ["endpoint_offline"]
    rig.observer.endpoint_back("r:ci", 700.0, 0.0)
    rig.observer.attempt("to_receiver", CI, DONE)
    first, last = rig.lines()
    assert (first["endpoint"], first["down_for_s"]) == ("r:ci", 600)
    assert (last["event"], last["endpoint"], last["down_for_s"]) == ("endpoint_back", "r:ci", 600)
    assert rig.value("relay_pings_total", receiver="ci", outcome="unanswered") == 3
    assert rig.value("relay_pings_total", receiver="ci", outcome="answered") == 1
    assert rig.sentry.failures == []


def test_what_another_process_found_out_shows_in_the_next_delivery(rig: Rig) -> None:
    rig.observer.endpoint_offline("r:ci", 600.0, 0.0)
    rig.observer.attempt("to_receiver", CI, DONE)
    assert rig.events() == ["endpoint_offline", "endpoint_back"]


@pytest.mark.parametrize(("gone", "word"), [(False, "disabled"), (True, "gone")])
def test_an_alert_when_it_is_paused(rig: Rig, gone: bool, word: str) -> None:
    rig.observer.endpoint_offline("r:ci", 432_000.0, 0.0)
    rig.observer.endpoint_disabled("r:ci", 432_000.0, 410 if gone else None, gone=gone)
    assert rig.events() == ["endpoint_offline", f"endpoint_{word}"]
    assert rig.lines()[1]["level"] == "error"
    assert rig.sentry.failures == [("ci", word, "receiver", "ping", 0, 410 if gone else None)]


def test_a_callback_is_counted_without_its_source(rig: Rig) -> None:
    rig.observer.endpoint_held("s:github", "offline")
    rig.observer.endpoint_held("s:gitlab", "offline")
    rig.observer.endpoint_held("s:gitlab", "offline")
    assert rig.value("relay_endpoints_held", receiver="-", why="offline") == 2
    rig.observer.endpoint_disabled("s:github", 432_000.0, None, gone=False)
    assert rig.sentry.failures[0][:2] == ("-", "disabled")
    assert "github" not in rig.metrics.render().decode()


def test_who_is_not_held_any_more_is_counted_so_without_any_traffic(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.observer.endpoint_held("r:ci", "offline")
    assert rig.value("relay_endpoints_held", receiver="ci", why="offline") == 1
    later = time.monotonic() + HELD_S + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    rig.observer.tick()
    assert rig.value("relay_endpoints_held", receiver="ci", why="offline") == 0


def test_a_broker_that_is_away_is_told_once_and_not_by_each_consumer(rig: Rig) -> None:
    for name in ("to-receiver/ci", "to-receiver/cd", "to-sender"):
        rig.observer.service_failed(name, ConsumerBroken(f"{name} lost its connection"), 1.0)
        rig.observer.waiting("poll", LogUnavailable(f"{name} cannot be read"))
    assert rig.events() == ["consumer_broken", "waiting"]
    assert rig.value("relay_services_restarted_total", reason="consumer_broken") == 3


def test_when_half_of_what_may_be_parked_is_parked_somebody_is_told_once() -> None:
    rig = Rig()
    for count in (49, 50, 80, 49, 60):
        rig.observer.parked_in_all(count, 100)
    assert rig.events() == ["parked_many"] * 2
    assert "relay_parked_references 60.0" in rig.metrics.render().decode()


def test_only_requests_are_counted_as_attempts(rig: Rig) -> None:
    """A delivery may end without one: it is too old, its request cannot be made, or the receiver is asked about it."""
    rig.observer.attempt("to_receiver", CI, Dead("expired"))
    assert rig.value("relay_delivery_attempts_total", receiver="ci", outcome="dead") is None
    rig.observer.attempt("to_receiver", CI, Later(0.0, "begun and not started", Change.RELEASED))
    assert rig.value("relay_delivery_attempts_total", receiver="ci", outcome="released") == 1
    asked = Work(CI.record, None, 0, None, "r:ci", requested=True, in_doubt=True)
    rig.observer.attempt("to_receiver", asked, DONE)
    assert rig.value("relay_delivery_attempts_total", receiver="ci", outcome="done") is None
    assert rig.value("relay_status_polls_total", receiver="ci", outcome="done") == 1
    sent = Work(CI.record, None, 0, None, "r:ci", requested=True)
    rig.observer.attempt("to_receiver", sent, Dead("rejected"))
    assert rig.value("relay_delivery_attempts_total", receiver="ci", outcome="dead") == 1


def test_a_pause_that_is_renewed_without_a_request_is_one_line(rig: Rig) -> None:
    rig.observer.logs_attempts = lambda endpoint_id: endpoint_id == "r:ci"
    unverified = Later(5.0, "the receiver has yet to be verified", Change.RELEASED, pause_s=5.0)
    work = Work(CI.record, None, 0, None, "r:ci")
    for decision in (unverified, unverified):
        rig.observer.attempt("to_receiver", work, decision)
    work.requested = True
    busy = Later(5.0, "status", Change.RELEASED, last_status=429)
    for decision in (busy, busy):
        rig.observer.attempt("to_receiver", work, decision)
    work.requested = False
    rig.observer.attempt("to_receiver", work, unverified)
    said = [line["reason"] for line in rig.lines() if line["event"] == "attempt"]
    assert said == [unverified.reason, "status", "status", unverified.reason]
