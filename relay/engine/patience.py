"""Waiting for our own infrastructure: repeat a call until Kafka or Redis answers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from relay.domain.errors import StateRecovering, Unavailable
from relay.engine.clock import Clock
from relay.engine.observer import Observer

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Patience:
    """Repeats what raised Unavailable, for as long as it takes; every port call allows that."""

    def __init__(self, clock: Clock, observer: Observer) -> None:
        self._clock = clock
        self._observer = observer

    async def until_done(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`; other errors pass through. `what` names the call for people."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                return await call()
            except Unavailable as error:
                self.tell(what, error)
            await self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def tell(self, what: str, error: Unavailable) -> None:
        """Let the outside know what is being waited for."""
        if isinstance(error, StateRecovering):
            self._observer.state_recovering(error.tags)
        self._observer.waiting(what, error)

    async def pause(self, what: str, error: Unavailable) -> None:
        """Tell, and wait a little: for callers with a loop of their own."""
        self.tell(what, error)
        await self._clock.sleep(LONGEST_PAUSE_S / 2)
