"""Half of the room for parked records is used: a metric at each look, and a warning in this process's health
meanwhile."""

from relay.domain.errors import StateUnavailable
from relay.state.port import Counts
from relay.watch.readiness import ParkedWatch
from tests.fakes.state import MemoryState
from tests.integration.api_rig import StandingClock


class _Parked(MemoryState):
    def __init__(self, *counts: Counts | StateUnavailable) -> None:
        super().__init__()
        self.left = list(counts)

    async def parked_total(self) -> Counts:
        found = self.left.pop(0)
        if isinstance(found, StateUnavailable):
            raise found
        return found


async def test_a_warning_from_half_of_it_on_and_not_any_more_below() -> None:
    told: list[tuple[int, int]] = []
    state = _Parked(Counts(49, 0), Counts(30, 20), Counts(1, 0))
    watch = ParkedWatch(state, StandingClock(), 100, lambda count, cap: told.append((count, cap)))
    warnings = []
    for _ in range(3):
        await watch.look()
        warnings.append(watch.warning)
    assert told == [(49, 100), (50, 100), (1, 100)]
    assert warnings == [None, "50 of 100 records that may be parked in all", None]
