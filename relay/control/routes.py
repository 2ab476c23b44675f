"""Routes, cuts and removed receivers read from `receiver_config`. Outdated records do not undo newer ones."""

from collections.abc import Mapping
from typing import Final

from relay.domain.errors import InvalidRecord, UserError
from relay.domain.route import (
    CUT_PREFIX,
    REMOVED_PREFIX,
    ROUTE_PREFIX,
    Cut,
    Marker,
    Route,
    decode_cut,
    decode_route,
)

_UNMOVED: Final = Route()


class LaneRoutes:
    """Routes by receiver name."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self._cuts: dict[tuple[str, int], Cut] = {}
        self.removed: dict[str, bytes] = {}
        """The last records of removed receivers."""
        self.outdated: set[str] = set()
        """Receivers whose newest route is outdated, from a suspended process: the right one has to be published
        again."""

    def all(self) -> Mapping[str, Route]:
        """Routes of receivers that have moved, or are moving; live."""
        return self._routes

    def route(self, name: str) -> Route:
        return self._routes.get(name, _UNMOVED)

    def take(self, key: str, value: bytes) -> str:
        """Take a record of the topic; returns the name of its receiver. Raises UserError."""
        try:
            if key.startswith(CUT_PREFIX):
                return self.note(decode_cut(value))
            if key.startswith(REMOVED_PREFIX):
                name = key.removeprefix(REMOVED_PREFIX)
                self.removed[name] = value
                return name
            return self._take_route(key.removeprefix(ROUTE_PREFIX), decode_route(value))
        except InvalidRecord as error:
            raise UserError(f"receiver_config: {error.detail}") from error

    def drop(self, key: str) -> str:
        """Take a key's tombstone, or the loss of its record; returns the name of its receiver. A route stays."""
        if key.startswith(CUT_PREFIX):
            partition, _, name = key.removeprefix(CUT_PREFIX).partition(":")
            self._cuts.pop((name, int(partition) if partition.isdigit() else -1), None)
            return name
        name = key.removeprefix(REMOVED_PREFIX)
        self.removed.pop(name, None)
        return name

    def note(self, cut: Cut) -> str:
        """Record a cut: the first marker of a move counts, and the later of two moves."""
        known = self._cuts.get((cut.name, cut.partition))
        if known is None or (-cut.version, cut.offset) < (-known.version, known.offset):
            self._cuts[cut.name, cut.partition] = cut
        return cut.name

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

    def is_under_way(self, marker: Marker) -> bool:
        route = self.route(marker.name)
        return route.moving and (marker.version, marker.token) == (route.version, route.token)

    def _take_route(self, name: str, route: Route) -> str:
        known = self._routes.get(name)
        self.outdated.discard(name)
        if known is None or route.rank >= known.rank:
            self._routes[name] = route
        else:  # also if a reader starts over; then the right one follows
            self.outdated.add(name)
        return name


def is_of_route(key: str) -> bool:
    """Whether a key of `receiver_config` is of a route, a cut or a removed receiver."""
    return key.startswith((ROUTE_PREFIX, CUT_PREFIX, REMOVED_PREFIX))
