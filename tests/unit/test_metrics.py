"""Metrics have the documented names, one registry per process, and a bounded number of series."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from relay.domain.exchange import Response
from relay.domain.identity import DeliveryId
from relay.domain.outcome import Delivered
from relay.domain.receiver import Endpoint, Receiver
from relay.telemetry import series
from relay.telemetry.metrics import CONTENT_TYPE, Metrics
from relay.telemetry.series import OTHER
from relay.watch.statistics import MetricsMeter, Tallies

LEGS = ("to_receiver", "answer", "to_sender")


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def test_counters_gauges_and_histograms_are_rendered() -> None:
    metrics = Metrics("1.2.3")
    metrics.messages_received_total.inc(3)
    metrics.duplicates_total.inc()
    metrics.delivery_attempts_total.labels("ci", "done").inc()
    metrics.delivery_attempts_total.labels("ci", "done").inc()
    metrics.delivery_duration_seconds.labels("ci").observe(0.2)
    metrics.end_to_end_seconds.labels("ci", "to_sender").observe(3)
    metrics.failed_total.labels("ci", "exhausted").inc()
    metrics.lane_window_records.labels("to_receiver_ci", "0").set(17)
    assert value(metrics, "relay_messages_received_total") == 3
    assert value(metrics, "relay_duplicates_total") == 1
    assert value(metrics, "relay_delivery_attempts_total", receiver="ci", outcome="done") == 2
    assert value(metrics, "relay_delivery_duration_seconds_bucket", receiver="ci", le="0.25") == 1
    assert value(metrics, "relay_delivery_duration_seconds_bucket", receiver="ci", le="0.1") == 0
    assert value(metrics, "relay_end_to_end_seconds_sum", receiver="ci", leg="to_sender") == 3
    assert value(metrics, "relay_failed_total", receiver="ci", reason="exhausted") == 1
    assert value(metrics, "relay_lane_window_records", topic="to_receiver_ci", partition="0") == 17
    assert value(metrics, "relay_build_info", version="1.2.3") == 1
    assert CONTENT_TYPE.startswith("text/plain")


def test_names_follow_the_conventions() -> None:
    text = Metrics("1").render().decode()
    families = dict(re.findall(r"^# TYPE (relay_\S+) (\S+)$", text, re.MULTILINE))
    assert {
        "relay_messages_received_total",
        "relay_duplicates_total",
        "relay_delivery_attempts_total",
        "relay_delivery_duration_seconds",
        "relay_end_to_end_seconds",
        "relay_failed_total",
        "relay_parked_total",
        "relay_answers_total",
        "relay_foreign_keys_total",
        "relay_lane_window_records",
        "relay_state_recoveries_total",
        "relay_state_tags_not_ready",
        "relay_state_recovery_seconds",
        "relay_parked_put_back_total",
        "relay_build_info",
    } <= families.keys()
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in families.items())
    assert all(name.endswith("_seconds") for name, kind in families.items() if kind == "histogram")
    assert not any(name.endswith("_created") for name in families)
    assert all(hasattr(Metrics("1"), name.removeprefix("relay_")) for name in families.keys() - {"relay_build_info"})


def test_two_registries_do_not_share_anything() -> None:
    one, other = Metrics("1"), Metrics("1")
    one.duplicates_total.inc()
    assert value(other, "relay_duplicates_total") == 0


def test_children_are_kept() -> None:
    metrics = Metrics("1")
    assert metrics.delivery_attempts_total.labels("ci", "done") is metrics.delivery_attempts_total.labels("ci", "done")
    assert metrics.delivery_attempts_total.labels("ci", "done") is not metrics.delivery_attempts_total.labels(
        "ci", "retry"
    )


def test_receivers_beyond_the_bound_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_RECEIVERS", 2)
    metrics = Metrics("1")
    for name in ("a", "b", "c", "d"):
        metrics.failed_total.labels(name, "gone").inc()
        metrics.delivery_duration_seconds.labels(name).observe(1)
    assert value(metrics, "relay_failed_total", receiver="b", reason="gone") == 1
    assert value(metrics, "relay_failed_total", receiver=OTHER, reason="gone") == 2
    assert value(metrics, "relay_delivery_duration_seconds_count", receiver=OTHER) == 2
    metrics.failed_total.labels("a", "expired").inc()  # one that is known already keeps its name, in any family
    assert value(metrics, "relay_failed_total", receiver="a", reason="expired") == 1


def test_a_receiver_that_was_removed_keeps_its_series_until_another_needs_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(series, "MAX_RECEIVERS", 1)
    metrics = Metrics("1")
    metrics.failed_total.labels("removed", "gone").inc()
    metrics.delivery_duration_seconds.labels("removed").observe(2)
    metrics.weigh({})
    assert value(metrics, "relay_failed_total", receiver="removed", reason="gone") == 1
    metrics.weigh({"new": 1})
    assert b'receiver="removed"' not in metrics.render()
    metrics.failed_total.labels("new", "gone").inc()
    assert value(metrics, "relay_failed_total", receiver="new", reason="gone") == 1


def test_those_that_are_sent_most_have_series_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_RECEIVERS", 2)
    metrics = Metrics("1")
    for name in ("a", "b", "busy"):
        metrics.failed_total.labels(name, "gone").inc()
    metrics.weigh({"a": 100, "b": 10, "busy": 20})
    assert value(metrics, "relay_failed_total", receiver=OTHER, reason="gone") == 1, "twice as much is not enough"
    metrics.weigh({"a": 100, "b": 10, "busy": 30})
    assert b'receiver="b"' not in metrics.render()
    for name in ("a", "b", "busy"):
        metrics.failed_total.labels(name, "gone").inc()
    assert value(metrics, "relay_failed_total", receiver="a", reason="gone") == 2
    assert value(metrics, "relay_failed_total", receiver="busy", reason="gone") == 1
    assert value(metrics, "relay_failed_total", receiver=OTHER, reason="gone") == 2, "it never falls"


def test_who_was_busy_once_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_RECEIVERS", 1)
    receivers = series.ReceiverLabels()
    assert receivers.label("once") == "once"
    receivers.weigh({"once": 1000})
    turns = 0
    while receivers.label("now") == OTHER:
        receivers.weigh({"now": 10})
        turns += 1
    assert 20 < turns < 120
    assert receivers.label("once") == OTHER


def test_volumes_are_remembered_of_so_many_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series.ReceiverLabels, "MOST", 10)
    receivers = series.ReceiverLabels()
    receivers.weigh({f"r-{number}": 2 + number for number in range(50)})
    assert len(receivers._volume) == 10
    assert min(receivers._volume.values()) == 42


def test_what_the_workers_tell() -> None:
    metrics, tallies = Metrics("1"), Tallies()
    meter = MetricsMeter(metrics, tallies)
    meter.received(foreign_key=False)
    meter.received(foreign_key=True)
    with capture_logs() as logged:
        for name in ("nobody", "noone"):
            meter.unrouted(DeliveryId(name, "github", "m-1"), "unknown_receiver", "there is no such receiver")
    assert [(line["event"], line["receiver"], line["message_id"]) for line in logged] == [
        ("dead_letter", "nobody", "m-1"),
        ("dead_letter", "noone", "m-1"),
    ]
    meter.posted(Receiver("ci", Endpoint("https://ci.example/")), Response(204, {}, b""), Delivered(204), 0.5, 7.0)
    meter.delivered("ci", 1.5, "response")
    meter.answered("ci", "callback", None)
    meter.returned("ci", -2)
    assert [(tally.owner, tally.counted.attempts) for tally in tallies.of(tallies.take())] == [("r:ci", 1)]
    assert value(metrics, "relay_messages_received_total") == 2
    assert value(metrics, "relay_foreign_keys_total") == 1
    assert value(metrics, "relay_failed_total", receiver="-", reason="unknown_receiver") == 2
    assert value(metrics, "relay_delivery_duration_seconds_sum", receiver="ci") == 0.5
    assert value(metrics, "relay_answers_total", receiver="ci", via="response") == 1
    assert value(metrics, "relay_answers_total", receiver="ci", via="callback") == 1
    legs = {leg: value(metrics, "relay_end_to_end_seconds_count", receiver="ci", leg=leg) for leg in LEGS}
    assert legs == {"to_receiver": 1, "answer": 1, "to_sender": 1}  # an unknown age is in none of them
    assert value(metrics, "relay_end_to_end_seconds_sum", receiver="ci", leg="to_sender") == 0
