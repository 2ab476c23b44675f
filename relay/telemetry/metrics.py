"""Every metric of the relay, with its unit and meaning: one registry per process.

Labels are closed sets (outcome, reason, topic, ...) and receiver names; never a URL, source or message id. There may be
millions of receivers: the `MAX_RECEIVERS` that are sent most have series of their own, all others share `_other`. A
removed receiver keeps its series until another one needs the place: its last counts are still to be scraped, and its
messages may go on for days.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

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

from relay.telemetry.series import CounterSeries, Family, Level, M, ReceiverLabels, Spread

T = TypeVar("T")

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_HTTP_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECOVERY_SECONDS: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
_LANE: Final = ("role", "receiver", "topic", "partition")
_LAGS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_JOURNEY_SECONDS: Final = (
    *_HTTP_SECONDS,
    *(60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0, 172_800.0, 604_800.0),
)
"""Buckets from a few milliseconds to the week that the log keeps."""


class _Before(Collector):
    """First of a registry: has no series of its own."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def collect(self) -> Iterator[Metric]:
        for callback in self.callbacks:
            callback()
        return iter(())


class _Metric(Generic[T]):
    """Declares a metric in the class below. An instance has the metric itself, with the attribute's name after
    `relay_`. `of_all`: a gauge of something that all processes share and each measures, so that they are not summed."""

    def __init__(self, define: Callable[["Metrics", str], T], *, of_all: bool = False) -> None:
        self.define = define
        self.of_all = of_all

    def __get__(self, metrics: "Metrics", owner: object) -> T:
        raise AttributeError("only an instance has metrics")


def _counter(meaning: str, *labels: str) -> _Metric[Family[CounterSeries]]:
    return _Metric(lambda metrics, name: metrics.family(name, meaning, labels, CounterSeries))


def _gauge(meaning: str, *labels: str, of_all: bool = False) -> _Metric[Family[Level]]:
    return _Metric(lambda metrics, name: metrics.family(name, meaning, labels, Level), of_all=of_all)


def _histogram(meaning: str, buckets: tuple[float, ...], *labels: str) -> _Metric[Family[Spread]]:
    return _Metric(lambda metrics, name: metrics.family(name, meaning, labels, partial(Spread, buckets)))


def _single(metric: _Metric[Family[M]]) -> _Metric[M]:
    """A metric with one series, without labels."""
    return _Metric(lambda metrics, name: metric.define(metrics, name).labels(), of_all=metric.of_all)


def _total(meaning: str) -> _Metric[CounterSeries]:
    return _single(_counter(meaning))


def _level(meaning: str, *, of_all: bool = False) -> _Metric[Level]:
    return _single(_gauge(meaning, of_all=of_all))


class Metrics:
    """The metrics of one process, all declared here; an attribute is named like its metric, without `relay_`."""

    # messages
    messages_received_total = _total("Messages read from from_sender, which all messages pass")
    messages_filtered_total = _total("Messages without a receiver: the filters of all subscribers excluded them")
    duplicates_total = _total("Messages and records recognised as already handled, and not repeated")
    foreign_keys_total = _total("Records whose key is not their source_id: their order is not guaranteed")
    inbound_refused_total = _counter(
        "Webhooks rejected for their signature, by the kind of sender and the reason: missing, wrong or old",
        "kind",
        "why",
    )
    over_quota_total = _counter("Messages rejected over HTTP because of the quota of a key or source", "of")
    event_schema_faults_total = _counter(
        "Messages over HTTP with a payload that is not valid by its event type: count or refuse",
        "event_schemas",
    )
    api_responses_total = _counter(
        "Responses of the HTTP API, those to its own pages included, by method and path (- if there is no such route)",
        "route",
        "status",
    )
    api_queue_seconds = _histogram(
        "How long requests waited for their turn among their caller's: a search, a test of a receiver, a dry run",
        _HTTP_SECONDS,
        "what",
    )
    api_over_share_total = _counter(
        "Requests rejected because their caller has used its share: search, test, dry_run, export, tail, page, replay",
        "what",
    )
    own_events_total = _counter("Events of the relay itself that were written to from_sender, by type", "type")
    own_events_dropped_total = _counter(
        "Events of the relay itself that were dropped, as too many waited for the log, by type", "type"
    )
    incidents_open = _gauge("Unresolved incidents, by kind and severity", "kind", "severity")
    notices_total = _counter("Notices about incidents, by channel and outcome (sent, given_up)", "channel", "outcome")
    held_up_total = _counter(
        "Attempts after the second that failed while later messages of the same order key waited", "receiver"
    )
    failed_total = _counter("Dead letters", "receiver", "reason")
    end_to_end_seconds = _histogram(
        "From the message's acceptance until the end of a leg: to_receiver, answer or to_sender",
        _JOURNEY_SECONDS,
        "receiver",
        "leg",
    )

    # requests
    delivery_attempts_total = _counter("POSTs to receivers, by outcome", "receiver", "outcome")
    delivery_duration_seconds = _histogram("One POST, from connect to the last byte", _HTTP_SECONDS, "receiver")
    status_polls_total = _counter("GETs of status endpoints, by outcome", "receiver", "outcome")
    callback_attempts_total = _counter("POSTs of results to senders, by outcome", "outcome")
    pings_total = _counter(
        "Pings of endpoints that are offline (- for callbacks): answered, unanswered or gone", "receiver", "outcome"
    )
    payload_reads_total = _counter("Payloads of thin events that receivers have read", "receiver")
    answers_total = _counter("Answers, by way: response, poll or callback", "receiver", "via")
    attempts_told_total = _total("Requests to receivers and callbacks that were written to delivery_attempts")
    attempts_untold_total = _counter(
        "Requests missing there, by reason: full (too many wait), log (unavailable, or rejects them), end (left "
        "over when the process ended), bug",
        "why",
    )

    # lanes, requests and memory of this process
    parked_total = _counter("Records taken off the log until due", "topic")
    parked_references = _level(
        "Records parked over all receivers and sources, as the first process of `relay run` sees it"
    )
    parked_references_limit = _level("Limit of parked records in all, at which intake stops")
    lane_window_records = _gauge("Unfinished records in a lane's window", "topic", "partition")
    endpoints_held = _gauge(
        "Endpoints with waiting messages that are sent none now, by reason: pause, breaker, offline, disabled "
        "or backlog (the limit of waiting messages is reached); - stands for callbacks. Each process "
        "counts those that it has seen",
        "receiver",
        "why",
    )
    event_loop_lag_seconds = _single(_histogram("How late the event loop runs a timer, measured twice a second", _LAGS))

    # lanes
    consumer_lag = _gauge(
        "Records that a lane's group has not finished, as measured by one process for all. "
        "`receiver`: - for a lane with many; those that lag most have series of their "
        "own, the others share _other",
        *_LANE,
    )
    oldest_message_age_seconds = _gauge(
        "Age of the first record that a lane's group has not finished; 0 if there is none", *_LANE
    )
    lanes_unserved = _gauge("Lanes that no worker has reported to serve for 10 s", "role", "receiver")
    requests_in_flight = _gauge("Requests in flight, and other work in progress", "role")
    hot_receiver_share = _gauge(
        "Share of the POSTs in the shared lane that a hot receiver has, in the last minute; absent for all others, and "
        "with RELAY_HOT_RECEIVERS=off",
        "receiver",
    )
    hot_receivers_moved = _gauge(
        "Hot receivers that have a lane of their own for as long as they are hot, as the one process sees it that moves"
        " them; absent in all others"
    )
    waiting_records = _gauge(
        "Records in memory that wait, by reason: those of `waiting_for`, and backlog (no free place for an answer "
        "or a retry), max_in_flight, own_shortage, seat (the process's request limit), turn (for nothing). Records "
        "that wait longer are parked",
        "role",
        "reason",
    )
    memory_held_bytes = _level("Bytes of unfinished records and of their results in the lanes")
    memory_budget_bytes = _level("Limit of these bytes, at which intake stops: further records stay in the log")
    history_behind_seconds = _gauge(
        "Age of the oldest record that the history has not read, as measured by one process; absent without a "
        "history whose store and log answer"
    )

    # the state
    state_recoveries_total = _total("Recovery passes after the state lost its memory, or was restarted")
    state_tags_not_ready = _level(
        "Hash tags of the state, of 64, whose lanes are stopped until they are recovered", of_all=True
    )
    state_recovery_seconds = _single(
        _histogram("Duration of a recovery pass, during which the lanes of its tags are stopped", _RECOVERY_SECONDS)
    )
    state_tags_rebuilding = _level(
        "Hash tags of the state, of 64, whose memory of finished messages is not yet rebuilt after a loss"
    )
    rebuild_records_total = _counter("Records read to rebuild the memory of finished messages", "topic")
    rebuild_reached_seconds = _level("How far back from now that memory is rebuilt, while a rebuild runs")
    parked_put_back_total = _total("Parked records without a reference, restored to the due index")

    # faults
    dependency_waits_total = _counter("Calls repeated because the server was unavailable", "dependency")
    step_crashes_total = _counter("Unexpected exceptions in a worker's step: bugs", "stage")
    own_shortages_total = _counter(
        "Requests that failed for lack of local resources: no_resources (descriptors, memory), "
        "no_local_address, no_proxy; unreachable or dns_silent if all receivers are. They count as no attempts",
        "kind",
    )
    offsets_skipped_total = _counter("Unreadable offsets (of a damaged batch), skipped with a dead letter", "topic")
    log_truncated_offsets_total = _counter(
        "Offsets that had been read and that the log has lost: it came back shorter", "topic"
    )
    lanes_fenced_total = _counter("Lanes taken over by a newer owner", "topic")
    lanes_stalled_total = _counter("Times that a lane made no progress for a minute without a reason to wait", "topic")
    services_restarted_total = _counter(
        "Consumers and lanes restarted in a running process, by reason: consumer_broken, offset_missing, lane_anew "
        "or lane_broken",
        "reason",
    )

    # conditions that a process watches
    backlog_problem_partitions = _gauge(
        "Partitions that a group cannot continue (missing_offset, lost), whose oldest unread record is older "
        "than half of the retention (old), or that a producer's transaction holds back (open_transaction)",
        "problem",
    )
    history_records_total = _counter("Records that the history read: taken, or unreadable", "outcome")
    processes_silent = _level(
        "Processes of this relay that did not return their metrics in time: the sums have their last counters only"
    )
    receivers_refused = _level(
        "Entries of receiver_config that this process cannot use, for example because of a missing secret",
        of_all=True,
    )
    clock_offset_seconds = _level(
        "How far this process's own clock is ahead of the state's, which decides about ages and deadlines; "
        "signatures carry the former",
        of_all=True,
    )
    build_info = _gauge("Always 1; the label is the version", "version", of_all=True)

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self._receivers = ReceiverLabels()
        self._families: list[Family[Any]] = []
        self._before = _Before()
        self.registry.register(self._before)
        for name, metric in vars(Metrics).items():
            if isinstance(metric, _Metric):
                setattr(self, name, metric.define(self, f"relay_{name}"))
        self.build_info.labels(version).set(1)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def weigh(self, sent: Mapping[str, int]) -> None:
        """Takes the POSTs to each receiver since the last call: those with the most get series of their own."""
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
        """All metrics of the relay, by name."""
        return sorted(self._families, key=lambda family: family.name)

    def family(self, name: str, meaning: str, labels: tuple[str, ...], new: Callable[[], M]) -> Family[M]:
        """A new metric of the registry."""
        family = Family(name, meaning, labels, new, self._receivers)
        self.registry.register(family)
        self._families.append(family)
        return family


OF_ALL: Final = frozenset(
    f"relay_{name}" for name, metric in vars(Metrics).items() if isinstance(metric, _Metric) and metric.of_all
)
"""Gauges of shared things that each process measures itself: of several processes the value furthest from 0 counts."""
