"""An event loop whose time jumps to the next timer when nothing else is to be done: hours of waiting take no time."""

import asyncio
import functools
import math
import selectors
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from relay.clock import SystemClock

P = ParamSpec("P")
T = TypeVar("T")

START = 1_000_000.0
UNIX_START = 1_700_000_000.0

_TURNS_AT_ONCE = 300_000
"""More than any test needs: a loop with more turns at one moment never ends."""

_DIGITS = 6
"""Of a time in seconds, after the point."""

_OF_THE_LOOP = 1
"""Files that a loop watches for itself; it would notice their events anyway."""


class _Jumping(selectors.SelectSelector):
    """Never waits for a timer: it returns at once, and reports for how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0) if len(self.get_map()) > _OF_THE_LOOP else []
        if not found and timeout is None:
            raise RuntimeError("deadlock: nothing is ready, and no timer is set")
        if not found and timeout is not None and timeout > 0:
            self.pass_by(timeout)
            self._turns = 0
        self._turns += 1
        if self._turns > _TURNS_AT_ONCE:
            raise RuntimeError("something goes round without waiting: no time passes")
        return found

    def pass_by(self, seconds: float) -> None:
        """From one full microsecond to another: a sum that is off by the last bit would be almost at a timer."""
        self.now = round(self.now + seconds, _DIGITS)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at START, and passes only when everybody waits."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stand_still(self, seconds: float) -> None:
        """As code that blocks the loop for so long, or a machine that gives it no time."""
        self._jumping.pass_by(seconds)

    def call_at(  # type: ignore[override]  # as strict about the callback as needed here
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> TimerHandle:
        """At a full microsecond, never before `when`: asyncio fires timers that are almost due. A callback that finds
        itself too early, and waits again, would never end."""
        at = math.ceil(when * 1e6) / 1e6
        return super().call_at(at if at >= when else round(at + 1e-6, _DIGITS), callback, *args, context=context)


class LoopClock(SystemClock):
    """The engine's clock, on the running loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self.monotonic() - START + UNIX_START


class OffClock(LoopClock):
    """The same on a machine whose wall clock is `off_s` ahead."""

    def __init__(self, off_s: float) -> None:
        self.off_s = off_s

    def wall(self) -> float:
        return super().wall() + self.off_s


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        run_virtually(test(*args, **named))

    return run


async def until(seen: Callable[[], Awaitable[bool]], seconds: float = 900.0) -> None:
    """Look once a second."""
    for _ in range(int(seconds)):
        if await seen():
            return
        await asyncio.sleep(1)
    raise AssertionError("it never came")
