"""The state machines of a relay whose receivers move between lanes; see `machine`."""

from typing import get_args

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.faults.simulation.machine import STRUCK_S, RelayMachine, _now, pauses, sources
from tests.faults.simulation.moving import MOVING, MovingScene, Place
from tests.faults.simulation.scene import Scene
from tests.faults.simulation.setups import RECEIVERS

movable = st.sampled_from([each.name for each in RECEIVERS])
places = st.sampled_from(get_args(Place))


class MovingMachine(RelayMachine):
    """One story in which receivers move between lanes. It begins with messages that are retried while their receiver
    moves, and with a process that dies or freezes in the middle of that."""

    setup = MOVING
    kind: type[Scene] = MovingScene
    scene: MovingScene

    @initialize(
        name=movable,
        place=places,
        before=pauses,
        rest=pauses,
        in_calls=st.integers(1, 60),
        after=st.booleans(),
        freeze=st.booleans(),
    )
    def begin_to_move(
        self, name: str, place: Place, before: float, rest: float, in_calls: int, after: bool, freeze: bool
    ) -> None:
        self.do(self.scene.run(1.0))
        self.scene.wire.down.add(name)
        self.do(self.scene.produce("a", [name], 3))
        self.do(self.scene.run(before))
        self.do(self.scene.move(name, place))
        self.scene.strike(0, in_calls, after=after, freeze=freeze)
        self.do(self.scene.produce("a", [name], 3))
        self.do(self.scene.run(rest))
        self.scene.wire.down.discard(name)
        self.do(self.scene.produce("a", [name], 1))

    @rule(name=movable, place=places, source=sources, count=st.integers(0, 3))
    def move(self, name: str, place: Place, source: str, count: int) -> None:
        """With `count` messages right before and after it."""
        self.do(self.scene.produce(source, [name], count))
        self.do(self.scene.move(name, place))
        self.do(self.scene.produce(source, [name], count))

    @rule()
    def shorten_log(self) -> None:
        self.do(_now(self.scene.shorten_log))


class ResumedMachine(RelayMachine):
    """One story in which a process freezes with messages that it has read. It resumes after another process has routed
    them, and their receiver, which is down, has moved."""

    setup = MOVING
    kind: type[Scene] = MovingScene
    scene: MovingScene

    @initialize(name=movable, place=places, in_calls=st.integers(1, 6), rest=st.sampled_from([16.0, 40.0]))
    def resume(self, name: str, place: Place, in_calls: int, rest: float) -> None:
        self.do(self.scene.run(1.0))
        self.scene.wire.down.add(name)
        self.scene.strike(0, in_calls, after=False, freeze=True)
        self.do(self.scene.produce("a", [name], 3))
        self.do(self.scene.run(STRUCK_S))
        self.do(self.scene.move(name, place))
        self.do(self.scene.run(rest))
        self.do(_now(self.scene.thaw))
        self.do(self.scene.run(1.0))
        self.scene.wire.down.discard(name)
