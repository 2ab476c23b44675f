"""Turns the workers' calls about messages into metrics and statistics."""

from typing import Final, Literal

from relay.domain.exchange import Exchange
from relay.domain.identity import DeliveryId
from relay.domain.outcome import Outcome
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from relay.telemetry.tallies import Tallies

_log = get_logger("relay.engine")

_NO_RECEIVER: Final = "-"
"""Label for unknown receivers: names that senders invent must not become series."""


class MetricsMeter:
    """Implements `workers.meter.Meter`."""

    def __init__(self, metrics: Metrics, tallies: Tallies) -> None:
        self._metrics = metrics
        self._tallies = tallies

    def received(self, *, foreign_key: bool) -> None:
        self._metrics.messages_received_total.inc()
        if foreign_key:
            self._metrics.foreign_keys_total.inc()

    def filtered(self) -> None:
        self._metrics.messages_filtered_total.inc()

    def unrouted(self, delivery: DeliveryId, why: str) -> None:
        reason = "unknown_receiver"
        self._metrics.failed_total.labels(_NO_RECEIVER, reason).inc()
        facts = {"reason": reason, "status": None, "detail": why}
        _log.warning("dead_letter", stage="from_sender", endpoint=_NO_RECEIVER, **delivery._asdict(), **facts)

    def posted(self, receiver: str, exchange: Exchange, outcome: Outcome, seconds: float) -> None:
        self._metrics.delivery_duration_seconds.labels(receiver).observe(seconds)
        self._tallies.count(receiver, exchange, outcome, seconds)

    def delivered(self, receiver: str, age_s: float) -> None:
        self._leg(receiver, "to_receiver", age_s)

    def answered(self, receiver: str, via: Literal["response", "poll", "callback"], age_s: float | None) -> None:
        self._metrics.answers_total.labels(receiver, via).inc()
        if age_s is not None:
            self._leg(receiver, "answer", age_s)

    def returned(self, receiver: str, age_s: float) -> None:
        self._leg(receiver, "to_sender", age_s)

    def refused(self, kind: str, why: str) -> None:
        self._metrics.inbound_refused_total.labels(kind, why).inc()

    def over_quota(self, of: str, messages: int) -> None:
        self._metrics.over_quota_total.labels(of).inc(messages)

    def queued(self, what: str, seconds: float) -> None:
        self._metrics.api_queue_seconds.labels(what).observe(seconds)

    def over_share(self, what: str) -> None:
        self._metrics.api_over_share_total.labels(what).inc()

    def _leg(self, receiver: str, leg: str, age_s: float) -> None:
        self._metrics.end_to_end_seconds.labels(receiver, leg).observe(max(0.0, age_s))  # clocks may differ
