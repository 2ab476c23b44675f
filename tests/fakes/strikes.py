"""What befalls a process at one of its port calls: it dies, it freezes, the state loses its memory."""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from relay.domain.errors import StateUnavailable
from relay.log.port import Subscription
from tests.fakes.virtual_time import run_virtually

_OURS = tuple(f"{Path(__file__).parents[2] / folder}/" for folder in ("relay", "workers"))


T = TypeVar("T")

NEVER: Final = 0
"""A call that no process makes."""


class CrashError(BaseException):
    """The process dies here. No `except Exception` of the code under test may survive that."""


class Fuse:
    """Counts a process's port calls. Blows at the `blow_at`-th (1-based; None: never, and it notes how each came
    about): before the call has its effect, or after. Once it has blown, every call fails: the process is dead."""

    def __init__(self, blow_at: int | None = None, *, after: bool = False) -> None:
        self._blow_at = blow_at
        self._after = after
        self.calls = 0
        self.dead = asyncio.Event()
        """Set when it has blown: then whatever runs in the process is to end at once."""
        self.names: list[str] = []
        self.ways: list[tuple[str | int, ...]] = []
        """How each call came about: its name, and the lines of ours that led to it."""

    @property
    def place(self) -> str:
        """Which call it strikes at."""
        at = self._blow_at
        return f"call {at}, {self.names[min(at, len(self.names)) - 1]}" if at else "no fault"

    @property
    def blown(self) -> bool:
        return self.dead.is_set()

    def blow(self) -> None:
        self.dead.set()

    async def before(self, name: str) -> None:
        self._still_alive(name)
        self.calls += 1
        self.names.append(name)
        if self._blow_at is None:
            self.ways.append((name, *_lines_of_ours()))
        if not self._after and self.calls == self._blow_at:
            await self.strike()
            self._still_alive(name)

    async def after(self, name: str, number: int) -> None:
        if self._after and number == self._blow_at:
            await self.strike()
        self._still_alive(name)

    async def pass_by(self) -> None:
        """Of a call that is not counted."""
        self._still_alive("uncounted")

    async def strike(self) -> None:
        self.blow()

    def _still_alive(self, name: str) -> None:
        if self.dead.is_set():
            raise CrashError(name)


def _lines_of_ours() -> list[str | int]:
    """Where our code stands that waits for the call, from the inside out."""
    lines: list[str | int] = []
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.startswith(_OURS):
            lines += [frame.f_code.co_qualname, frame.f_lineno]
    return lines


Strikes = Callable[[Fuse], list[int]]
"""Which calls to strike at (1-based), of those of a process that nothing befell."""


def each_call(counted: Fuse) -> list[int]:
    return list(range(1, counted.calls + 1))


def first_of_each_kind(counted: Fuse) -> list[int]:
    """Calls with the same stack are of one kind: they differ in their arguments only."""
    return sorted(dict(reversed([*zip(counted.ways, each_call(counted), strict=True)])).values())


def last_of_each_kind(counted: Fuse) -> list[int]:
    return sorted(dict(zip(counted.ways, each_call(counted), strict=True)).values())


CRASHES = pytest.mark.parametrize(
    ("late", "strikes"),
    [
        pytest.param(False, first_of_each_kind, id="call_fails"),
        pytest.param(True, last_of_each_kind, id="reply_is_lost"),
        pytest.param(False, each_call, id="each_call_fails", marks=pytest.mark.slow),
        pytest.param(True, each_call, id="each_reply_is_lost", marks=pytest.mark.slow),
    ],
)
"""The process dies at a call, before it has its effect, or after. By default, at one of each kind."""

STRIKES = pytest.mark.parametrize(
    "strikes",
    [
        pytest.param(first_of_each_kind, id="kinds"),
        pytest.param(each_call, id="calls", marks=pytest.mark.slow),
    ],
)
"""Whatever it is that befalls. By default, at the first call of each kind."""


def crash_at_each(
    story: Callable[[Fuse], Coroutine[Any, Any, T]], strikes: Strikes, *, late: bool = False
) -> list[tuple[Fuse, T]]:
    """Run `story` with a process that nothing befalls, then again with one that dies at each of these calls. Returns
    each fuse, and what came of the story."""
    counted = Fuse()
    passed = [(counted, run_virtually(story(counted)))]
    for blow_at in strikes(counted):
        fuse = Fuse(blow_at, after=late)
        passed.append((fuse, run_virtually(story(fuse))))
    return passed


class Loss(Fuse):
    """In place of the process it is the state's memory that goes."""

    def __init__(self, blow_at: int, lose: Callable[[], None]) -> None:
        super().__init__(blow_at)
        self._lose = lose

    async def strike(self) -> None:
        self._lose()


class Frost(Fuse):
    """The process freezes at that call, and every call of it from then on waits for `thaw`. Requests to the outside
    that it still begins count as sent right before; only their answers wait."""

    def __init__(self, blow_at: int, *, after: bool = False) -> None:
        super().__init__(blow_at, after=after)
        self.frozen = asyncio.Event()
        self.thaw = asyncio.Event()

    async def before(self, name: str) -> None:
        if not name.startswith("http"):
            await self.pass_by()
        await super().before(name)

    async def after(self, name: str, number: int) -> None:
        await super().after(name, number)
        await self.pass_by()

    async def pass_by(self) -> None:
        if self.frozen.is_set():
            await self.thaw.wait()

    async def strike(self) -> None:
        self.frozen.set()
        if self._after or not self.names[-1].startswith("http"):
            await self.thaw.wait()


class FrozenBeforeOutcome(Frost):
    """It freezes when it is about to store the outcome of its first request."""

    def __init__(self) -> None:
        super().__init__(NEVER)

    async def before(self, name: str) -> None:
        if name == "state.settle":
            self.frozen.set()
        await super().before(name)


UNCOUNTED = frozenset({"poll", "close", "lost", "next_due", "leave"})
"""Calls that change nothing and come all the time, and a courtesy at the very end; a blown fuse fails them, too."""


ITEM_BY_ITEM = frozenset(
    {
        "arrive",
        "enqueued",
        "intake",
        "peek",
        "begin",
        "settle",
        "mark",
        "forget",
        "intend_to_park",
        "park",
        "unpark",
        "next_due",
        "take_due",
        "parked",
    }
)
"""Calls of the state that return Unavailable for each item, instead of raising it."""


_NONE = object()


class Fused:
    """A port whose calls pass a fuse. `available` False: the state is away."""

    def __init__(self, port: Any, fuse: Fuse, name: str, available: Callable[[], bool] = lambda: True) -> None:
        self._port = port
        self._fuse = fuse
        self._name = name
        self._available = available

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._port, method)
        if method == "consumer":
            return self._consumer
        if inspect.isasyncgenfunction(real):
            return self._fused_steps(method, real)
        if not callable(real):
            return real
        kept = self._fused(method, real) if asyncio.iscoroutinefunction(real) else real
        self.__dict__[method] = kept  # found without a call from now on
        return kept

    def _fused(self, method: str, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            if not self._available():
                await asyncio.sleep(0.001)
                away = StateUnavailable("the state is away")
                if method in ITEM_BY_ITEM:
                    return [away] * len(args[0])
                raise away
            if method in UNCOUNTED:
                await self._fuse.pass_by()
                result = await real(*args, **named)
                await self._fuse.pass_by()
                return result
            name = f"{self._name}.{method}"
            await self._fuse.before(name)
            number = self._fuse.calls
            result = await real(*args, **named)
            await self._fuse.after(name, number)
            return result

        return call

    def _fused_steps(self, method: str, real: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        """All steps are one call: it is over with the first one, or when there is none."""

        async def steps(*args: Any, **named: Any) -> AsyncIterator[Any]:
            name = f"{self._name}.{method}"
            await self._fuse.before(name)
            number = self._fuse.calls
            rest = real(*args, **named)
            first = await anext(rest, _NONE)
            await self._fuse.after(name, number)
            if first is _NONE:
                return
            yield first
            async for step in rest:
                yield step

        return steps

    def _consumer(self, subscription: Subscription, *callbacks: Callable[[Any], Awaitable[None]]) -> Any:
        """A consumer calls back: that is code of the process, too."""

        def passing(callback: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
            async def call_back(partitions: Any) -> None:
                await self._fuse.pass_by()
                await callback(partitions)

            return call_back

        return Fused(self._port.consumer(subscription, *map(passing, callbacks)), self._fuse, "consumer")
