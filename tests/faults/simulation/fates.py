"""What befalls a running process, decided while it runs."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

from tests.fakes.strikes import NEVER, Fuse

_AT_ONCE = (0.0, 0.0)


class Fate(Fuse):
    """A process that may die or freeze at a call that is still to come. `slow`: calls that take time, each with the
    seconds before its effect and after."""

    def __init__(self, slow: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> None:
        super().__init__(NEVER)
        self._slow = slow
        self._freezes = False
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def frozen(self) -> bool:
        return not self._awake.is_set()

    def strike_in(self, calls: int, *, after: bool, freeze: bool) -> None:
        """At the so many-th port call from now: before it has its effect, or after."""
        self._blow_at = self.calls + calls
        self._after = after
        self._freezes = freeze

    def freeze(self) -> None:
        """Every call from now on waits for `thaw`."""
        self._awake.clear()

    def thaw(self) -> None:
        self._blow_at = NEVER
        self._awake.set()

    def stay_awake(self) -> None:
        """It will not freeze any more; it may still die."""
        if self._freezes:
            self.thaw()

    async def before(self, name: str) -> None:
        await asyncio.sleep(self._slow.get(name, _AT_ONCE)[0])
        await self.pass_by()
        await super().before(name)

    async def after(self, name: str, number: int) -> None:
        await super().after(name, number)
        await asyncio.sleep(self._slow.get(name, _AT_ONCE)[1])
        await self.pass_by()

    async def pass_by(self) -> None:
        await self._awake.wait()
        await super().pass_by()

    async def strike(self) -> None:
        if self._freezes:
            self.freeze()
            await self._awake.wait()
        else:
            await super().strike()


class CutOff(Fuse):
    """A process that nothing reaches from the log any more, once it is `cut`: so it does not hear that it lost its
    partitions, while it still has the state and the outside."""

    def __init__(self) -> None:
        super().__init__()
        self._connected = asyncio.Event()
        self._connected.set()

    def cut(self) -> None:
        self._connected.clear()

    def mend(self) -> None:
        self._connected.set()

    async def before(self, name: str) -> None:
        if not name.startswith("state"):
            await self._connected.wait()
        await super().before(name)

    async def pass_by(self) -> None:
        await self._connected.wait()
        await super().pass_by()
