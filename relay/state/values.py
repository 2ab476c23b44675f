"""Arguments and results of the state port that are neither rows nor attempts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from msgspec import Struct

from relay.domain.hold import Hold
from relay.domain.incident import Incident, Marks
from relay.domain.receiver import Quota
from relay.log.port import TopicPartition
from relay.state.rows import RowKey


class Lane(NamedTuple):
    """A partition of a topic and its owner's epoch. A begin, due or park with an epoch below the highest one seen is
    Fenced; a higher one is stored, so the fence recovers after a loss. Groups whose epochs restart (deleted, expired,
    rebuilt) are below it: see `begin_anew`."""

    topic: str
    partition: int
    epoch: int


class IntakeRequest(Struct, frozen=True, gc=False):
    """`queue`: digest of the order key, None without an order. `generation`: the record's."""

    row: RowKey
    generation: int
    queue: bytes | None


class Counts(NamedTuple):
    """Numbers of an owner's parked references."""

    retries: int
    polls: int


class UnreleasedReservation(NamedTuple):
    """Left by a lane's former owner that ended without `leave`. `reserved`: it may have been processing any record
    before this offset; `marked`: suspected records, and how often each was marked."""

    reserved: int
    marked: Mapping[int, int]


class Restored(Enum):
    """Result of restoring a reference: its row is finished (a tombstone is owed), it existed, or it was put back."""

    FINISHED = "finished"
    THERE = "there"
    PUT_BACK = "put_back"


HintTopic = Literal["ends", "endpoints"]

LaneEnds = Mapping[int, Mapping[TopicPartition, int]]


class Gap(NamedTuple):
    """Finished rows of a tag may be missing. `since`: when the loss was noticed; `kept_until`: rows of deliveries that
    ended before then exist (0 if unknown). Unix seconds."""

    since: float
    kept_until: float


@dataclass(frozen=True, slots=True)
class Charge:
    """A request to count `messages` against the quota of `name`. The same name with another window is counted
    separately."""

    name: str
    messages: int
    quota: Quota


class Balance(NamedTuple):
    """The reply to a charge against a quota. `granted`: the messages fit and were counted. `left`: messages left in the
    current window, which ends in `ends_in_s`."""

    granted: bool
    left: int
    ends_in_s: float


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """The health of an endpoint as the state has it. `paused_for_s`: inf if it is held until it is resumed, see `hold`.
    `failures`: in the breaker's current run. `failing_for_s`: since the first failure without a later success; 0 if
    there is none, or it was long ago."""

    breaker: Literal["closed", "open", "half_open"]
    paused_for_s: float
    failures: int
    failing_for_s: float = 0.0
    hold: Hold | None = None


class StoredIncidents(NamedTuple):
    """Incidents by id, and the marks that people made, by the id of the incident."""

    incidents: Mapping[str, Incident]
    marks: Mapping[str, Marks]
