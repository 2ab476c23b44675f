"""Waiting for our own infrastructure: repeat a call until Kafka or Redis answers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

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
        try:
            return await call()  # nearly always; tenacity would cost several times what a batch of records does
        except Unavailable as error:
            self.tell(what, error)
        await self._clock.sleep(FIRST_PAUSE_S)

        async def attempt() -> T:  # tenacity awaits nothing but what is declared `async`
            return await call()

        return await self._repeating(what)(attempt)

    def tell(self, what: str, error: Unavailable) -> None:
        """Let the outside know what is being waited for."""
        if isinstance(error, StateRecovering):
            self._observer.state_recovering(error.tags)
        self._observer.waiting(what, error)

    def _repeating(self, what: str) -> AsyncRetrying:
        def tell(state: RetryCallState) -> None:
            error = state.outcome and state.outcome.exception()
            if isinstance(error, Unavailable):
                self.tell(what, error)

        return AsyncRetrying(
            retry=retry_if_exception_type(Unavailable),
            wait=wait_exponential(multiplier=2 * FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
            before_sleep=tell,
            sleep=self._clock.sleep,
        )

    async def pause(self, what: str, error: Unavailable) -> None:
        """Tell, and wait a little: for callers with a loop of their own."""
        self.tell(what, error)
        await self._clock.sleep(LONGEST_PAUSE_S / 2)
