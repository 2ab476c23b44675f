"""When a key was last used: noted by each request, and written to the state now and then.

A process writes a key at most once a minute, many in one call, and no request waits for that. The state may lose it;
nothing depends on it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from relay.clock import Clock
from relay.control.key_service import MOST_KEYS
from relay.domain.errors import Unavailable
from relay.engine.supervision import end
from relay.state.port import State

EVERY_S: Final = 60.0
GATHER_S: Final = 1.0
"""From the first use to the write: later uses are in the same write."""
_CLOSING_S: Final = 1.0


class KeyUse:
    """One per process."""

    def __init__(self, state: State, clock: Clock, gather_s: float = GATHER_S) -> None:
        self._state = state
        self._clock = clock
        self._gather_s = gather_s
        self._noted: dict[str, float] = {}
        self._untold: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    def note(self, id: str) -> None:
        """The key with this id, which there is, has just been used."""
        now = self._clock.monotonic()
        if now - self._noted.get(id, -EVERY_S) < EVERY_S:
            return
        if len(self._noted) >= 2 * MOST_KEYS:  # most of them revoked: then some are told of once more
            self._noted.clear()
        self._noted[id] = self._untold[id] = now
        self._wake.set()

    async def last(self, ids: Sequence[str]) -> list[float | None]:
        """When each was last used, in Unix seconds; None: never, long ago, or not known now."""
        try:
            found = await self._state.keys_used(ids)
        except Unavailable:
            return [None] * len(ids)
        now = self._clock.time()
        return [None if ago_s is None else now - ago_s for ago_s in found]

    async def start(self, _app: web.Application | None = None) -> None:
        self._telling = asyncio.create_task(self._tell())

    async def close(self, _app: web.Application | None = None) -> None:
        if self._telling is not None:
            await end([self._telling])
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    await self._flush()

    async def _tell(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._gather_s)
            self._wake.clear()
            try:
                await self._flush()
            except Unavailable:
                await asyncio.sleep(EVERY_S)
                self._wake.set()

    async def _flush(self) -> None:
        now, some = self._clock.monotonic(), dict(self._untold)
        if not some:
            return
        await self._state.use_keys({id: now - at for id, at in some.items()})
        self._untold = {id: at for id, at in self._untold.items() if some.get(id) != at}
