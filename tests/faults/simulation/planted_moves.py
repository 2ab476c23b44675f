"""Planted bugs of moves between lanes, one in each step; see `tests/faults/harness/planted.py`.

To find them takes 3.5 minutes of CPU: 98 s for `markers_not_awaited`, 66 s for `moved_before_the_marker`, and 4 to 10 s
for each of the others.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import relay.watch.lane_migration
import workers.from_sender
from relay.domain.receiver import Receiver
from relay.domain.route import LaneRoute
from relay.domain.topics import lane_of
from relay.engine.decision import Dead, Done
from relay.log.port import Backlog, NewRecord
from relay.watch.lane_migration import LaneMigration
from workers.from_sender import FromSender, MoveMarker


@contextmanager
def former_lane_not_read() -> Iterator[None]:
    """A receiver leaves its own lane, whose topics are then not read any more."""

    async def publish(self: LaneMigration, name: str, route: LaneRoute, *more: NewRecord) -> None:
        await rightly(self, name, replace(route, left=False), *more)

    rightly = LaneMigration._publish
    with patch.object(LaneMigration, "_publish", publish):
        yield


@contextmanager
def moved_before_the_marker() -> Iterator[None]:
    """A process routes to the new lane as soon as it knows of the move, not only behind the marker."""

    def lane_at(receiver: Receiver, cut: int | None, offset: int) -> tuple[str, int]:
        return lane_of(receiver), receiver.move

    with patch.object(workers.from_sender, "lane_at", lane_at):
        yield


@contextmanager
def cut_not_published() -> Iterator[None]:
    """The process that reads a marker keeps to itself where the move takes effect."""

    def turned(self: FromSender, work: MoveMarker) -> Done | Dead:
        decision = rightly(self, work)
        return Done() if isinstance(decision, Done) else decision

    rightly = FromSender._switched_lane
    with patch.object(FromSender, "_switched_lane", turned):
        yield


@contextmanager
def markers_not_awaited() -> Iterator[None]:
    """A move goes on once its markers are read, although the messages before them may not be in the former lane yet."""

    def is_behind(backlog: Backlog, cut: int | None) -> bool:
        return True

    with patch.object(relay.watch.lane_migration, "_is_behind", is_behind):
        yield


@contextmanager
def former_lane_not_awaited() -> Iterator[None]:
    """A move ends although the former lane still has messages of the receiver."""

    async def is_finished(self: LaneMigration, move: Any) -> bool:
        return True

    with patch.object(LaneMigration, "_is_finished", is_finished):
        yield


@contextmanager
def parked_not_awaited() -> Iterator[None]:
    """A move ends although messages of the former lane are parked."""

    async def is_parked_in_order(*_: Any) -> bool:
        return False

    with patch.object(relay.watch.lane_migration, "is_parked_in_order", is_parked_in_order):
        yield


PLANTED_IN_MOVES: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (
        former_lane_not_read,
        moved_before_the_marker,
        cut_not_published,
        markers_not_awaited,
        former_lane_not_awaited,
        parked_not_awaited,
    )
}
