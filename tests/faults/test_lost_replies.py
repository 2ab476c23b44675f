"""A call to the log or to the state takes effect, and its reply is lost: the caller repeats it. Nothing is lost,
nothing is sent twice, and nothing arrives much later."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from relay.config.settings import Settings
from relay.domain.errors import LogUnavailable, StateUnavailable
from tests.fakes.strikes import Fuse, Strikes, each_call, last_of_each_kind
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import World, message, receiver

PARKS: dict[str, Any] = {"base": 8.0, "factor": 1.0, "cap": 8.0, "timeout": 2.0}
AT_MOST_S: Final = 30.0
"""Of virtual time: much less than a lease, or the round of those who look whether they have missed something."""
EXPECTED: Final = {
    ("a-0", "answers"): {"answered"},
    ("a-1", "answers"): {"answered"},
    ("b-2", "later"): {"answered"},
    ("b-3", "fails"): {"failed"},
}


class Silence(Fuse):
    """The reply to one call is lost; the process lives."""

    def __init__(self, to_call: int) -> None:
        super().__init__()
        self._to_call = to_call
        self.lost = ""
        """The call whose reply was lost."""

    async def after(self, name: str, number: int) -> None:
        if number != self._to_call or name.startswith("http"):  # a receiver's silence is a matter of attempts
            return
        self.lost = f"{name}, call {number}"
        raise StateUnavailable("no reply") if name.startswith("state") else LogUnavailable("no reply")


async def _world() -> World:
    """One head is parked, with a follower behind it; one answer comes later, and one delivery fails. The state was
    ready before: a first start whose note of that is repeated takes the empty state for a lost one, and is wary."""
    receivers = [
        receiver("answers", "/answer", status=True, **PARKS),
        receiver("later", "/later", status=True),
        receiver("fails", "/fail", max_attempts=2),
    ]
    world = await World(receivers, settings=Settings(receivers_file="none", hold_max=5.0)).create()
    await world.run(Fuse(), 1.0)
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(
        message(0, "a", "answers"), message(1, "a", "answers"), message(2, "b", "later"), message(3, "b", "fails")
    )
    return world


def _complete(world: World) -> Callable[[], bool]:
    return lambda: world.outside.results() == EXPECTED


async def _story(fuse: Fuse) -> Fuse:
    world = await _world()
    await world.run(fuse, AT_MOST_S, until=_complete(world))
    place = fuse.lost if isinstance(fuse, Silence) else "without a fault"
    assert world.outside.results() == EXPECTED, place
    assert world.outside.arrived("/answer") == ["a-0", "a-1"], place
    assert world.outside.arrived("/later") == ["b-2"], place
    assert await world.is_at_rest(), place
    return fuse


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param(last_of_each_kind, id="kinds"),  # the first take of due records finds none
        pytest.param(each_call, id="calls", marks=pytest.mark.slow),
    ],
)
def test_no_lost_reply_loses_or_doubles_a_message_or_makes_it_late(strikes: Strikes) -> None:
    for lost in strikes(run_virtually(_story(Fuse()))):
        run_virtually(_story(Silence(lost)))
