"""What becomes of a work that cannot go now: one decision, made by the policy of its kind of lane.

A *dedicated* lane has one receiver. When that takes nothing, the lane stops its intake, and its backlog stays in its
topic. In a *shared* one many are served, also sources with their callbacks: nothing waits there in the others' way. An
*unparked* one has steps that are harmless to repeat, and nobody outside to wait for.
"""

from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """HOLD: it waits in memory. PARK: off the lane, with a due time. STOP_INTAKE: it waits in memory, and what follows
    stays in the log. BURY: a dead letter."""

    HOLD = "hold"
    PARK = "park"
    STOP_INTAKE = "stop intake"
    BURY = "bury"


@dataclass(frozen=True, slots=True)
class Policy:
    """Of an unparked lane. `hold_s`: longer waits are parked. `capped`: an owner's parked works are counted, and those
    whose answer is still to come."""

    hold_s: float
    capped: bool = False
    parks = False
    clears_the_way = True
    """Whoever may go on is not to wait for another endpoint: at the bound, what is in the way is parked."""
    retries_need_room = False
    """A first attempt is made only where there is room to park its retry."""

    def waiting(self, wait_s: float, *, down: bool) -> Fate:
        """It has to wait so long. `down`: the endpoint that last was closed is so for its own reasons."""
        return Fate.HOLD

    def behind_parked(self, *, down: bool) -> Fate:
        """Records of its order key are parked, and it may not overtake them."""
        return Fate.PARK

    def no_room_to_park(self, *, over_all: bool) -> Fate:
        """`over_all`: there is none for anybody; else only its owner has used up its own."""
        return Fate.STOP_INTAKE

    def no_room_for_answer(self, *, attempted: bool) -> Fate:
        """As many of its receiver's messages as may wait for an answer or for a retry."""
        return Fate.STOP_INTAKE

    def counts_room(self, *, sent: bool) -> bool:
        """Whether its owner's own cap counts when it is parked."""
        return self.capped

    def stands_still(self, *, down: bool) -> bool:
        """Intake stops: what would be taken in could only wait."""
        return False


class Dedicated(Policy):
    parks = True
    clears_the_way = False
    __slots__ = ()

    def waiting(self, wait_s: float, *, down: bool) -> Fate:
        if wait_s <= self.hold_s:
            return Fate.HOLD
        return Fate.STOP_INTAKE if down else Fate.PARK

    def behind_parked(self, *, down: bool) -> Fate:
        return Fate.STOP_INTAKE if down else Fate.PARK

    def stands_still(self, *, down: bool) -> bool:
        return down


class Shared(Policy):
    parks = True
    retries_need_room = True
    __slots__ = ()

    def waiting(self, wait_s: float, *, down: bool) -> Fate:
        return Fate.HOLD if wait_s <= self.hold_s else Fate.PARK

    def no_room_to_park(self, *, over_all: bool) -> Fate:
        return Fate.STOP_INTAKE if over_all else Fate.BURY

    def no_room_for_answer(self, *, attempted: bool) -> Fate:
        return Fate.HOLD if attempted else Fate.BURY

    def counts_room(self, *, sent: bool) -> bool:
        """What was sent once is never given up for lack of room."""
        return self.capped and not sent
