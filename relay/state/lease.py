"""A lease: of all processes, the one that does what only one may. It ends by itself when its owner is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.state.port import State

LEASE_S: Final = 15.0
"""How long it lasts without being renewed. It is renewed three times as often."""


async def take_lease(state: State, clock: Clock, name: str, owner: str, *, patience_s: float, look_s: float) -> bool:
    """Ask for a lease until it is given: then True. False: somebody else had it for `patience_s` (inf: wait for ever).
    Raises StateUnavailable."""
    end = clock.monotonic() + patience_s
    while not await state.lease(name, owner, LEASE_S):
        if clock.monotonic() >= end:
            return False
        await clock.sleep(look_s)
    return True


@contextlib.asynccontextmanager
async def keeping_lease(state: State, clock: Clock, name: str, owner: str) -> AsyncIterator[None]:
    """Renew a lease that was just given, and give it back at the end: what is done meanwhile takes long."""

    async def renew() -> None:
        while True:
            await clock.sleep(LEASE_S / 3)
            with contextlib.suppress(Unavailable):
                await state.lease(name, owner, LEASE_S)

    keeper = asyncio.create_task(renew())
    try:
        yield
    finally:
        keeper.cancel()
        with contextlib.suppress(Unavailable):
            await state.release(name, owner)
