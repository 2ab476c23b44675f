"""The hypothesis state machine: the events that a relay may meet, and the checks after each step. `test_simulation`
runs the stories."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relay.domain.exchange import Response
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import VirtualLoop
from tests.faults.simulation.outside import Mishap
from tests.faults.simulation.scene import MOST_PROCESSES, Scene
from tests.faults.simulation.setups import CALM, CROWDED, FULL, RECEIVERS, SLOW, SUBSCRIBERS, WIDE, Setup

T = TypeVar("T")

STRUCK_S = 0.1
HOUR_S = 3600.0
sources = st.sampled_from(["a", "b", 'é ,;"#\u202e', "../%2F?"])
"""No path of a URL may have the last one's ids: who is asked by id gets none of its messages."""
names = st.lists(st.sampled_from([each.name for each in RECEIVERS]), min_size=1, max_size=4, unique=True)
sizes = st.sampled_from([0, 0, 0, 10_000, 300_000, 1_000_000])
nths = st.integers(0, 30)
calls = st.integers(1, 25)
slow_calls = st.sampled_from(
    ["log.append", *(f"state.{name}" for name in ("intake", "begin", "settle", "mark", "park", "take_due", "unpark"))]
)
delays = st.sampled_from([0.0, 0.3, 1.0, 1.5, 3.0])
pauses = st.sampled_from([0.005, 0.015, 0.05, 0.2, 1.0, 5.0, 20.0, 60.0])
Wave = tuple[int, int, float]
"""How many messages of `a` and then of `b` are sent, and the seconds until the next wave."""
crowds = st.sampled_from([1, 3, 8])
waves = st.lists(st.tuples(crowds, crowds, st.sampled_from([1.5, 2.5])), min_size=3, max_size=4)
mishaps = st.one_of(
    st.sampled_from(
        [
            Mishap("dropped"),
            Mishap("response_lost"),
            Mishap("turned_away", response=Response(500, {}, b"")),
            Mishap("turned_away", response=Response(429, {}, b"")),
            Mishap("turned_away", response=Response(503, {"retry-after": "20"}, b"")),
            Mishap("turned_away", response=REFUSED),
        ]
    ),
    st.builds(Mishap, st.just("late"), st.sampled_from([0.5, 3.0, 9.0, 11.0])),
)


class RelayMachine(RuleBasedStateMachine):
    """One story. Its loop, in virtual time, lives as long as it."""

    setup: Setup = CALM
    kind: type[Scene] = Scene

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.sound = True
        self.scene = self.do(self.kind.opened(self.setup))

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        try:
            return self.runner.run(what)
        except BaseException:
            self.sound = False
            raise

    def judge(self, wrongs: list[str]) -> None:
        self.sound = not wrongs
        assert not wrongs, wrongs

    @property
    def firsts(self) -> list[str]:
        return list(self.scene.story.firsts)

    # sending

    @rule(source=sources, receivers=names, count=st.integers(1, 3), size=sizes)
    def produce(self, source: str, receivers: list[str], count: int, size: int) -> None:
        self.do(self.scene.produce(source, receivers, count, size))

    @rule(
        source=sources,
        receivers=names,
        count=st.integers(1, 3),
        delay=st.sampled_from([0.0, 0.5, 4.0, 30.0, 600.0]),
        rest=st.sampled_from([0.0, 0.0, 2.0, 20.0, 90.0]),
    )
    def produce_timed(self, source: str, receivers: list[str], count: int, delay: float, rest: float) -> None:
        self.do(self.scene.produce_timed(source, receivers, count, delay=delay, rest=rest))

    @rule(
        source=sources,
        receivers=names,
        count=st.integers(1, 3),
        key=st.sampled_from(["k", "l"]),
        delay=st.sampled_from([0.0, 0.0, 6.0, 40.0]),
        window=st.sampled_from([0.0, 0.0, 6.0, 40.0]),
    )
    def produce_keyed(
        self, source: str, receivers: list[str], count: int, key: str, delay: float, window: float
    ) -> None:
        self.do(self.scene.produce_keyed(source, receivers, count, key, delay=delay, window=window))

    @precondition(lambda self: self.firsts)
    @rule(nth=nths)
    def resend(self, nth: int) -> None:
        self.do(self.scene.resend(self.scene.story.firsts[_pick(self.firsts, nth)]))

    @precondition(lambda self: self.firsts)
    @rule(nth=nths)
    def conflict(self, nth: int) -> None:
        self.do(self.scene.conflict(self.scene.story.firsts[_pick(self.firsts, nth)]))

    @rule(source=sources, receivers=names, ends=st.lists(st.booleans(), min_size=1, max_size=3))
    def transact(self, source: str, receivers: list[str], ends: list[bool]) -> None:
        self.do(self.scene.transact(source, receivers, ends))

    @precondition(lambda self: self.scene.ended())
    @rule(these=st.lists(nths, min_size=1, max_size=3), first=st.lists(mishaps, max_size=1))
    def replay(self, these: list[int], first: list[Mishap]) -> None:
        """Some, one right after the other. `first`: what befalls the first one."""
        for nth in these:
            if ended := self.scene.ended():
                self.scene.mishap(_pick(ended, nth)[0], first)
                self.do(self.scene.replay(_pick(ended, nth)))
                first = []

    # receivers

    @precondition(lambda self: self.firsts)
    @rule(nth=nths, these=st.lists(mishaps, min_size=1, max_size=3))
    def mishap(self, nth: int, these: list[Mishap]) -> None:
        self.scene.mishap(_pick(self.firsts[::-1], nth), these)

    @precondition(lambda self: self.scene.answering.urls)
    @rule(nth=nths, more=st.sampled_from(["", "x"]), expired=st.booleans(), seconds=st.sampled_from([0.0, 0.2, 8.0]))
    def answer(self, nth: int, more: str, expired: bool, seconds: float) -> None:
        """At one of the URLs that receivers got, the newest ones first."""
        self.do(self.scene.answer(-nth - 1, more, expired=expired))
        self.do(self.scene.run(seconds))

    @rule(name=st.sampled_from(["callback", *(each.name for each in RECEIVERS)]), seconds=pauses)
    def nobody_listens(self, name: str, seconds: float) -> None:
        """At a receiver, or where results go."""
        self.scene.wire.down.add(name)
        self.do(self.scene.run(seconds))
        self.scene.wire.down.discard(name)

    # time

    @rule(seconds=pauses)
    def run(self, seconds: float) -> None:
        self.do(self.scene.run(seconds))

    @rule(source=sources, receivers=names, seconds=st.sampled_from([0.1, 0.7, 2.0, 8.0]))
    def stand_still(self, source: str, receivers: list[str], seconds: float) -> None:
        """While there is something to do."""
        self.do(self.scene.produce(source, receivers, 3))
        self.do(self.scene.run(STRUCK_S))
        self.do(_now(lambda: self.scene.stand_still(seconds)))

    @rule(days=st.sampled_from([0.5, 2.0]))
    def advance(self, days: float) -> None:
        self.do(self.scene.advance(days))

    @rule(seconds=st.sampled_from([-HOUR_S, -60.0, HOUR_S]))
    def turn_the_states_clock(self, seconds: float) -> None:
        self.do(self.scene.turn_clock(seconds))

    @rule(off_s=st.sampled_from([-HOUR_S, 0.0, HOUR_S]))
    def turn_the_brokers_clock(self, off_s: float) -> None:
        self.scene.world.brokers_off_s = off_s
        self.scene.story.brokers_turned = True

    # processes

    @precondition(lambda self: len(self.scene.crew) < MOST_PROCESSES)
    @rule(lacks=st.just(()) | names)
    def join(self, lacks: Collection[str]) -> None:
        self.do(self.scene.join(lacks))

    @precondition(lambda self: any(member.process.lacks for member in self.scene.crew))
    @rule()
    def learn(self) -> None:
        self.do(_now(self.scene.learn))

    @precondition(lambda self: any(not member.fate.frozen for member in self.scene.crew))
    @rule(nth=nths)
    def leave(self, nth: int) -> None:
        awake = [n for n, member in enumerate(self.scene.crew) if not member.fate.frozen]
        self.do(self.scene.leave(_pick(awake, nth)))

    @precondition(lambda self: self.scene.crew)
    @rule(nth=nths)
    def kill(self, nth: int) -> None:
        self.do(self.scene.kill(nth % len(self.scene.crew)))

    @precondition(lambda self: self.scene.crew)
    @rule(nth=nths, in_calls=calls, after=st.booleans(), freeze=st.booleans(), source=sources, receivers=names)
    def strike(self, nth: int, in_calls: int, after: bool, freeze: bool, source: str, receivers: list[str]) -> None:
        """While there is something to do."""
        self.scene.strike(nth % len(self.scene.crew), in_calls, after=after, freeze=freeze)
        self.do(self.scene.produce(source, receivers, 1))
        self.do(self.scene.run(STRUCK_S))

    @precondition(lambda self: self.scene.crew)
    @rule(nth=nths)
    def expel(self, nth: int) -> None:
        self.do(_now(lambda: self.scene.expel(nth % len(self.scene.crew))))

    @precondition(lambda self: any(member.fate.frozen for member in self.scene.crew))
    @rule()
    def thaw(self) -> None:
        self.do(_now(self.scene.thaw))

    # log and state

    @rule()
    def lose_state(self) -> None:
        self.do(_now(self.scene.lose_state))

    @rule()
    def lag(self) -> None:
        self.do(_now(self.scene.lag))

    @precondition(lambda self: self.scene.replica)
    @rule()
    def fail_over(self) -> None:
        self.do(_now(self.scene.fail_over))

    @rule(upto=st.integers(1, 3), arrives=st.booleans(), source=sources, receivers=names, size=sizes)
    def partly(self, upto: int, arrives: bool, source: str, receivers: list[str], size: int) -> None:
        """While there is something to be appended."""
        self.scene.partly(upto, arrives=arrives)
        self.do(self.scene.produce(source, receivers, 2, size))
        self.do(self.scene.run(STRUCK_S))

    @precondition(lambda self: self.firsts)
    @rule(nth=nths, records=st.integers(1, 6), also=st.booleans(), source=sources, receivers=names)
    def cut_log(self, nth: int, records: int, also: bool, source: str, receivers: list[str]) -> None:
        """`also`: it has grown beyond that before anyone looks."""
        self.do(self.scene.cut_log(nth, records))
        if also:
            self.do(self.scene.produce(source, receivers, 2))

    @rule(records=st.integers(1, 3), after=st.booleans(), stuck=st.booleans(), source=sources, receivers=names)
    def cut_log_at_commit(self, records: int, after: bool, stuck: bool, source: str, receivers: list[str]) -> None:
        """Cut the log during a commit. `stuck`: the lost records were read, and can be routed only afterwards."""
        self.do(self.scene.produce(source, receivers, 1))
        self.do(self.scene.run(STRUCK_S))
        if stuck:
            for _ in range(3):
                self.scene.partly(0, arrives=False)
        self.scene.cut_at_commit(records, receivers, after=after)
        self.do(self.scene.produce(source, receivers, 3))
        self.do(self.scene.run(STRUCK_S))

    @rule(which=st.sampled_from(["state", "log", "both"]), seconds=pauses)
    def away(self, which: str, seconds: float) -> None:
        self.do(self.scene.away(state=which != "log", log=which != "state", seconds=seconds))

    @rule(call=slow_calls, seconds=delays, after=st.booleans())
    def slow_down(self, call: str, seconds: float, after: bool) -> None:
        """From now on it takes so long."""
        self.do(_now(lambda: self.scene.slow_down(call, seconds, after=after)))

    # judgement

    @invariant()
    def what_was_promised_holds(self) -> None:
        if self.sound:
            self.judge(self.scene.wrongs())

    def teardown(self) -> None:
        try:
            if self.sound:
                self.judge(self.do(self.scene.wrongs_at_end()))
        finally:
            self.runner.run(self.scene.close())
            self.runner.close()


class CrowdedMachine(RelayMachine):
    """One story that begins with more messages for a slow receiver than its shared lane may have unfinished. They
    arrive in waves, so that the lane is at its bound with messages of one source in memory and of others parked."""

    setup = CROWDED

    @initialize(waves=waves, slow_s=st.sampled_from([2.0, 4.0, 8.0]))
    def crowd(self, waves: list[Wave], slow_s: float) -> None:
        self.scene.wire.slow_s = slow_s
        for of_a, of_b, seconds in waves:
            self.do(self.scene.produce("a", [SLOW], of_a))
            self.do(self.scene.produce("b", [SLOW], of_b))
            self.do(self.scene.run(seconds))


class ParkedMachine(RelayMachine):
    """One story that begins with parked messages, and with a process that dies or freezes when they come due."""

    @initialize(
        receivers=names,
        seconds=st.sampled_from([6.5, 7.0]),
        in_calls=st.integers(1, 16),
        after=st.booleans(),
        freeze=st.booleans(),
    )
    def come_due(self, receivers: list[str], seconds: float, in_calls: int, after: bool, freeze: bool) -> None:
        self.scene.wire.down.update(receivers)
        self.do(self.scene.produce("a", receivers, 2))
        self.do(self.scene.run(1.0))
        self.scene.wire.down.clear()
        self.do(self.scene.run(seconds))
        self.scene.strike(0, in_calls, after=after, freeze=freeze)
        self.do(self.scene.run(2.0))


class LaggingMachine(RelayMachine):
    """One story that begins with messages which are looked up and parked while the state fails over to a replica that
    knows none of them. Their sender sends them again."""

    @initialize(
        receivers=names, look_up_s=delays, park_s=delays, gaps=st.tuples(*[st.sampled_from([0.1, 0.35, 0.7, 1.2])] * 4)
    )
    def fall_back(self, receivers: list[str], look_up_s: float, park_s: float, gaps: tuple[float, ...]) -> None:
        scene = self.scene
        self.do(scene.run(1.0))
        scene.lag()
        scene.slow_down("state.intake", look_up_s, after=False)
        scene.slow_down("state.park", park_s, after=False)
        scene.wire.down.update(receivers)
        self.do(scene.produce("a", receivers, 1))
        self.do(scene.run(gaps[0]))
        scene.wire.down.clear()
        self.do(scene.produce("a", receivers, 2))
        self.do(scene.run(gaps[1]))
        self.do(_now(scene.fail_over))
        self.do(scene.run(gaps[2]))
        for message_id in self.firsts[1:]:
            self.do(scene.resend(scene.story.firsts[message_id]))
        self.do(scene.run(gaps[3]))


class ExpiringMachine(RelayMachine):
    """One story that begins with messages whose deadline passes while their receivers are down."""

    @initialize(receivers=names, rest=st.sampled_from([2.0, 20.0]))
    def pass_deadline(self, receivers: list[str], rest: float) -> None:
        self.scene.wire.down.update(receivers)
        self.do(self.scene.produce_timed("a", receivers, 2, delay=0.0, rest=rest))
        self.do(self.scene.run(40.0))
        self.scene.wire.down.clear()
        self.do(self.scene.run(20.0))


class FullMachine(RelayMachine):
    """One story in which few records may be parked, of one receiver or source and of all; it begins with more."""

    setup = FULL

    @initialize(per_receiver=st.sampled_from([1, 3, 6]), more=st.sampled_from([0, 3, 6]), down=names)
    def crowd(self, per_receiver: int, more: int, down: list[str]) -> None:
        self.do(_now(lambda: self.scene.bound(per_receiver, per_receiver + more)))
        self.scene.wire.down.update(["callback", *down])
        for source in ("a", "b", "c"):
            self.do(self.scene.produce(source, down, 4))
        self.do(self.scene.run(20.0))
        self.scene.wire.down.difference_update(["callback", *down])


class WideMachine(RelayMachine):
    """One story that begins with a message to up to 1,000 receivers, in a shared lane with small bounds."""

    setup = WIDE

    @initialize(
        many=st.sampled_from([30, 200, len(SUBSCRIBERS)]),
        size=sizes,
        partly=st.lists(st.tuples(st.integers(0, len(SUBSCRIBERS) - 1), st.booleans()), max_size=4),
    )
    def fan_out(self, many: int, size: int, partly: list[tuple[int, bool]]) -> None:
        for upto, arrives in partly:
            self.scene.partly(upto, arrives=arrives)
        self.do(self.scene.produce("wide", SUBSCRIBERS[:many], 1, size))
        self.do(self.scene.run(STRUCK_S))


def _pick(these: list[T], nth: int) -> T:
    return these[nth % len(these)]


async def _now(what: Any) -> None:
    what()
