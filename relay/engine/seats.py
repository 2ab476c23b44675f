"""The seats that a lane's attempts have at the turnstile of their process."""

from collections.abc import Callable
from typing import Any

from relay.engine.turnstile import Turnstile
from relay.engine.work import Work


class Seats:
    """Of one lane; see `relay.engine.attempting.Seats`."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._seated: Callable[[Any], None] = lambda _work: None
        self._wanted: Callable[[], bool] = lambda: False
        self._taken: set[Work] = set()

    def bind(self, seated: Callable[[Any], None], wanted: Callable[[], bool]) -> None:
        """`seated` is called for each work that had to wait and has a seat now, while it is `wanted`."""
        self._seated, self._wanted = seated, wanted

    def take(self, work: Work) -> bool:
        def sit() -> bool:
            wanted = self._wanted()
            if wanted:
                self._taken.add(work)
                self._seated(work)
            return wanted

        seated = self._turnstile.pass_through(work.gate, sit)
        if seated:
            self._taken.add(work)
        return seated

    def leave(self, work: Work) -> None:
        if work in self._taken:
            self._taken.discard(work)
            self._turnstile.leave(work.gate)

    def leave_all(self) -> None:
        for work in list(self._taken):
            self.leave(work)
