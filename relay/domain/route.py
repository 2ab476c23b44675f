"""Which lane takes a receiver's messages, and how that changes while messages are under way.

The lane in force is a record of its own, which follows the entry in the receivers file. A receiver in lane A moves to
lane B (its own, or the shared one) in these steps. `relay/watch/lane_migration.py` takes them in the process that holds
the lease; if that process dies, the next one repeats the step or continues.

1. *Announced*: a record on `receiver_config` says version v, lane B, moving.
2. *Cut*: a marker goes into each partition of `from_sender`. It says where the old lane ends: a message before the
   first marker of v goes to A, one behind it to B, whoever routes it and whatever else it knows. So all readers of a
   partition agree, also one that repeats what a dead one had done, or wakes up late. Each owner tells on
   `receiver_config` where the marker was, before its offset is committed; an owner that starts behind it has read
   `receiver_config` to its end first, so it knows.
3. *Drained*: when the markers are committed, all that A will ever get of this receiver is on its topic. B holds what it
   has of v (which its records say themselves) until A has finished that, parked messages included.
4. *Settled*: a record says that v moves no more. B begins; in the order of the log, behind all of A.

The next move begins when the last one is settled, so a move that is reversed half way is two moves. Lanes of
`pending_*` need no order: both are served, the old one until nothing is left in it. Redis has no part in this but that
rows and references say what is finished; while it is recovering the move waits.

More partitions of its own topics are two such moves: with more partitions its keys go elsewhere, so the topics grow
while nobody reads or writes them, and the receiver is in the shared lane.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from relay.domain.coordinate import Headers
from relay.domain.errors import InvalidRecord
from relay.domain.receiver import LaneKind, Receiver
from relay.domain.topics import SHARED, lane_of

ROUTE_PREFIX: Final = "route:"
CUT_PREFIX: Final = "cut:"
REMOVED_PREFIX: Final = "removed:"
"""Its value is the last entry of a receiver that was removed, in the form of its own record."""
MARKER_HEADER: Final = "relay-move-marker"
"""Of a marker on `from_sender`; it counts only with the token that the announcement has."""


@dataclass(frozen=True, slots=True)
class Route:
    """`version` counts moves. `lane` None: as the entry says, for it has never moved, or nothing is left of it.
    `partitions`: of its own topics, also while it is in the shared lane. `life`: how often it was declared again while
    something was left of it; what was said about an earlier life does not count.

    `moving`: the other lane has to finish first. `token`: of this move's markers, by which they are known also when it
    is over. `left`: its own topics may hold something although no new message takes them.
    """

    version: int = 0
    lane: LaneKind | None = None
    partitions: int = 1
    moving: bool = False
    token: str = ""
    left: bool = False
    life: int = 0

    def encode(self) -> bytes:
        known = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(known, sort_keys=True).encode()

    def applied_to(self, receiver: Receiver) -> Receiver:
        """The receiver with the lane that is in force."""
        lane, partitions = (self.lane, self.partitions) if self.lane else (receiver.lane, receiver.partitions)
        return replace(receiver, lane=lane, partitions=partitions, move=self.version, moving=self.moving)

    @property
    def has_own_lane(self) -> bool:
        """Whether its own topics may hold something."""
        return self.left or self.lane == "dedicated"

    @property
    def rank(self) -> tuple[int, int, bool]:
        """Rises with each step of a move. A record of a lower rank is a late one, and does not count."""
        return self.life, self.version, not self.moving


def decode_route(value: bytes) -> Route:
    """Raises InvalidRecord unless `value` is what `Route.encode` makes; what a newer version adds is ignored."""
    try:
        known = json.loads(value).items()
        return Route(**{name: each for name, each in known if name in Route.__dataclass_fields__})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRecord("invalid", "a route that is none of ours") from error


def route_key(name: str) -> str:
    """Key of a receiver's route on `receiver_config`."""
    return ROUTE_PREFIX + name


def removed_key(name: str) -> str:
    """Key of what is kept of a removed receiver."""
    return REMOVED_PREFIX + name


def former_lane(name: str, lane: LaneKind | None) -> str:
    """The lane that a receiver comes from which moves to `lane`: its own, or SHARED."""
    return name if lane == SHARED else SHARED


def next_move(route: Route, lane: LaneKind, partitions: int) -> tuple[LaneKind, int] | None:
    """Lane, and partitions of its own topics, where a receiver goes next whose entry says `lane` and `partitions`.

    None: it stays. Nothing is known of a route without a lane; fewer partitions are none of a move's business.
    """
    if lane == SHARED:
        return ("shared", route.partitions) if route.lane == "dedicated" else None
    if route.lane == SHARED:
        return "dedicated", partitions
    return ("shared", route.partitions) if route.lane is not None and partitions > route.partitions else None


def lane_at(receiver: Receiver, cut: int | None, offset: int) -> tuple[str, int]:
    """The lane for a message at `offset` of a partition of `from_sender`, and the move that led there.

    `cut`: where the receiver's present move takes effect in that partition; None: no marker was met.
    """
    if not receiver.moving or (cut is not None and offset > cut):
        return lane_of(receiver), receiver.move
    return former_lane(receiver.name, receiver.lane), receiver.move - 1


def waits(receiver: Receiver, move: int) -> bool:
    """Whether what was routed by `move` has to wait until the receiver's other lane has finished."""
    return receiver.moving and move == receiver.move


def is_in_shared(receiver: Receiver) -> bool:
    """Whether the shared lane has, or may have, messages of it."""
    return receiver.lane == SHARED or receiver.moving


@dataclass(frozen=True, slots=True)
class OwnLanes:
    """Receivers whose own topics have to be read. `gathering`: but not to send, as another lane has to finish first."""

    all: frozenset[str]
    gathering: frozenset[str]


def own_lanes(receivers: Iterable[Receiver], left: frozenset[str]) -> OwnLanes:
    """Which lanes there are beside the shared one. `left`: whose topics are not in use, but may hold something."""
    dedicated = [receiver for receiver in receivers if receiver.lane != SHARED]
    names = {receiver.name for receiver in dedicated}
    return OwnLanes(left | names, frozenset(receiver.name for receiver in dedicated if receiver.moving))


@dataclass(frozen=True, slots=True)
class Cut:
    """Where in a partition of `from_sender` a move takes effect: at the messages behind `offset`."""

    name: str
    version: int
    partition: int
    offset: int

    @property
    def key(self) -> str:
        return cut_key(self.name, self.partition)

    def encode(self) -> bytes:
        return json.dumps([self.name, self.version, self.partition, self.offset]).encode()


def cut_key(name: str, partition: int) -> str:
    return f"{CUT_PREFIX}{partition}:{name}"


def decode_cut(value: bytes) -> Cut:
    """Raises InvalidRecord unless `value` is what `Cut.encode` makes."""
    try:
        name, version, partition, offset = json.loads(value)
        return Cut(str(name), int(version), int(partition), int(offset))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRecord("invalid", "a cut that is none of ours") from error


@dataclass(frozen=True, slots=True)
class Marker:
    """What a marker on `from_sender` says. A sender could write such a header, but knows no token."""

    name: str
    version: int
    token: str

    def headers(self) -> Headers:
        return ((MARKER_HEADER, f"{self.name}/{self.version}/{self.token}".encode()),)


def marker_in(headers: Headers) -> Marker | None:
    """The marker that a record claims to be."""
    for name, value in headers:
        if name == MARKER_HEADER:
            parts = value.decode(errors="replace").split("/")
            if len(parts) == 3 and parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 10:
                return Marker(parts[0], int(parts[1]), parts[2])
    return None
