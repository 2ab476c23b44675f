"""The model's steps are the engine's: the same calls of the ports, in the same order, for each worker."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple

import pytest

from relay.delivery.port import Transport
from relay.domain.exchange import Exchange, NoResponse, Request
from relay.engine.observer import SilentObserver
from relay.engine.patience import Patience
from relay.engine.turnstile import Turnstile
from relay.lanes import Lanes
from relay.log.port import TopicPartition
from relay.plan import Plan
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, SilentReporter, World, message, receiver
from tests.faults.model.misfortunes import events
from tests.faults.model.search import ALL
from tests.faults.model.steps import steps
from tests.faults.model.world import Faults, Rules, Worker, beginning
from tests.faults.model.world import World as ModelWorld
from workers.outside import Outside

ROLES: Final[dict[Worker, str]] = {
    "from_sender": "from-sender",
    "to_receiver": "to-receiver",
    "to_sender": "to-sender",
}


CALLS: Final[dict[Worker, dict[str, tuple[str, ...]]]] = {
    "from_sender": {
        "arrive": ("state.arrive",),
        "append": ("log.append",),
        "mark": ("state.enqueued",),
        "commit": ("consumer.commit",),
    },
    "to_receiver": {
        "intake": (),  # the begin of a record that is new here finds out itself what is known of it
        "begin": ("state.begin",),
        "post": ("http.post",),
        "ask": ("http.get",),
        "settle": ("state.settle",),
        "append": ("log.append",),
        "mark": ("state.mark",),
        "commit": ("consumer.commit",),
    },
    "to_sender": {
        "intake": ("state.peek", "state.intake"),
        "begin": ("state.begin",),
        "post": ("http.post",),
        "settle": ("state.settle",),
        "mark": ("state.mark", "state.forget"),
        "commit": ("consumer.commit",),
    },
}
"""The model's name of a step -> the calls that the engine makes for it."""

SETTLED_S: Final = 120.0
"""Virtual time for everything to come to rest: an attempt in doubt settles for 25 s."""

Trouble = Literal["lost", "dropped"] | None


class Called(NamedTuple):
    worker: Worker
    calls: tuple[str, ...]


History = tuple[Called, ...]


class _Heard(Transport):
    """Notes requests among the calls of the process that makes them."""

    def __init__(self, outside: Transport, names: list[str]) -> None:
        self._outside = outside
        self._names = names

    async def start(self) -> None:
        await self._outside.start()

    async def close(self) -> None:
        await self._outside.close()

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        self._names.append(f"http.{request.method.lower()}")
        self._outside.send(request, done)


class _Moving(Fuse):
    """Leaves out commits of a watermark that has not moved: they say nothing."""

    def __init__(self, world: World, role: str) -> None:
        super().__init__()
        self._offsets = world.broker.offsets
        self._group = f"relay.{role}"
        self._committed = self._now()

    async def after(self, name: str, number: int) -> None:
        await super().after(name, number)
        if name == "consumer.commit":
            if self._now() == self._committed:
                del self.names[len(self.names) - 1 - self.names[::-1].index(name)]
            self._committed = self._now()

    def _now(self) -> dict[TopicPartition, int]:
        return {at: offset for (group, at), offset in self._offsets.items() if group.startswith(self._group)}


class _OneRole(Process):
    """A process with one worker."""

    def __init__(self, world: World, role: str) -> None:
        self._role = role
        super().__init__(world, _Moving(world, role))

    def _lanes(self, log: Any, state: Any, observer: SilentObserver, patience: Patience) -> Lanes:
        world = self._world
        return Lanes(
            world.settings,
            Plan(frozenset({self._role}), world.served),
            world.known,
            log,
            state,
            Outside(
                _Heard(world.outside, self.fuse.names),
                world.clock,
                lambda: 0.5,
                "relay/test",
                turnstile=Turnstile(world.clock),
            ),
            observer,
            patience,
            SilentReporter(),
        )


Orders = dict[Worker, list[str]]


async def _engine(trouble: Trouble) -> Orders:
    """The calls of each worker for one message, with that trouble at the first POST."""
    world = World([receiver("r", "/answer", status=True)])
    await world.create()
    processes = {worker: _OneRole(world, role) for worker, role in ROLES.items()}
    await asyncio.sleep(SETTLED_S)  # they have joined their groups, and the state is ready
    for process in processes.values():
        process.fuse.names.clear()
    if trouble == "lost":
        world.outside.lose_response = frozenset({1})
    if trouble == "dropped":
        world.outside.troubles["a-0"] = [NoResponse("disconnected", "dropped on its way", sent=True)]
    await world.send(message(0, "a", "r"))
    await asyncio.sleep(SETTLED_S)
    assert world.outside.results() == {("a-0", "r"): {"answered"}}
    assert await world.is_at_rest()
    found = {worker: _once_in_a_row(process.fuse.names, "state.begin") for worker, process in processes.items()}
    for process in processes.values():
        await process.stop()
    return found


HINT = "state.reserve"
"""Comes once for hundreds of records; nothing follows from it but whom to suspect (see `relay.engine.quarantine`)."""


def _once_in_a_row(names: Iterable[str], waiting: str) -> list[str]:
    """Without the repeats of a call that was told to wait, and without the hint of who is at what."""
    kept: list[str] = []
    for name in names:
        if name != HINT and not (kept and name == waiting == kept[-1]):
            kept.append(name)
    return kept


def _model(trouble: Trouble) -> Orders:
    """The same calls by the model, in every history in which that trouble happens."""
    start = beginning(Faults(**{trouble: 1} if trouble else {}), sent=(0,))
    found = _histories(start, {})
    assert len(found) == 1, "each worker has but one order"
    (history,) = found
    return {
        worker: [
            call for step in history if step.worker == worker for name in step.calls for call in CALLS[worker][name]
        ]
        for worker in ROLES
    }


def _histories(world: ModelWorld, known: dict[ModelWorld, frozenset[History]]) -> frozenset[History]:
    """All that can happen from here until everything is at rest and no fault is left, sorted by worker."""
    if world not in known:
        after: list[tuple[History, ModelWorld]] = [
            ((Called(step.worker, step.calls),), step.after) for step in steps(world, Rules(), ALL)
        ]
        after += [((), event.after) for event in events(world, Rules())]
        rest = {(*done, *later) for done, each in after for later in _histories(each, known)}
        at_rest = frozenset({()}) if not after and world.faults == Faults() else frozenset[History]()
        known[world] = at_rest | {tuple(sorted(history, key=lambda called: called.worker)) for history in rest}
    return known[world]


@pytest.mark.parametrize("trouble", [None, "lost", "dropped"])
def test_the_model_makes_the_calls_of_the_engine_in_the_same_order(trouble: Trouble) -> None:
    assert _model(trouble) == run_virtually(_engine(trouble))


def test_the_order_is_that_of_the_rules() -> None:
    """Produce, acknowledge, mark, commit; the intent before the POST, its outcome after it."""
    assert _model(None)["from_sender"] == ["state.arrive", "log.append", "state.enqueued", "consumer.commit"]
    assert _model(None)["to_receiver"] == [
        "state.begin",
        "http.post",
        "state.settle",
        "log.append",
        "state.mark",
        "consumer.commit",
    ]
