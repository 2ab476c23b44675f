"""What a lane at its bound does about it: it parks what waits, so that the rest can go on."""

from collections.abc import Callable, Sequence
from typing import Final, Generic

from relay.engine.context import LaneContext
from relay.engine.order import Order
from relay.engine.parking import Parking
from relay.engine.work import W

RELIEVE_S: Final = 0.1
CONGESTED_S: Final = 1.0
"""A lane that is full for so long does not help itself by finishing what it has."""
CLOSED_S: Final = 1.0
"""An endpoint that is closed for longer than this is not only a matter of pace."""


class Relief(Generic[W]):
    """Parks what waits in `order`. `standing()`: the lane's only receiver is closed: its backlog stays where it is, as
    it does while the whole process sends nothing."""

    def __init__(
        self, context: LaneContext, order: Order[W], parking: Parking[W], standing: Callable[[], bool]
    ) -> None:
        self._context = context
        self._order = order
        self._parking = parking
        self._standing = standing
        self._relieved_at = -RELIEVE_S
        self.full_since: float | None = None
        """When the lane came to its bound and needed relief; to be set to None when it has room again."""

    def relieve(self) -> None:
        """Call it while the lane is at its bound; most calls do nothing."""
        now = self._context.clock.monotonic()
        if now - self._relieved_at < RELIEVE_S or not self._parking.has_room:
            return
        self._relieved_at = now
        if self._standing() or self._context.turnstile.shut:
            return
        waiting = [work for work in self._order.held() if work.due > now + CLOSED_S]
        if self._context.shared:
            waiting += self._in_the_way(now)
        for work in waiting:
            if work.parked_at is None:
                self._park(self._order.withdraw(work))
        if self.full_since is None:
            self.full_since = now
        if self._context.shared and now - self.full_since >= CONGESTED_S:
            self._park(self._order.withdraw_longest(self._context.bounds.window // 2 - len(self._parking)))

    def _in_the_way(self, now: float) -> list[W]:
        """What waits for endpoints that take nothing now. Those that only have their pace keep the first of it at hand:
        what is parked comes back in its own time, and they would have nothing to do until then."""
        stuck = self._order.stuck(now)
        paced = [work for work in stuck if not self._order.is_closed(work.gate, now + CLOSED_S)]
        kept = {id(work) for work in paced[: self._context.bounds.window // 2]}
        return [work for work in stuck if id(work) not in kept]

    def _park(self, works: Sequence[W]) -> None:
        for work in works:
            self._parking.park(work)
