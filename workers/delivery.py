"""A delivery as the engine's work: one message on its way to one receiver, and the rules for sending it."""

from dataclasses import replace
from functools import lru_cache
from math import inf

from msgspec import structs

from relay.domain.attempt import AttemptKind
from relay.domain.batch import about_bytes
from relay.domain.directory import Directory
from relay.domain.filters import is_by_value
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId, digest12
from relay.domain.outcome import Ambiguous, NotNow, NotProcessed, Ruling, healthy
from relay.domain.receiver import BatchPolicy, BreakerPolicy, Endpoint, Receiver, RetryPolicy, Source
from relay.domain.schedule import GiveUp, Jitter, RetryAgain, backoff, next_attempt
from relay.domain.status import status_url, unaskable
from relay.domain.status_chain import can_be_asked_first
from relay.domain.text import counted
from relay.domain.timing import Timing
from relay.engine.decision import Dead, Done, Later, Resend
from relay.engine.work import EndpointRules, Work
from relay.log.port import Record
from relay.state.attempts import Change, Limits
from relay.state.rows import RowKey, delivery_row
from workers.journal import RequestPurpose

RATE_SLACK = 0.05
LEAST_RATE_SLACK_S = 0.02
"""Starts are paced slower than the limit, by this share of a window and at least by LEAST_RATE_SLACK_S. Some starts
are late and some requests travel longer; the endpoint must still not see more than the limit."""
BATCHES_A_WINDOW = 5
"""Least batches in which the events of a rate limit are sent, where it counts events."""
LATE_SHARE = 0.6
"""The share of the slack by which a start may be late; the rest is for travel time."""

MOST_OFFSETS = 10**12
"""More records than a partition ever has."""
OFF_S = 5.0
OFF_ALONE_S = 60.0
SWITCHED_OFF = Later(OFF_S, "the receiver is switched off", Change.RELEASED, pause_s=OFF_S)
"""A pause that is renewed until the receiver is enabled: nothing is sent and no attempt is counted, but the message
ages."""
UNVERIFIED = Later(OFF_S, "the receiver has yet to be verified", Change.RELEASED, pause_s=OFF_S)
"""Likewise, until the receiver's URL has been verified."""


PAST_DEADLINE = Later(0.0, "its deadline has passed since it was begun", Change.RELEASED)
NO_PAYLOAD_URL = Later(
    OFF_S,
    "no payload URL can be made here: RELAY_ANSWER_SECRET or RELAY_PUBLIC_URL is not set",
    Change.RELEASED,
    pause_s=OFF_S,
)
"""Likewise, for a receiver of thin events."""


def ruled(decision: Done | Later | Dead, ruling: Ruling) -> Done | Later | Dead:
    """The decision, with the rule of the receiver that has decided."""
    if ruling.disables and isinstance(decision, Done):
        return structs.replace(decision, ruling=ruling, pause_s=inf)
    return structs.replace(decision, ruling=ruling)


def unusable_wait(settings: Receiver | Source) -> Later | None:
    """The wait while this process cannot use the settings; None if it can. The registry resumes waiting work as soon
    as the settings become usable."""
    if settings.unusable is None:
        return None
    return Later(OFF_S, f"its settings cannot be used here: {settings.unusable}", Change.RELEASED, pause_s=OFF_S)


def waits_alone(wait: Later) -> Later:
    """A wait for the settings of one message, while others of its endpoint go on."""
    return structs.replace(wait, due_in_s=OFF_ALONE_S, pause_s=0.0)


class HopWork(Work):
    """A work about one delivery, whose record has a hop."""

    __slots__ = ("hop", "last_failure")

    def __init__(self, record: Record, hop: Hop, row: RowKey, queue: bytes | None = None) -> None:
        super().__init__(record, row, hop.generation, queue, row.owner)
        self.hop = hop
        self.awaited = hop.wait_s > 0
        self.last_failure: str | None = None
        """The outcome of the last request without success, in words, if this process knows it."""

    @property
    def delivery(self) -> DeliveryId:
        return self.hop.delivery

    def age_s(self, now: float) -> float:
        """Seconds since the record was written: an acceptance, or a result. `now`: Unix seconds."""
        return max(0.0, now - self.record.timestamp_ms / 1000)

    def with_last_failure(self, detail: str) -> str:
        """`detail` of a dead letter, with the last failure if this process knows it."""
        return f"{detail}; the last: {self.last_failure}" if self.last_failure else detail

    def purpose(self, kind: AttemptKind, endpoint: Endpoint, attempt: int, posts: int) -> RequestPurpose:
        """The purpose of a request for this delivery. `attempt`, `posts`: as in RequestPurpose."""
        hop = self.hop
        about = hop.delivery, self.generation, attempt, posts, hop.life, self.number
        return RequestPurpose(kind, self.endpoint_id, endpoint, *about)


class Delivery(HopWork):
    """One message on its way to one receiver."""

    __slots__ = ("asked", "receiver", "timing")

    def __init__(self, record: Record, hop: Hop, receiver: Receiver) -> None:
        queue = order_key(receiver, hop.delivery, hop.order)
        super().__init__(record, hop, delivery_row(hop.delivery), queue)
        if hop.generation > 0 or not hop.accepted_ms:
            # a replay starts a new life: its age counts from the replay, which appended this record
            self.hop = structs.replace(hop, accepted_ms=record.timestamp_ms)
        self.timing = None if hop.generation > 0 else hop.timing
        """None for a replay, which is sent when an operator wants it."""
        if self.timing is not None and (self.timing.deliver_at or self.timing.window):
            self._leave_order(self.timing)
        self.receiver = receiver
        self.rules = rules_of(receiver)
        self.attempts = hop.attempt
        if receiver.ordering == "receiver":
            self._count_in()
        self.asked = 0
        """Status GETs made about the attempt in doubt."""
        self.shares = not hop.ask_first and hop.one_off is None

    def _leave_order(self, timing: Timing) -> None:
        """Others of its order key do not wait for it, however long it is delayed. Its age counts from when it is
        due."""
        self.queue, self.out_of_order = None, self.queue is not None
        due_ms = max(self.hop.accepted_ms, int(timing.deliver_at * 1000)) + int(timing.window * 1000)
        self.hop = structs.replace(self.hop, accepted_ms=due_ms)

    def expired_or_early(self, now: float) -> Dead | Later | None:
        """The decision about a delivery that has expired or is not due yet; None for any other. `now`: Unix seconds."""
        timing = self.timing
        if timing is None and now - self.hop.accepted_ms / 1000 < self.receiver.post.retry.max_age:
            return None  # as usual
        if timing is not None and timing.deliver_at > now and not self.attempts:
            return Later(timing.deliver_at - now, "it is not due yet", Change.RELEASED)
        if self.rest_s(now) > 0:
            return None
        own = timing is not None and self.retry is not self.receiver.post.retry
        limit = "before its deadline" if own else "within max_age"
        # without a look at its row, a former owner's attempts are not known
        after = f" after {counted(self.attempts, 'attempt')}" if self.attempts else ""
        return Dead("expired", self.with_last_failure(f"not delivered {limit}{after}"))

    def follow(self, receiver: Receiver) -> None:
        """Follow changed settings: a corrected endpoint takes effect at once."""
        if receiver is not self.receiver:
            self.receiver = receiver
            self.rules = rules_of(receiver)
            self._count_in()

    def _count_in(self) -> None:
        """Deliveries to a receiver that gets one at a time are numbered, unless they have left its order before their
        first attempt."""
        left = self.timing is not None and bool(self.timing.deliver_at or self.timing.window)
        is_numbered = self.receiver.ordering == "receiver" and not left and self.hop.one_off is None
        self.first_number = self._place + 1 if is_numbered else 0
        if is_numbered and self.number is None:
            self.number = self.hop.sequence

    def age_s(self, now: float) -> float:
        """Seconds since acceptance. `now`: Unix seconds."""
        return max(0.0, now - self.hop.accepted_ms / 1000)

    def rest_s(self, now: float) -> float:
        """Seconds until `max_age`, or the message's own deadline if that is earlier; 0 once it has passed. Its window
        may close before its age begins to count, which is at the latest end of the window."""
        return max(0.0, min(self.receiver.post.retry.max_age - self.age_s(now), self.deadline_in_s(now)))

    def deadline_in_s(self, now: float) -> float:
        """Seconds until the message's own deadline; inf without one."""
        return inf if self.timing is None or not self.timing.deadline else self.timing.deadline - now

    @property
    def retry(self) -> RetryPolicy:
        """The receiver's, within the message's own deadline."""
        policy, timing = self.receiver.post.retry, self.timing
        if timing is None or not timing.deadline:
            return policy
        left_s = timing.deadline - self.hop.accepted_ms / 1000
        return policy if left_s >= policy.max_age else replace(policy, max_age=left_s)

    @property
    def post_bytes(self) -> int:
        return about_bytes(self.hop, self.record.value or b"")

    @property
    def sequence(self) -> int | None:
        """A number that grows along the order key, also across moves: the number from the delivery's first life, or
        that among the deliveries of its receiver, or else the offset in the lane's topic."""
        if self.receiver.ordering == "receiver":
            return self.number
        if self.queue is None and not self.out_of_order:
            return None
        return self._place if self.hop.sequence is None else self.hop.sequence

    @property
    def _place(self) -> int:
        return self.hop.move * MOST_OFFSETS + self.record.offset


def receiver_or_stand_in(directory: Directory, hop: Hop) -> Receiver:
    """The receiver, or a stand-in with only its name if it was removed. `current_receiver` then ends the work in its
    own row, where the reason stays visible."""
    return _of_its_life(directory.receiver(hop.delivery.receiver), hop) or Receiver(hop.delivery.receiver, Endpoint(""))


def current_receiver(directory: Directory, hop: Hop) -> Receiver | Dead:
    """The receiver with its current settings, or the end of its deliveries."""
    name = hop.delivery.receiver
    receiver = directory.receiver(name)
    if receiver is None:
        return Dead("unknown_receiver", f"there is no receiver named {name!r} any more")
    another = Dead("unknown_receiver", f"the receiver {name!r} was removed; its name now belongs to another receiver")
    return _of_its_life(receiver, hop) or another


def removed(directory: Directory, hop: Hop) -> Receiver | None:
    """The last settings of a removed receiver whose deliveries are not all finished; None otherwise."""
    return _of_its_life(directory.removed(hop.delivery.receiver), hop)


def _of_its_life(receiver: Receiver | None, hop: Hop) -> Receiver | None:
    """The receiver; None if its name has started another life since the message was routed."""
    if receiver is None or receiver.life.id == hop.life:  # nearly always
        return receiver
    return receiver if receiver.life.has(hop.life, hop.origin) else None


def not_sendable(receiver: Receiver) -> Later | None:
    """Why the receiver's settings forbid every request now (POST, GET and ping); None if they do not."""
    if not receiver.enabled:
        return SWITCHED_OFF
    return None if receiver.verified else UNVERIFIED


def can_be_asked(receiver: Receiver) -> bool:
    """Whether the receiver can be asked about a message although its response to the POST was lost."""
    if receiver.status_steps:
        return can_be_asked_first(receiver)
    return receiver.status_endpoint is not None and "{response." not in receiver.status_endpoint


def own_status_url(receiver: Receiver, delivery: DeliveryId) -> str | None:
    """The URL of the receiver's status endpoint for a delivery; None if it has none, or none without the response."""
    endpoint = receiver.status_endpoint
    if endpoint is None or not can_be_asked(receiver) or unaskable(endpoint, delivery):
        return None
    return status_url(endpoint, delivery)


def rules_of(receiver: Receiver) -> EndpointRules:
    """The engine's rules for sending to a receiver from one of its partitions."""
    asked = can_be_asked(receiver)
    once = not asked and receiver.on_ambiguous == "dead_letter"
    post, partitions = receiver.post, receiver.partitions
    pace = post.rate_limit, post.window_size
    patience_s = inf if receiver.patience is None else receiver.patience
    batch, each = receiver.batch, receiver.rate_limit_unit == "events"
    limits = post.settle_s, post.breaker, post.max_in_flight, partitions
    return _rules(*pace, *limits, asked, once, patience_s, batch, each, receiver.is_origin, receiver.owner)


@lru_cache(maxsize=4_096)
def _rules(
    rate_limit: int | None,
    window_s: float,
    settle_s: float,
    breaker: BreakerPolicy,
    in_flight: int,
    partitions: int,
    asked: bool,
    once: bool,
    patience_s: float,
    batch: BatchPolicy | None,
    each: bool,
    is_origin: bool,
    owner: str | None,
) -> EndpointRules:
    """Cached: most receivers have the same rules."""
    if batch is not None and rate_limit and each:
        rate_limit, batch = paced_batch(rate_limit, batch)
    interval_s, late_s = pace_of(rate_limit, window_s)
    limits = Limits(interval_s, settle_s, breaker, settle_s, in_flight)
    share = in_flight_per_lane(in_flight, partitions)
    return EndpointRules(
        limits,
        share,
        partitions <= in_flight,
        late_s,
        ask_first=asked,
        at_most_once=once,
        patience_s=patience_s,
        batch=batch,
        paces_each=each,
        is_origin=is_origin,
        owner=owner,
    )


def paced_batch(rate_limit: int, batch: BatchPolicy) -> tuple[int, BatchPolicy]:
    """The pace, and the batches, with which no window has more than `rate_limit` events. Those of a batch arrive all at
    once, so a window may have as many more than its pace as a batch has, less one: small batches keep the pace high."""
    most = max(1, min(batch.max_events, rate_limit // BATCHES_A_WINDOW))
    return rate_limit - most + 1, replace(batch, max_events=most)


def in_flight_per_lane(most: int, partitions: int) -> int:
    return max(1, most // partitions)


def pace_of(rate_limit: int | None, window_s: float) -> tuple[float, float]:
    """Least distance between two POST starts, and how late each may be; in seconds."""
    if not rate_limit:
        return 0.0, inf
    slack_s = max(window_s * RATE_SLACK, LEAST_RATE_SLACK_S)
    return (window_s + slack_s) / rate_limit, slack_s * LATE_SHARE


def order_key(receiver: Receiver, delivery: DeliveryId, order: str | None) -> bytes | None:
    """Digest of the key that `delivery` stays in order with; None if it is unordered. `order`: as in its hop."""
    match receiver.ordering:
        case "receiver":
            return _order_key(receiver.name)
        case "none":
            return None
        case by if order is not None and is_by_value(by):
            return _order_key(receiver.name, delivery.source_id, order)
        case _:
            return _order_key(receiver.name, delivery.source_id)


@lru_cache(maxsize=16_384)
def _order_key(*parts: str) -> bytes:
    return digest12("q", *parts)


def resend_or_give_up(work: HopWork, policy: RetryPolicy, reason: str) -> Resend | Dead:
    """The next attempt, as the last one has no known outcome; or the end, for this reason, if that was the last."""
    if work.attempts >= policy.max_attempts:
        said = work.last_failure or "it got no answer"
        return Dead(reason, f"given up after {counted(work.attempts, 'attempt')}; the last: {said}")
    return Resend()


def decide_retry(
    outcome: NotNow | Ambiguous | NotProcessed,
    detail: str,
    *,
    attempts: int,
    age_s: float,
    policy: RetryPolicy,
    jitter: Jitter,
) -> Later | Dead:
    """What follows a failed POST, to a receiver or callback: later, or dead (`exhausted`, `expired`) at the first of
    the policy's limits.

    `detail`: the failure, in words. `attempts`: POSTs begun so far. After "not now" the whole endpoint is paused, for
    as long as it asked, even if this delivery has less time left, or none.
    """
    is_pause, asked_s, health = isinstance(outcome, NotNow), outcome.retry_after_s or 0.0, healthy(outcome)
    may_arrive = isinstance(outcome, Ambiguous) and outcome.status is None
    is_counted = outcome.counted if isinstance(outcome, NotNow) else True
    tried = attempts if is_counted else min(attempts, policy.max_attempts) - 1
    match next_attempt(attempts=tried, age_s=age_s, policy=policy, retry_after_s=outcome.retry_after_s, jitter=jitter):
        case RetryAgain(delay_s):
            return Later(
                delay_s,
                "not now" if isinstance(outcome, NotNow) else outcome.kind,
                counted=is_counted,
                last_status=outcome.status,
                healthy=health,
                pause_s=max(delay_s, asked_s) if is_pause else 0.0,
                detail=detail,
                may_arrive=may_arrive,
            )
        case GiveUp(reason):
            words = f"given up after {counted(attempts, 'attempt')}; the last: {detail}"
            pause_s = max(backoff(tried, policy, jitter), asked_s) if is_pause else 0.0
            return Dead(reason, words, outcome.status, health, pause_s=pause_s, may_arrive=may_arrive)
