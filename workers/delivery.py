"""A delivery as work: one message on its way to one receiver, and what the engine keeps to on that way."""

from functools import lru_cache
from math import inf

from msgspec import structs

from relay.domain.directory import Directory
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId, digest12
from relay.domain.ordering import is_by_value
from relay.domain.receiver import BreakerPolicy, Endpoint, Receiver, Source
from relay.engine.work import Dead, GateRules, Later, Work
from relay.log.port import Record
from relay.state.attempts import Change, Limits
from relay.state.rows import delivery_row

RATE_SLACK = 0.05
LEAST_RATE_SLACK_S = 0.02
"""Starts are paced so much of a window slower than the limit, and at least so long, so that the endpoint does not see
more although some start late, or are longer on their way."""
LATE_SHARE = 0.6
"""How much of that a start may be late; the rest is for the way."""

MOST_OFFSETS = 10**12
"""A partition never has so many records."""
OFF_S = 5.0
SWITCHED_OFF = Later(OFF_S, "the receiver is switched off", Change.RELEASED, pause_s=OFF_S)
"""As a pause, renewed until the receiver is enabled again: nothing is sent, no attempt counts, but time passes."""
UNVERIFIED = Later(OFF_S, "the receiver has yet to be verified", Change.RELEASED, pause_s=OFF_S)
"""Likewise, until its URL has proved that it wants what is sent there."""


def unusable_wait(settings: Receiver | Source) -> Later | None:
    """How long nothing is tried where this process cannot use the settings; None: it can. The registry resumes what
    waits as soon as it can."""
    if settings.unusable is None:
        return None
    return Later(OFF_S, f"its settings cannot be used here: {settings.unusable}", Change.RELEASED, pause_s=OFF_S)


class Delivery(Work):
    """One message on its way to one receiver."""

    __slots__ = ("asked", "hop", "receiver", "said")

    def __init__(self, record: Record, hop: Hop, receiver: Receiver) -> None:
        row = delivery_row(hop.delivery)
        super().__init__(record, row, hop.generation, order_key(receiver, hop.delivery, hop.order), row.owner)
        if hop.generation > 0 or not hop.accepted_ms:
            # a replay is a new life: its age counts from the replay, which appended this record
            hop = structs.replace(hop, accepted_ms=record.timestamp_ms)
        self.hop = hop
        self.receiver = receiver
        self.rules = rules_of(receiver)
        self.attempts = hop.attempt
        self.asked = 0
        """Status GETs made about the attempt in doubt."""
        self.said: str | None = None
        """What came of the last attempt that failed, in words, while this process knows it."""

    @property
    def delivery(self) -> DeliveryId:
        return self.hop.delivery

    @property
    def awaited(self) -> bool:
        return self.hop.wait_s > 0

    def follow(self, receiver: Receiver) -> None:
        """Settings may have changed while it waited: an endpoint that was corrected counts at once."""
        if receiver is not self.receiver:
            self.receiver = receiver
            self.rules = rules_of(receiver)

    def age_s(self, now: float) -> float:
        """Seconds since acceptance. `now`: Unix seconds."""
        return max(0.0, now - self.hop.accepted_ms / 1000)

    def rest_s(self, now: float) -> float:
        """Seconds until it is too old; 0 when it is."""
        return max(0.0, self.receiver.post.retry.max_age - self.age_s(now))

    @property
    def sequence(self) -> int | None:
        """Grows along the order key, also over moves: the offset in the lane's topic; or what it was in the delivery's
        first life."""
        if self.queue is None and not self.out_of_order:
            return None
        if self.hop.sequence is not None:
            return self.hop.sequence
        return self.hop.move * MOST_OFFSETS + self.record.offset


def receiver_or_stand_in(directory: Directory, hop: Hop) -> Receiver:
    """The receiver; or one with nothing but its name, where it was removed since: `still_there` then ends the work in
    its own row, so that whoever looks at the delivery sees why."""
    return _of_its_life(directory.receiver(hop.delivery.receiver), hop) or Receiver(hop.delivery.receiver, Endpoint(""))


def still_there(directory: Directory, hop: Hop) -> Receiver | Dead:
    """The receiver with its settings of now, or how its deliveries end."""
    name = hop.delivery.receiver
    receiver = directory.receiver(name)
    if receiver is None:
        return Dead("unknown_receiver", f"there is no receiver named {name!r} any more")
    another = Dead("unknown_receiver", f"the receiver {name!r} was removed; another one has its name now")
    return _of_its_life(receiver, hop) or another


def removed(directory: Directory, hop: Hop) -> Receiver | None:
    """The last settings of the receiver, where it was removed, and something of it is left."""
    return _of_its_life(directory.removed(hop.delivery.receiver), hop)


def _of_its_life(receiver: Receiver | None, hop: Hop) -> Receiver | None:
    """None: another one has its name."""
    return receiver if receiver is not None and receiver.life.has(hop.life, hop.origin) else None


def not_sendable(receiver: Receiver) -> Later | None:
    """Why the receiver is sent nothing now, no POST, no GET and no ping, by its settings; None: it is."""
    if not receiver.enabled:
        return SWITCHED_OFF
    return None if receiver.verified else UNVERIFIED


def can_be_asked(receiver: Receiver) -> bool:
    """Whether the receiver can say if it has a message although its response to the POST was lost."""
    return receiver.status_endpoint is not None and "{response." not in receiver.status_endpoint


def rules_of(receiver: Receiver) -> GateRules:
    """What the engine keeps to when it sends to a receiver from one of its partitions."""
    asked = can_be_asked(receiver)
    once = not asked and receiver.on_ambiguous == "dead_letter"
    post, partitions = receiver.post, receiver.partitions
    pace = post.rate_limit, post.window_size
    patience_s = inf if receiver.patience is None else receiver.patience
    return _rules(*pace, post.settle_s, post.breaker, post.max_in_flight, partitions, asked, once, patience_s)


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
) -> GateRules:
    """Remembered: most receivers have the same ones."""
    interval_s, late_s = pace_of(rate_limit, window_s)
    limits = Limits(interval_s, settle_s, breaker, settle_s, in_flight)
    share = in_flight_per_lane(in_flight, partitions)
    return GateRules(
        limits,
        share,
        partitions <= in_flight,
        late_s,
        ask_first=asked,
        at_most_once=once,
        patience_s=patience_s,
    )


def in_flight_per_lane(most: int, partitions: int) -> int:
    return max(1, most // partitions)


def pace_of(rate_limit: int | None, window_s: float) -> tuple[float, float]:
    """Least distance of two POST starts, and how late each may be; in seconds."""
    if not rate_limit:
        return 0.0, inf
    slack_s = max(window_s * RATE_SLACK, LEAST_RATE_SLACK_S)
    return (window_s + slack_s) / rate_limit, slack_s * LATE_SHARE


def order_key(receiver: Receiver, delivery: DeliveryId, order: str | None) -> bytes | None:
    """Digest of what `delivery` has to stay in order with; None: of nothing. `order`: as in its hop."""
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
