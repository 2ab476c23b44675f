"""Holds of endpoints that get nothing until an operator resumes them. A hold is written to the log first, where it is
durable, then to the state, where it takes effect; after a loss of the state it is restored from the log."""

import contextlib
from collections.abc import Collection
from typing import Final

from relay.domain.control_key import ControlKey, decode_key
from relay.domain.errors import InvalidRecord, Unavailable
from relay.domain.hold import Hold, decode_hold, encode_hold, hold
from relay.log.port import Log, NewRecord, Record
from relay.state.port import State
from relay.state.rows import tag_of

MARGIN_S: Final = 1.0
"""A hold that was set so shortly before the log was read may have been appended after the read."""


class Holding:
    """Holds and resumes. `topic`: `receiver_config`. Its methods raise what the two ports do; all can be repeated."""

    def __init__(self, log: Log, state: State, topic: str) -> None:
        self._log = log
        self._state = state
        self._topic = topic

    async def hold(self, owner: str, hold: Hold) -> bool:
        """When it returns True nothing is sent any more, even if the state is lost. False if the endpoint was resumed
        after `hold.since`: then the hold is on the log no more."""
        await self._append(owner, hold)
        return await self._state.hold(owner, hold) or await self._remove(owner, hold)

    async def resume(self, owner: str) -> None:
        """Written to the log a second time, once it is in effect: processes that read it may begin at once. Without it,
        they ask the state again within seconds. Another process may hold the endpoint meanwhile: then that is written,
        so that a loss of the state does not end it."""
        await self._append(owner, None)
        await self._state.resume(owner)
        with contextlib.suppress(Unavailable):
            while True:
                held = await self._held(owner)
                await self._append(owner, held)
                if await self._held(owner) == held:
                    return

    async def _held(self, owner: str) -> Hold | None:
        [health] = await self._state.endpoints([owner])
        return health.hold

    async def _remove(self, owner: str, hold: Hold) -> bool:
        """Remove a refused hold from the log. Another process may hold the endpoint right before that: then it is
        written again. Returns whether the endpoint is held."""
        held = False
        while True:
            await self._append(owner, hold if held else None)
            is_held = not await self._state.hold_again({owner: hold})
            if is_held == held:
                return held
            held = is_held

    async def _append(self, owner: str, hold: Hold | None) -> None:
        value = None if hold is None else encode_hold(hold)
        await self._log.append([NewRecord(self._topic, ControlKey("hold", owner).encode(), value)])

    async def restore(self, tags: Collection[int], now: float) -> None:
        """Restore the holds of these hash tags from the log, and remove those that were written after their resume. Of
        these, an operator's stays: it may be about to take effect. `now`: Unix seconds, before the call."""
        found: dict[str, Hold] = {}
        async for batch in self._log.scan(self._topic, 0):  # there may be a million receivers among them
            for record in batch:
                key = decode_key(record.key)
                if key is None or key.kind != "hold" or tag_of(key.id) not in tags:
                    continue
                if record.value is None:
                    found.pop(key.id, None)
                else:
                    found[key.id] = _hold(record.value, record)
        for owner in await self._state.hold_again(found, tags=tags, before=now - MARGIN_S):
            if found[owner].reason != "paused":
                await self._remove(owner, found[owner])


def _hold(value: bytes, record: Record) -> Hold:
    try:
        return decode_hold(value)
    except InvalidRecord as error:  # an unreadable hold counts as a pause: a message that was sent cannot be undone
        return hold("paused", record.timestamp_ms / 1000, error.detail)
