"""The state in memory as one of several processes has it: with the recovery passes that this process has found."""

from collections.abc import Iterable, Sequence
from typing import Any

from relay.domain.errors import StateRecovering
from relay.state.port import Lane, LaneEnds, Restored, State
from relay.state.rows import Parked, tag_of
from tests.fakes.state import MemoryState


class StateOfProcess:
    """Implements `relay.state.port.State`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._port: State = state
        self._passes: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def lost(self, edition: int = 0) -> frozenset[int]:
        found = await self._state.lost(edition)
        self._passes = {tag: self._state._tags[tag].recovery_pass for tag in found}
        return found

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        self._check({tag_of(one.row.owner) for one in parked}.intersection(self._passes))
        return await self._state.restore(lane, parked)

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float, ends: LaneEnds | None = None) -> None:
        self._check(tag for tag in tags if not self._state._tags[tag].ready)
        await self._state.ready(tags, in_doubt_s=in_doubt_s, ends=ends)

    def _check(self, tags: Iterable[int]) -> None:
        """If the memory is lost again, another process begins another pass."""
        if ended := frozenset(tag for tag in tags if self._passes.get(tag) != self._state._tags[tag].recovery_pass):
            raise StateRecovering(ended)
