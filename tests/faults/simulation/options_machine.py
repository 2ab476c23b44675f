"""What hypothesis may do, besides, to a relay whose receivers use options."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from relay.domain.replay_job import Action
from tests.faults.simulation.machine import _now, _pick, names, nths, pauses
from tests.faults.simulation.moving_machine import MovingMachine
from tests.faults.simulation.options import WITH_OPTIONS
from tests.faults.simulation.options_scene import OptionsScene

actions = st.sampled_from(["replay", "replay", "replay", "discard", "cancel"])
rates = st.sampled_from([None, 2.0, 20.0])


class OptionsMachine(MovingMachine):
    """One story that begins with messages of which some fail, a job that replays them, and a process that dies or
    freezes in the middle of that. No record has a wrong time, by which it is erased and taken by jobs; and the log
    loses none, as thin receivers read them."""

    setup = WITH_OPTIONS
    kind = OptionsScene
    scene: OptionsScene
    replay: Any = None
    turn_the_brokers_clock: Any = None
    cut_log: Any = None
    cut_log_at_commit: Any = None
    shorten_log: Any = None

    @initialize(
        receivers=names,
        action=actions,
        only_failed=st.booleans(),
        rate=rates,
        in_calls=st.integers(1, 60),
        after=st.booleans(),
        freeze=st.booleans(),
    )
    def begin_to_move(  # instead of that
        self,
        receivers: list[str],
        action: Action,
        only_failed: bool,
        rate: float | None,
        in_calls: int,
        after: bool,
        freeze: bool,
    ) -> None:
        self.do(self.scene.run(1.0))
        self.do(self.scene.produce("a", receivers, 4))
        for message_id in self.firsts[:3]:
            self.scene.refuse(message_id)
        self.do(self.scene.run(30.0))
        self.scene.strike(0, in_calls, after=after, freeze=freeze)
        self.do(_now(lambda: self.scene.order(action, receivers, [], rate, only_failed=only_failed)))
        self.do(self.scene.run(2.0))

    @precondition(lambda self: self.firsts)
    @rule(nth=nths)
    def refuse(self, nth: int) -> None:
        self.scene.refuse(_pick(self.firsts[::-1], nth))

    @precondition(lambda self: self.firsts)
    @rule(
        nth=nths,
        what=st.sampled_from(["message", "message", "message", "source"]),
        receivers=names,
        count=st.integers(0, 3),
    )
    def erase(self, nth: int, what: str, receivers: list[str], count: int) -> None:
        """With `count` messages of the same source right before."""
        one = self.scene.story.firsts[_pick(self.firsts[::-1], nth)]
        self.do(self.scene.produce(one.source_id, receivers, count))
        named = {"source_id": one.source_id} | ({"message_id": one.message_id} if what == "message" else {})
        self.do(self.scene.erase(**named))

    @rule(
        action=actions,
        receivers=st.just([]) | names,
        some=st.lists(nths, max_size=3),
        rate=rates,
        only_failed=st.booleans(),
        seconds=pauses,
    )
    def order(
        self,
        action: Action,
        receivers: list[str],
        some: list[int],
        rate: float | None,
        only_failed: bool,
        seconds: float,
    ) -> None:
        ids = {_pick(self.firsts, nth) for nth in some if self.firsts}
        self.do(_now(lambda: self.scene.order(action, receivers, ids, rate, only_failed=only_failed)))
        self.do(self.scene.run(seconds))

    @precondition(lambda self: self.scene.story.jobs)
    @rule(nth=nths)
    def stop(self, nth: int) -> None:
        job = _pick(self.scene.story.jobs[::-1], nth)
        self.do(_now(lambda: self.scene.stop(job.id)))
