"""Turns the engine's events into log lines, metrics and Sentry events, each outage once."""

import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field

from relay.domain.errors import (
    HistoryUnavailable,
    OffsetMissing,
    PartitionLost,
    RelayError,
    StateRecovering,
    StateUnavailable,
    Unavailable,
)
from relay.domain.own_events import Turn
from relay.domain.times import utc_text
from relay.engine.decision import Dead, Decision, Later
from relay.engine.observer import Observer, Recovered, StateMemory
from relay.engine.phases import IllegalTransition
from relay.engine.quarantine import WorkerFault
from relay.engine.work import Work
from relay.log.port import NewRecord, Record, TopicPartition
from relay.state.attempts import WaitReason
from relay.state.port import Restored
from relay.state.rows import TAGS
from relay.telemetry.attempts import facts_of, letter_facts, outcome_of, poll_facts
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from relay.telemetry.outages import MOST, Outages
from relay.telemetry.sentry import SentryReporter

REPEAT_S = 10.0
"""Interval at which the same wait is logged again: an unavailable server is one incident, not thousands of lines."""
_PARKED = "at the limit, intake stops until some finish: find receivers that are down, or raise RELAY_PARKED_TOTAL"
_MISSING = (
    "reading continues at the first record that exists: finished messages are not sent again, but records that "
    "were deleted unread are lost"
)
_TRUNCATED = (
    "Kafka lost acknowledged records; the records that replaced them are read, and finished messages are not "
    "sent again: docs/runbooks/RelayLogTruncated.md shows how to find the lost ones"
)
_STALLED = "offsets behind it cannot be committed; restart this process, which loses nothing"


@dataclass(eq=False)
class TelemetryObserver(Observer):
    """`ask_recovery` is called when the state is not ready.

    `logs_attempts`: the endpoints whose attempts are logged one by one: too many lines with hundreds of messages a
    second. `turned`: called with a receiver's new state, its name, and the begin of its outage (Unix seconds).
    """

    metrics: Metrics
    sentry: SentryReporter
    ask_recovery: Callable[[], None]
    _: KW_ONLY
    logs_attempts: Callable[[str], bool] = lambda _endpoint_id: False
    turned: Callable[[Turn, str, float | None], None] = lambda _turn, _receiver, _since: None
    _logged_at: dict[str, float] = field(default_factory=dict)
    _unsent: dict[str, str] = field(default_factory=dict)
    _outages: Outages = field(default_factory=Outages)
    _looked_at: float = 0.0
    _not_ready: frozenset[int] = frozenset()
    _was_ready: bool = False
    _many_parked: bool = False
    _short: bool = False

    def __post_init__(self) -> None:
        self.metrics.before_collecting(self._count_held)
        self._log = get_logger("relay.engine")

    def waiting(self, what: str, error: Unavailable) -> None:
        self.metrics.dependency_waits_total.labels(_dependency(error)).inc()
        if self._is_news(type(error).__name__):
            self._log.warning("waiting", to=what, error=str(error))

    def _is_news(self, trouble: str) -> bool:
        """One unavailable server is one incident, although each consumer reports it."""
        now = time.monotonic()
        if now - self._logged_at.get(trouble, -REPEAT_S) < REPEAT_S:
            return False
        self._logged_at[trouble] = now
        return True

    def state_recovering(self, tags: frozenset[int]) -> None:
        self.ask_recovery()

    def not_ready(self, tags: frozenset[int], forgotten: frozenset[int]) -> None:
        self.metrics.state_tags_not_ready.set(len(tags))
        if tags - self._not_ready:
            log = self._log.warning if self._was_ready else self._log.debug  # at the start it is no news
            log("state_not_ready", tags=_tags(tags), memory="missing" if tags & forgotten else "kept")
        self._not_ready = tags
        self._was_ready = self._was_ready or not tags

    def other_cluster(self) -> None:
        self._log.warning(
            "other_cluster",
            problem="Redis has the state of a relay on another Kafka cluster: ids that were sent there are duplicates "
            "here, and what was parked there waits. Correct RELAY_KAFKA_BOOTSTRAP_SERVERS or RELAY_REDIS_URL; if this "
            "cluster has replaced the other one, run `relay recover`",
        )

    def state_outdated(self) -> None:
        self._log.warning(
            "state_outdated",
            problem="Redis has older data than Kafka: another Redis was in use since, or a snapshot was put back. "
            "It is restored from Kafka, as after a loss; if this is the wrong Redis, correct RELAY_REDIS_URL",
        )

    def recovery_begun(self, tags: frozenset[int], forgotten: frozenset[int]) -> None:
        log = self._log.info if self._was_ready else self._log.debug
        log("recovery_begun", tags=_tags(tags), memory="missing" if tags & forgotten else "kept")

    def recovered(self, done: Recovered) -> None:
        put_back, finished = done.count(Restored.PUT_BACK), done.count(Restored.FINISHED)
        self.metrics.parked_put_back_total.inc(put_back)
        facts = {
            "parked": done.count(),
            "put_back": put_back,
            "tombstones": finished,
            "seconds": round(done.seconds, 3),
        }
        if not done.tags:
            if put_back or finished:
                self._log.warning("parked_references_missing", **facts)
            return
        self.not_ready(frozenset(), frozenset())
        self.metrics.state_recoveries_total.inc()
        self.metrics.state_recovery_seconds.observe(done.seconds)
        logs = {StateMemory.LOST: self._log.warning, StateMemory.KEPT: self._log.info, StateMemory.NEW: self._log.debug}
        logs[done.memory](
            "state_recovered",
            tags=_tags(done.tags),
            memory=done.memory.value,
            after_loss=done.memory is StateMemory.LOST,
            in_doubt_until=utc_text(done.doubt_until),
            **facts,
        )

    def step_crashed(self, stage: str, error: Exception) -> None:
        self.metrics.step_crashes_total.labels(stage).inc()
        self._log.error("step_crashed", stage=stage, error=type(error).__name__)
        self.sentry.report_crash(error)

    def lane_broken(self, partition: TopicPartition, error: Exception, record: Record | None, times: int) -> None:
        cause = error.__cause__ or error if isinstance(error, WorkerFault) else error
        place = {"partition": partition.partition, "offset": record.offset if record is not None else None}
        facts = {**place, **_facts_of(cause), "times": times}
        self.metrics.services_restarted_total.labels("lane_broken").inc()
        self._log.error("lane_broken", topic=partition.topic, **facts, error=_named(cause), exc_info=cause)
        self.sentry.report_crash(cause, partition.topic, **facts)

    def attempt(self, stage: str, work: Work, decision: Decision) -> None:
        endpoint_id = work.endpoint_id
        if self.logs_attempts(endpoint_id) and not self._is_repeated(work, decision):
            if stage == "pending":
                self._log.info("poll", stage=stage, **poll_facts(work, decision))
            else:
                self._log.info("attempt", stage=stage, **facts_of(work, decision))
        outcome = outcome_of(decision)
        if self._outages.began and outcome == "done" and stage != "pending":
            self._is_back(endpoint_id)  # another process's ping was answered
        if not work.requested and outcome != "released":
            return  # it ended without a request: it was too old, say, or its request could not be made
        match "pending" if stage == "to_receiver" and work.in_doubt else stage:  # in doubt, the receiver was asked
            case "to_receiver":
                self.metrics.delivery_attempts_total.labels(endpoint_id[2:], outcome).inc()
            case "pending":
                self.metrics.status_polls_total.labels(endpoint_id[2:], outcome).inc()
            case "to_sender":
                self.metrics.callback_attempts_total.labels(outcome).inc()

    def _is_repeated(self, work: Work, decision: Decision) -> bool:
        """Whether an endpoint's pause without a request, which is renewed every few seconds, was logged before."""
        known = self._unsent.pop(work.endpoint_id, None)
        if work.requested or not isinstance(decision, Later):
            return False
        if len(self._unsent) >= MOST:
            del self._unsent[next(iter(self._unsent))]
        self._unsent[work.endpoint_id] = decision.reason
        return known == decision.reason

    def held_up(self, work: Work, behind: int) -> None:
        receiver, delivery = _receiver_of(work.endpoint_id), work.delivery
        self.metrics.held_up_total.labels(receiver).inc()
        ids = {} if delivery is None else {"source_id": delivery.source_id, "message_id": delivery.message_id}
        self._log.warning("held_up", receiver=receiver, **ids, attempts=work.attempts, waiting_behind=behind)

    def duplicate(self, stage: str) -> None:
        if stage == "from_sender":
            self.metrics.duplicates_total.inc()

    def dead(self, stage: str, endpoint_id: str, record: Record | NewRecord, dead: Dead) -> None:
        self.metrics.failed_total.labels(_receiver_of(endpoint_id), dead.reason).inc()
        self._log.warning("dead_letter", stage=stage, endpoint=endpoint_id, **letter_facts(record, dead))

    def skipped(self, partition: TopicPartition, first: int, last: int, why: str) -> None:
        self.metrics.offsets_skipped_total.labels(partition.topic).inc(last - first + 1)
        place = {"topic": partition.topic, "partition": partition.partition, "first": first, "last": last}
        self._log.error("offsets_skipped", **place, problem=why)
        self.sentry.report_failure("-", "offsets_skipped", "system", partition.topic, 0, None)

    def former_owner_died(self, partition: TopicPartition, before: int, marked: int) -> None:
        log = self._log.warning if marked else self._log.info
        log("former_owner_died", topic=partition.topic, partition=partition.partition, before=before, marked=marked)

    def state_clock_set_back(self, seconds: float) -> None:
        self._log.warning("state_clock_set_back", seconds=round(seconds, 3))

    def parked(self, topic: str, count: int) -> None:
        self.metrics.parked_total.labels(topic).inc(count)

    def parked_in_all(self, count: int, cap: int) -> None:
        self.metrics.parked_references.set(count)
        self.metrics.parked_references_limit.set(cap)
        many = is_many(count, cap)
        if many and not self._many_parked:
            self._log.warning("parked_many", parked=count, most=cap, problem=_PARKED)
        self._many_parked = many

    def endpoint_held(self, endpoint_id: str, why: WaitReason) -> None:
        self._outages.hold(endpoint_id, why, time.monotonic())

    def _count_held(self) -> None:
        """Sets the gauges again, because a receiver's series may have changed."""
        for level in self.metrics.endpoints_held.every():
            level.set(0)
        for endpoint_id, why in self._outages.held:
            self.metrics.endpoints_held.labels(_receiver_of(endpoint_id), why).add(1)

    def endpoint_offline(self, endpoint_id: str, down_for_s: float, since: float) -> None:
        self._report_turn("receiver.offline", endpoint_id, since)
        if self._outages.begins(endpoint_id, time.monotonic(), down_for_s):
            self._log.warning("endpoint_offline", endpoint=endpoint_id, down_for_s=round(down_for_s))

    def endpoint_back(self, endpoint_id: str, down_for_s: float, since: float) -> None:
        self._report_turn("receiver.back", endpoint_id, since)
        self.metrics.pings_total.labels(_receiver_of(endpoint_id), "answered").inc()
        self._is_back(endpoint_id)

    def ping_unanswered(self, endpoint_id: str) -> None:
        self.metrics.pings_total.labels(_receiver_of(endpoint_id), "unanswered").inc()

    def endpoint_gone(self, endpoint_id: str, detail: str) -> None:
        self._report_turn("receiver.gone", endpoint_id)
        self._outages.ends(endpoint_id)
        self._log.error("endpoint_gone", endpoint=endpoint_id, detail=detail, paused="until it is resumed")

    def endpoint_disabled(self, endpoint_id: str, down_for_s: float, last_status: int | None, *, gone: bool) -> None:
        receiver = _receiver_of(endpoint_id)
        event = "endpoint_gone" if gone else "endpoint_disabled"
        self._report_turn("receiver.gone" if gone else "receiver.disabled", endpoint_id)
        self._outages.ends(endpoint_id)
        self.metrics.pings_total.labels(receiver, "gone" if gone else "unanswered").inc()
        self._log.error(event, endpoint=endpoint_id, down_for_s=round(down_for_s), paused="until it is resumed")
        self.sentry.report_failure(receiver, "gone" if gone else "disabled", "receiver", "ping", 0, last_status)

    def _report_turn(self, turn: Turn, endpoint_id: str, since: float | None = None) -> None:
        if endpoint_id[:2] == "r:":
            self.turned(turn, endpoint_id[2:], since)

    def _is_back(self, endpoint_id: str) -> None:
        began = self._outages.ends(endpoint_id)
        if began is not None:
            self._log.info("endpoint_back", endpoint=endpoint_id, down_for_s=round(time.monotonic() - began))

    def sending_paused(self, kind: str, detail: str) -> None:
        self.metrics.own_shortages_total.labels(kind).inc()
        if not self._short:
            self._short = True
            self._log.warning("sending_paused", kind=kind, error=detail, counts="as no attempt")

    def sending_resumed(self, lasted_s: float) -> None:
        self._short = False
        self._log.info("sending_again", paused_for_s=round(lasted_s, 1))

    def fenced(self, partition: TopicPartition) -> None:
        self.metrics.lanes_fenced_total.labels(partition.topic).inc()
        self._log.warning("fenced", topic=partition.topic, partition=partition.partition)

    def lane(self, partition: TopicPartition, *, unfinished: int | None) -> None:
        levels, labels = self.metrics.lane_window_records, (partition.topic, str(partition.partition))
        if unfinished is None:
            levels.forget(*labels)
        else:
            levels.labels(*labels).set(unfinished)

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._looked_at >= REPEAT_S:
            self._looked_at = now
            self._outages.let_go(now)

    def stalled(self, partition: TopicPartition, offset: int, seconds: float) -> None:
        self.metrics.lanes_stalled_total.labels(partition.topic).inc()
        place = {"topic": partition.topic, "partition": partition.partition, "offset": offset}
        self._log.error("lane_stalled", **place, seconds=round(seconds), problem=_STALLED)

    def service_died(self, name: str, error: Exception) -> None:
        for each in _leaves(error):
            where = None if isinstance(each, RelayError) else each
            self._log.critical("service_died", service=name, error=_named(each), exc_info=where)
            self.sentry.report_crash(each)

    def service_failed(self, name: str, error: RelayError, again_in_s: float) -> None:
        event = "lane_anew" if isinstance(error, PartitionLost) else "consumer_broken"
        if isinstance(error, OffsetMissing):
            event = "offset_missing"
            self._truncated(error)
            self._log.error(event, service=name, error=str(error), problem=_MISSING, again_in_s=again_in_s)
            for topic in sorted({topic for topic, _ in error.partitions - error.lost.keys()}):
                self.sentry.report_failure("-", event, "system", topic, 0, None)
        else:
            log = self._log.warning if self._is_news(event) else self._log.debug
            log(event, service=name, error=str(error), again_in_s=again_in_s)
        self.metrics.services_restarted_total.labels(event).inc()

    def _truncated(self, error: OffsetMissing) -> None:
        for (topic, partition), (first, end) in sorted(error.lost.items()):
            self.metrics.log_truncated_offsets_total.labels(topic).inc(end - first)
            place = {"topic": topic, "partition": partition, "first": first, "last": end - 1}
            self._log.critical("log_truncated", **place, problem=_TRUNCATED)
            self.sentry.report_failure("-", "log_truncated", "system", topic, 0, None)


def is_many(parked: int, cap: int) -> bool:
    """Whether half of the cap is parked, which an operator has to know."""
    return 2 * parked >= cap


def _tags(tags: frozenset[int]) -> str:
    """Hash tags for operators: nearly always all of them."""
    return "all" if len(tags) == TAGS else ",".join(map(str, sorted(tags)))


def _facts_of(error: BaseException) -> dict[str, str]:
    if isinstance(error, IllegalTransition):
        return {"phase": error.phase.value, "work_event": error.event.value}
    return {}


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _leaves(error: Exception) -> Iterator[Exception]:
    """The exceptions in nested groups."""
    if isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _receiver_of(endpoint_id: str) -> str:
    """The receiver's name; `-` for a source's callback."""
    return endpoint_id[2:] if endpoint_id[:2] == "r:" else "-"


def _dependency(error: Unavailable) -> str:
    """The unavailable server."""
    match error:
        case StateUnavailable() | StateRecovering():
            return "state"
        case HistoryUnavailable():
            return "history"
        case _:
            return "log"
