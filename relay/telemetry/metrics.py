"""Every metric of the relay, with its unit and meaning: one registry per process.

Labels are closed sets (outcome, reason, topic, ...) and receiver names; never a URL, source or message id. There may be
millions of receivers: the `MAX_RECEIVERS` that are sent most have series of their own, all others share `_other`. A
removed receiver keeps its series until another one needs the place: its last counts are still to be scraped, and its
messages may go on for days.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.registry import Collector

from relay.telemetry.merge import PROCESSES_SILENT
from relay.telemetry.series import CounterSeries, Family, Level, M, ReceiverLabels, Spread

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_HTTP_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECOVERY_SECONDS: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
_LANE: Final = ("role", "receiver", "topic", "partition")
_LAGS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_JOURNEY_SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0, 172_800.0, 604_800.0),
)
"""From a few milliseconds to the week that the log keeps."""


class _Before(Collector):
    """First of a registry: has no series of its own."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def collect(self) -> Iterator[Metric]:
        for callback in self.callbacks:
            callback()
        return iter(())


class Metrics:
    """The metrics of one process; an attribute is named like its metric, without `relay_`."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self._receivers = ReceiverLabels()
        self._families: list[Family[Any]] = []
        self._before = _Before()
        self.registry.register(self._before)
        self._define_flow()
        self._define_delivery()
        self._define_levels()
        self._define_lanes()
        self._define_state()
        self._define_faults()
        self._define_watched()
        self._gauge("relay_build_info", "Always 1; the label is the version", "version").labels(version).set(1)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def weigh(self, sent: Mapping[str, int]) -> None:
        """So much went to these receivers since the last call: those that are sent most have series of their own."""
        if changed := self._receivers.weigh(sent):
            for family in self._families:
                family.forget_receivers(changed)

    def before_collecting(self, callback: Callable[[], None]) -> None:
        """`callback` is called for each exposition, to set gauges that are not kept in between. It is quick."""
        self._before.callbacks.append(callback)

    def render(self) -> bytes:
        """The text exposition format, of type CONTENT_TYPE."""
        return generate_latest(self.registry)

    @property
    def families(self) -> Sequence[Family[Any]]:
        """All of our own, by name."""
        return sorted(self._families, key=lambda family: family.name)

    def _define_flow(self) -> None:
        self.messages_received_total = self._plain_counter(
            "relay_messages_received_total", "Messages read from from_sender, which all messages pass"
        )
        self.messages_filtered_total = self._plain_counter(
            "relay_messages_filtered_total",
            "Messages without a receiver: the filters of all subscribers excluded them",
        )
        self.duplicates_total = self._plain_counter(
            "relay_duplicates_total", "Messages and records recognised as already handled, and not repeated"
        )
        self.foreign_keys_total = self._plain_counter(
            "relay_foreign_keys_total", "Records whose key is not their source_id: their order is not guaranteed"
        )
        self.inbound_refused_total = self._counter(
            "relay_inbound_refused_total",
            "Webhooks rejected for their signature, by the kind of sender and the reason: missing, wrong or old",
            "kind",
            "why",
        )
        self.over_quota_total = self._counter(
            "relay_over_quota_total", "Messages rejected over HTTP because of the quota of a key or source", "of"
        )
        self.api_queue_seconds = self._histogram(
            "relay_api_queue_seconds",
            "How long requests waited for their turn among their caller's: a search, a test of a receiver, a dry run",
            _HTTP_SECONDS,
            "what",
        )
        self.api_over_share_total = self._counter(
            "relay_api_over_share_total",
            "Requests rejected because their caller has used its share: search, test, dry_run, tail, page or replay",
            "what",
        )
        self.own_events_total = self._counter(
            "relay_own_events_total", "Events of the relay itself that were written to from_sender, by type", "type"
        )
        self.own_events_dropped_total = self._counter(
            "relay_own_events_dropped_total",
            "Events of the relay itself that were dropped, as too many waited for the log, by type",
            "type",
        )
        self.held_up_total = self._counter(
            "relay_held_up_total",
            "Attempts after the second that failed while later messages of the same order key waited",
            "receiver",
        )
        self.failed_total = self._counter("relay_failed_total", "Dead letters", "receiver", "reason")
        self.end_to_end_seconds = self._histogram(
            "relay_end_to_end_seconds",
            "From the message's acceptance until the end of a leg: to_receiver, answer or to_sender",
            _JOURNEY_SECONDS,
            "receiver",
            "leg",
        )

    def _define_delivery(self) -> None:
        self.delivery_attempts_total = self._counter(
            "relay_delivery_attempts_total", "POSTs to receivers, by outcome", "receiver", "outcome"
        )
        self.delivery_duration_seconds = self._histogram(
            "relay_delivery_duration_seconds", "One POST, from connect to the last byte", _HTTP_SECONDS, "receiver"
        )
        self.status_polls_total = self._counter(
            "relay_status_polls_total", "GETs of status endpoints, by outcome", "receiver", "outcome"
        )
        self.callback_attempts_total = self._counter(
            "relay_callback_attempts_total", "POSTs of results to senders, by outcome", "outcome"
        )
        self.pings_total = self._counter(
            "relay_pings_total",
            "Pings of endpoints that are offline (- for callbacks): answered, unanswered or gone",
            "receiver",
            "outcome",
        )
        self.answers_total = self._counter(
            "relay_answers_total", "Answers, by way: response, poll or callback", "receiver", "via"
        )

        self.attempts_told_total = self._plain_counter(
            "relay_attempts_told_total", "Requests to receivers and callbacks that were written to delivery_attempts"
        )
        self.attempts_untold_total = self._counter(
            "relay_attempts_untold_total",
            "Requests missing there, by reason: full (too many wait), log (unavailable, or rejects them), end (left "
            "over when the process ended), bug",
            "why",
        )

    def _define_levels(self) -> None:
        self.parked_total = self._counter("relay_parked_total", "Records taken off the log until due", "topic")
        self.parked_references = self._gauge(
            "relay_parked_references",
            "Records parked over all receivers and sources, as the first process of `relay run` sees it",
        ).labels()
        self.parked_references_limit = self._gauge(
            "relay_parked_references_limit",
            "Limit of parked records in all, at which intake stops",
        ).labels()
        self.lane_window_records = self._gauge(
            "relay_lane_window_records", "Unfinished records in a lane's window", "topic", "partition"
        )
        self.endpoints_held = self._gauge(
            "relay_endpoints_held",
            "Endpoints with waiting messages that are sent none now, by reason: pause, breaker, offline, disabled "
            "or backlog (the limit of waiting messages is reached); - stands for callbacks. Each process "
            "counts those that it has seen",
            "receiver",
            "why",
        )

        self.event_loop_lag_seconds = self._plain_histogram(
            "relay_event_loop_lag_seconds", "How late the event loop runs a timer, measured twice a second", _LAGS
        )

    def _define_lanes(self) -> None:
        self.consumer_lag = self._gauge(
            "relay_consumer_lag",
            "Records that a lane's group has not finished, as measured by one process for all. "
            "`receiver`: - for a lane with many; those that lag most have series of their "
            "own, the others share _other",
            *_LANE,
        )
        self.oldest_message_age_seconds = self._gauge(
            "relay_oldest_message_age_seconds",
            "Age of the first record that a lane's group has not finished; 0 if there is none",
            *_LANE,
        )
        self.lanes_unserved = self._gauge(
            "relay_lanes_unserved",
            "Lanes that no worker has reported to serve for 10 s",
            *("role", "receiver"),
        )
        self.requests_in_flight = self._gauge(
            "relay_requests_in_flight", "Requests in flight, and other work in progress", "role"
        )
        self.waiting_records = self._gauge(
            "relay_waiting_records",
            "Records in memory that wait, by reason: those of `waiting_for`, and backlog (no free place for an answer "
            "or a retry), max_in_flight, own_shortage, seat (the process's request limit), turn (for nothing). Records "
            "that wait longer are parked",
            *("role", "reason"),
        )
        self.memory_held_bytes = self._gauge(
            "relay_memory_held_bytes", "Bytes of unfinished records and of their results in the lanes"
        ).labels()
        self.memory_budget_bytes = self._gauge(
            "relay_memory_budget_bytes", "Limit of these bytes, at which intake stops: further records stay in the log"
        ).labels()
        self.history_behind_seconds = self._gauge(
            "relay_history_behind_seconds",
            "Age of the oldest record that the history has not read, as measured by one process; absent without a "
            "history whose store and log answer",
        )

    def _define_state(self) -> None:
        self.state_recoveries_total = self._plain_counter(
            "relay_state_recoveries_total", "Recovery passes after the state lost its memory, or was restarted"
        )
        self.state_tags_not_ready = self._gauge(
            "relay_state_tags_not_ready",
            "Hash tags of the state, of 64, whose lanes are stopped until they are recovered",
        ).labels()
        self.state_recovery_seconds = self._plain_histogram(
            "relay_state_recovery_seconds",
            "Duration of a recovery pass, during which the lanes of its tags are stopped",
            _RECOVERY_SECONDS,
        )
        self.state_tags_rebuilding = self._gauge(
            "relay_state_tags_rebuilding",
            "Hash tags of the state, of 64, whose memory of finished messages is not yet rebuilt after a loss",
        ).labels()
        self.rebuild_records_total = self._counter(
            "relay_rebuild_records_total", "Records read to rebuild the memory of finished messages", "topic"
        )
        self.rebuild_reached_seconds = self._gauge(
            "relay_rebuild_reached_seconds", "How far back from now that memory is rebuilt, while a rebuild runs"
        ).labels()
        self.parked_put_back_total = self._plain_counter(
            "relay_parked_put_back_total",
            "Parked records without a reference, restored to the due index",
        )

    def _define_faults(self) -> None:
        self.dependency_waits_total = self._counter(
            "relay_dependency_waits_total", "Calls repeated because the server was unavailable", "dependency"
        )
        self.step_crashes_total = self._counter(
            "relay_step_crashes_total", "Unexpected exceptions in a worker's step: bugs", "stage"
        )
        self.own_shortages_total = self._counter(
            "relay_own_shortages_total",
            "Requests that failed for lack of local resources: no_resources (descriptors, memory), "
            "no_local_address, no_proxy; unreachable or dns_silent if all receivers are. They count as no attempts",
            "kind",
        )
        self.offsets_skipped_total = self._counter(
            "relay_offsets_skipped_total",
            "Unreadable offsets (of a damaged batch), skipped with a dead letter",
            "topic",
        )
        self.log_truncated_offsets_total = self._counter(
            "relay_log_truncated_offsets_total",
            "Offsets that had been read and that the log has lost: it came back shorter",
            "topic",
        )
        self.lanes_fenced_total = self._counter(
            "relay_lanes_fenced_total", "Lanes taken over by a newer owner", "topic"
        )
        self.lanes_stalled_total = self._counter(
            "relay_lanes_stalled_total",
            "Times that a lane made no progress for a minute without a reason to wait",
            "topic",
        )
        self.services_restarted_total = self._counter(
            "relay_services_restarted_total",
            "Consumers and lanes restarted in a running process, by reason: consumer_broken, offset_missing, lane_anew "
            "or lane_broken",
            "reason",
        )

    def _define_watched(self) -> None:
        self.backlog_problem_partitions = self._gauge(
            "relay_backlog_problem_partitions",
            "Partitions that a group cannot continue (missing_offset, lost), whose oldest unread record is older "
            "than half of the retention (old), or that a producer's transaction holds back (open_transaction)",
            "problem",
        )
        self.history_records_total = self._counter(
            "relay_history_records_total", "Records that the history read: taken, or unreadable", "outcome"
        )
        self.processes_silent = self._gauge(
            PROCESSES_SILENT,
            "Processes of this relay that did not return their metrics in time: the sums exclude them",
        ).labels()
        self.receivers_refused = self._gauge(
            "relay_receivers_refused",
            "Entries of receiver_config that this process cannot use, for example because of a missing secret",
        ).labels()
        self.clock_offset_seconds = self._gauge(
            "relay_clock_offset_seconds",
            "How far this process's own clock is ahead of the state's, which decides about ages and deadlines; "
            "signatures carry the former",
        ).labels()

    def _counter(self, name: str, meaning: str, *labels: str) -> Family[CounterSeries]:
        return self._family(Family(name, meaning, labels, CounterSeries, self._receivers))

    def _gauge(self, name: str, meaning: str, *labels: str) -> Family[Level]:
        return self._family(Family(name, meaning, labels, Level, self._receivers))

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Family[Spread]:
        return self._family(Family(name, meaning, labels, partial(Spread, buckets), self._receivers))

    def _family(self, family: Family[M]) -> Family[M]:
        self.registry.register(family)
        self._families.append(family)
        return family

    def _plain_histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Spread:
        return self._histogram(name, meaning, buckets).labels()

    def _plain_counter(self, name: str, meaning: str) -> CounterSeries:
        return self._counter(name, meaning).labels()
