"""Holding an endpoint until somebody resumes it: first on the log, where that outlives everything, then in the state,
where it takes effect."""

from collections.abc import Collection
from contextlib import suppress

from relay.domain.errors import InvalidRecord, LogUnavailable
from relay.domain.hold import Hold, decode_hold, encode_hold, held_owner, hold, hold_key
from relay.log.port import Log, NewRecord, Record
from relay.state.port import State
from relay.state.rows import tag_of

MARGIN_S = 1.0
"""What was held so shortly before the log was read may have been there too late to be read."""


class Holding:
    """Holds and resumes. `topic`: `receiver_config`. Its methods raise what the two ports do; all can be repeated."""

    def __init__(self, log: Log, state: State, topic: str) -> None:
        self._log = log
        self._state = state
        self._topic = topic

    async def hold(self, owner: str, hold: Hold) -> None:
        """From its return on nothing is sent, whatever becomes of the state."""
        await self._log.append([NewRecord(self._topic, hold_key(owner), encode_hold(hold))])
        await self._state.hold(owner, hold)

    async def resume(self, owner: str) -> None:
        """Said on the log a second time, once it is in force: whoever reads that may begin at once. Without it, they
        ask the state again within seconds."""
        resumed = [NewRecord(self._topic, hold_key(owner), None)]
        await self._log.append(resumed)
        await self._state.resume(owner)
        with suppress(LogUnavailable):
            await self._log.append(resumed)

    async def restore(self, tags: Collection[int], now: float) -> None:
        """Bring what the log says of these hash tags back into the state. `now`: Unix seconds, before the call."""
        found: dict[str, Hold] = {}
        async for batch in self._log.scan(self._topic, 0):  # there may be a million receivers among them
            for record in batch:
                owner = held_owner(record.key or b"")
                if owner is None or tag_of(owner) not in tags:
                    continue
                if record.value is None:
                    found.pop(owner, None)
                else:
                    found[owner] = _hold(record.value, record)
        await self._state.hold_again(found, tags=tags, before=now - MARGIN_S)


def _hold(value: bytes, record: Record) -> Hold:
    try:
        return decode_hold(value)
    except InvalidRecord as error:  # whoever wrote it meant something; to send nothing can be undone
        return hold("paused", record.timestamp_ms / 1000, error.detail)
