"""Routes: the lane of a receiver's messages, and the protocol that moves a receiver to another lane while it has
messages.

The lane in effect is a record of its own, which follows the entry in the receivers file. A receiver moves from lane A
to lane B (its own, or the shared one) in these steps. `relay/watch/lane_migration.py` performs them in the process that
holds the lease; if that process dies, the next one repeats the step or continues.

1. *Announced*: a record on `receiver_config` says version v, lane B, moving.
2. *Cut*: a marker is appended to each partition of `from_sender`. It says where the old lane ends: a message before the
   first marker of v is routed to A, one after it to B, by every process and whatever else it knows. So all readers of a
   partition agree, including one that repeats a dead process's work, or resumes late. Each partition's owner publishes
   the marker's offset on `receiver_config` before it commits past the marker. An owner that starts after the marker has
   read `receiver_config` to its end first, so it knows the offset.
3. *Drained*: once the markers are committed, the topic of A has all records it will ever get for this receiver. B holds
   its records of v (each record carries its version) until A has finished, including parked messages.
4. *Settled*: a record says that v is no longer moving. B starts, in the order of the log, after all of A.

The next move begins when the last one is settled, so a move that is reversed half way is two moves. Lanes of
`pending_*` need no order: both are served, the old one until it is empty. Redis only provides the rows and references
that say which deliveries are finished; while Redis is recovering, the move waits.

Adding partitions to a receiver's own topics takes two such moves: more partitions map keys to other partitions, so the
topics grow while the receiver is in the shared lane and no process reads or writes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from relay.domain.control_key import ControlKey
from relay.domain.coordinate import Headers
from relay.domain.receiver import LaneKind, Receiver
from relay.domain.topics import SHARED, lane_of

MARKER_HEADER: Final = "relay-move-marker"
"""Header of a marker on `from_sender`; valid only with the token of the announcement."""


@dataclass(frozen=True, slots=True)
class LaneRoute:
    """`version`: the number of moves. `lane`: None if it is the entry's lane, because the receiver has never moved or
    has no records left. `partitions`: of its own topics, also while it is in the shared lane. `life`: how often it was
    declared again while records were left; records about an earlier life do not count.

    `moving`: the other lane has to finish first. `token`: of this move's markers, which identifies them also after the
    move. `left`: its own topics may still hold records, although new messages use another lane.
    """

    version: int = 0
    lane: LaneKind | None = None
    partitions: int = 1
    moving: bool = False
    token: str = ""
    left: bool = False
    life: int = 0

    def applied_to(self, receiver: Receiver) -> Receiver:
        """The receiver with the lane in effect."""
        lane, partitions = (self.lane, self.partitions) if self.lane else (receiver.lane, receiver.partitions)
        return replace(receiver, lane=lane, partitions=partitions, move=self.version, moving=self.moving)

    @property
    def has_own_lane(self) -> bool:
        """Whether its own topics may hold records."""
        return self.left or self.lane == "dedicated"

    @property
    def rank(self) -> tuple[int, int, bool]:
        """Rises with each step of a move. A record of a lower rank is outdated and ignored."""
        return self.life, self.version, not self.moving


def former_lane(name: str, lane: LaneKind | None) -> str:
    """The lane from which a receiver moves to `lane`: its own, or SHARED."""
    return name if lane == SHARED else SHARED


def next_move(route: LaneRoute, lane: LaneKind, partitions: int) -> tuple[LaneKind, int] | None:
    """The receiver's next (lane, partitions of its own topics), if its entry says `lane` and `partitions`.

    None if it does not move: a route without a lane has nothing to move from, and partitions are never removed.
    """
    if lane == SHARED:
        return ("shared", route.partitions) if route.lane == "dedicated" else None
    if route.lane == SHARED:
        return "dedicated", partitions
    return ("shared", route.partitions) if route.lane is not None and partitions > route.partitions else None


def lane_at(receiver: Receiver, cut: int | None, offset: int) -> tuple[str, int]:
    """The lane for a message at `offset` of a partition of `from_sender`, and the version of the move that decided it.

    `cut`: where the receiver's current move takes effect in that partition; None if no marker was read yet.
    """
    if not receiver.moving or (cut is not None and offset > cut):
        return lane_of(receiver), receiver.move
    return former_lane(receiver.name, receiver.lane), receiver.move - 1


def waits(receiver: Receiver, move: int) -> bool:
    """Whether messages routed by `move` have to wait until the receiver's other lane has finished."""
    return receiver.moving and move == receiver.move


def is_in_shared(receiver: Receiver) -> bool:
    """Whether the shared lane may have messages of it."""
    return receiver.lane == SHARED or receiver.moving


@dataclass(frozen=True, slots=True)
class OwnLanes:
    """Receivers whose own topics have to be read. `gathering`: those that may not send yet, because the shared lane has
    to finish first."""

    all: frozenset[str]
    gathering: frozenset[str]


def own_lanes(receivers: Iterable[Receiver], left: frozenset[str]) -> OwnLanes:
    """The lanes beside the shared one. `left`: receivers whose topics are not in use but may still hold records."""
    dedicated = [receiver for receiver in receivers if receiver.lane != SHARED]
    names = {receiver.name for receiver in dedicated}
    return OwnLanes(left | names, frozenset(receiver.name for receiver in dedicated if receiver.moving))


class Cut(NamedTuple):
    """Where in a partition of `from_sender` a move takes effect: for the messages after `offset`."""

    name: str
    version: int
    partition: int
    offset: int

    @property
    def key(self) -> ControlKey:
        return cut_key(self.name, self.partition)


def cut_key(name: str, partition: int) -> ControlKey:
    return ControlKey("cut", f"{partition}:{name}")


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker on `from_sender`. A sender could write such a header, but does not know the token."""

    name: str
    version: int
    token: str

    def headers(self) -> Headers:
        return ((MARKER_HEADER, f"{self.name}/{self.version}/{self.token}".encode()),)


def marker_in(headers: Headers) -> Marker | None:
    """The marker in a record's headers, whose token is not checked yet; None if there is none."""
    for name, value in headers:
        if name == MARKER_HEADER:
            parts = value.decode(errors="replace").split("/")
            if len(parts) == 3 and parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 10:
                return Marker(parts[0], int(parts[1]), parts[2])
    return None
