"""Routes, cuts, removed and hot receivers read from `receiver_config`. Outdated records do not undo newer ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from relay.domain.control_key import ControlKey, decode_value
from relay.domain.errors import InvalidRecord, UserError
from relay.domain.hot_receivers import HotLane
from relay.domain.receiver import LaneKind
from relay.domain.route import Cut, LaneRoute, Marker
from relay.domain.topics import SHARED

_UNMOVED: Final = LaneRoute()


class LaneRoutes:
    """Routes by receiver name."""

    def __init__(self) -> None:
        self._routes: dict[str, LaneRoute] = {}
        self._cuts: dict[tuple[str, int], Cut] = {}
        self.removed: dict[str, bytes] = {}
        """The last records of removed receivers."""
        self.hot: dict[str, HotLane] = {}
        """Receivers that are to have a lane of their own although their entries say the shared lane. One has no
        effect on an entry with a lane of its own."""
        self.unreadable: set[str] = set()
        """Receivers whose newest route only a newer version can read: no record of this version may replace it."""
        self.outdated: set[str] = set()
        """Receivers whose newest route is outdated, from a suspended process: the right one has to be published
        again."""

    def all(self) -> Mapping[str, LaneRoute]:
        """Routes of receivers that have moved, or are moving; live."""
        return self._routes

    def route(self, name: str) -> LaneRoute:
        return self._routes.get(name, _UNMOVED)

    def current(self, name: str, lane: LaneKind | None) -> LaneRoute:
        """The route that the receiver has now. `lane`: that of its entry, which is the route of a hot receiver that has
        never moved."""
        route = self.route(name)
        is_new = route.lane is None and lane == SHARED and name in self.hot
        return replace(route, lane=lane) if is_new else route

    def wanted(self, name: str, lane: LaneKind, partitions: int) -> tuple[LaneKind, int]:
        """The lane and partitions that a receiver is to have, whose entry says `lane` and `partitions`: all decisions
        on lanes begin here. An entry with a lane of its own is stronger than the record of a hot receiver."""
        if lane == SHARED and name in self.hot:
            return "dedicated", self.route(name).partitions
        return lane, partitions

    def take(self, key: ControlKey, value: bytes) -> str:
        """Take a record of the topic; returns the name of its receiver. Raises UserError."""
        try:
            if key.kind == "cut":
                cut = decode_value(Cut, value)
                self.note(cut)
                return cut.name
            if key.kind == "removed":
                self.removed[key.id] = value
                return key.id
            if key.kind == "hot":
                self.hot[key.id] = decode_value(HotLane, value)
                return key.id
            return self._take_route(key.id, decode_value(LaneRoute, value))
        except InvalidRecord as error:
            if key.kind == "route":
                self.unreadable.add(key.id)
            raise UserError(f"receiver_config: {error.detail}") from error

    def drop(self, key: ControlKey) -> str:
        """Take a key's tombstone, or the loss of its record; returns the name of its receiver. A route stays."""
        if key.kind == "cut":
            partition, _, name = key.id.partition(":")
            at = (name, int(partition) if partition.isdecimal() else -1)
            route, cut = self.route(name), self._cuts.get(at)
            if cut is not None and not (route.moving and cut.version == route.version):  # else of an earlier move
                del self._cuts[at]
            return name
        if key.kind == "removed":
            self.removed.pop(key.id, None)
        if key.kind == "hot":
            self.hot.pop(key.id, None)
        return key.id

    def note(self, cut: Cut) -> None:
        """Record a cut: the first marker of a move counts, and the later of two moves."""
        known = self._cuts.get((cut.name, cut.partition))
        if known is None or (-cut.version, cut.offset) < (-known.version, known.offset):
            self._cuts[cut.name, cut.partition] = cut

    def cut(self, name: str, version: int, partition: int) -> int | None:
        known = self._cuts.get((name, partition))
        return known.offset if known is not None and known.version == version else None

    def announced(self, marker: Marker) -> bool:
        route = self._routes.get(marker.name)
        return route is not None and (
            marker.version < route.version or (marker.version == route.version and marker.token == route.token)
        )

    def cuts(self, name: str) -> list[Cut]:
        """All known cuts of a receiver."""
        return [cut for cut in self._cuts.values() if cut.name == name]

    def is_in_progress(self, marker: Marker) -> bool:
        route = self.route(marker.name)
        return route.moving and (marker.version, marker.token) == (route.version, route.token)

    def _take_route(self, name: str, route: LaneRoute) -> str:
        known = self._routes.get(name)
        self.outdated.discard(name)
        self.unreadable.discard(name)
        if known is None or route.rank >= known.rank:
            self._routes[name] = route
        else:  # also if a reader starts over; then the right one follows
            self.outdated.add(name)
        return name
