"""Being there: the state is told that attempts are made, so that our own absence is no part of a receiver's outage."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from relay.domain.errors import Unavailable
from relay.engine.clock import Clock
from relay.engine.turnstile import Turnstile
from relay.state.port import State

EVERY_S: Final = 2.0


async def attend(state: State, clock: Clock, turnstile: Turnstile, tags: Sequence[int]) -> None:
    """Say so, for ever; not while this process sends nothing."""
    while True:
        if not turnstile.shut:
            with suppress(Unavailable):
                await state.attend(tags)
        await clock.sleep(EVERY_S)
