"""What a process reads while the index of receivers in the shared lane is rebuilt."""

import pytest

from relay.config.plan import ProcessPlan
from relay.config.settings import Settings
from relay.domain.errors import LogUnavailable
from relay.domain.receiver import Receiver
from relay.engine.observer import Observer
from relay.engine.supervision import Retrier
from relay.run.lanes import Lanes
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState
from tests.fakes.steps import Rig
from tests.fakes.world import Known, SilentReporter


class Rebuilding(Known):
    """A receiver without a lane of its own, or that has left it, is in the index."""

    def receiver(self, name: str) -> Receiver | None:
        if (found := super().receiver(name)) is None:
            raise LogUnavailable("the index of receivers failed")
        return found

    def left_lanes(self) -> frozenset[str]:
        return frozenset({"left"})


@pytest.mark.parametrize("only", [None, frozenset({"left"}), frozenset({"shared"})])
def test_a_process_goes_on_while_receivers_are_unknown(only: frozenset[str] | None) -> None:
    outside = Rig().outside
    lanes = Lanes(
        Settings(),
        ProcessPlan(receivers=only),
        Rebuilding([], []),
        MemoryLog(MemoryBroker()),
        MemoryState(),
        outside,
        observer := Observer(),
        Retrier(outside.clock, observer),
        SilentReporter(),
    )
    lanes.update()
    own = only is None or "left" in only
    assert ("to_receiver_left" in lanes._reading["to-receiver"].topics) is own
    assert (lanes.heartbeats.unusable(), lanes.heartbeats.gathering()) == ([], [])
