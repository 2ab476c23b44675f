"""Leases: exclusive work of one process among all. A lease expires if its owner stops renewing it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.state.port import State

LEASE_S: Final = 15.0
"""Duration of a lease without renewal. It is renewed three times in this period."""


async def take_lease(state: State, clock: Clock, name: str, owner: str, *, patience_s: float, look_s: float) -> bool:
    """Request a lease until it is granted, which returns True. Returns False if another process has held it for
    `patience_s` (inf for no limit). Raises StateUnavailable."""
    end = clock.monotonic() + patience_s
    while not await state.lease(name, owner, LEASE_S):
        if clock.monotonic() >= end:
            return False
        await clock.sleep(look_s)
    return True


@contextlib.asynccontextmanager
async def keeping_lease(state: State, clock: Clock, name: str, owner: str) -> AsyncIterator[None]:
    """Renew a granted lease during long work, and release it at the end."""

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
