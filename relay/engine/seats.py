"""The seats that a lane's attempts have at the turnstile: asked for before an attempt begins, left however it ends."""

from collections.abc import Callable
from typing import Generic

from relay.engine.ends import Ends
from relay.engine.turnstile import Turnstile
from relay.engine.work import Dead, Done, Later, W


class Seats(Generic[W]):
    """Stands before `ends`: whichever way an attempt takes there, its seat is free."""

    def __init__(self, turnstile: Turnstile, ends: Ends[W]) -> None:
        self._turnstile = turnstile
        self.ends = ends
        self._taken: set[W] = set()
        self._stopping = False
        self.waiting = 0
        """Works without a seat."""
        self.close, self.heard, self.fence = ends.close, ends.heard, ends.fence

    def take(self, work: W, seated: Callable[[W], None]) -> bool:
        """Whether there is a seat for `work` now; else `seated` is called when there is, or never, after `stop`."""

        def sit() -> bool:
            if self._stopping:
                return False
            self.waiting -= 1
            self._taken.add(work)
            seated(work)
            return True

        if self._turnstile.pass_through(work.gate, sit):
            self._taken.add(work)
            return True
        self.waiting += 1
        return False

    def stop(self) -> None:
        """Who waits is not wanted any more."""
        self._stopping = True
        self.waiting = 0

    def leave_all(self) -> None:
        """Nobody will say any more how the attempts end."""
        for work in list(self._taken):
            self._leave(work)

    def again(self, work: W, due: float) -> None:
        self._leave(work)
        self.ends.again(work, due)

    def later(self, work: W, later: Later) -> None:
        self._leave(work)
        self.ends.later(work, later)

    def publish(self, work: W, decision: Done | Dead) -> None:
        self._leave(work)
        self.ends.publish(work, decision)

    def known(self, work: W) -> None:
        self._leave(work)
        self.ends.known(work)

    def _leave(self, work: W) -> None:
        if work in self._taken:
            self._taken.discard(work)
            self._turnstile.leave(work.gate)
