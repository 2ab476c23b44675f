"""The n-th call to any port fails and takes the process with it, for every n; a restart finds nothing lost."""

import pytest

from relay.domain.receiver import Receiver
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import World, message, receiver


def _receivers() -> list[Receiver]:
    return [
        receiver("answers", "/answer", status=True),
        receiver("later", "/later", status=True),
        receiver("fails", "/fail", max_attempts=2),
    ]


async def _world() -> World:
    world = World(_receivers())
    await world.create()
    await world.send(
        message(1, "a", "answers"),
        message(2, "a", "answers", "later"),
        message(3, "b", "later"),
        message(4, "b", "fails"),
    )
    return world


EXPECTED = {
    ("a-1", "answers"): {"answered"},
    ("a-2", "answers"): {"answered"},
    ("a-2", "later"): {"answered"},
    ("b-3", "later"): {"answered"},
    ("b-4", "fails"): {"failed"},
}


def test_without_a_fault_everything_comes_round_once() -> None:
    async def story() -> None:
        world = await _world()
        await world.run(Fuse(), 120)
        assert world.outside.results() == EXPECTED
        assert sorted(world.outside.arrived("/answer")) == ["a-1", "a-2"]
        assert sorted(world.outside.arrived("/later")) == ["a-2", "b-3"]
        assert len([at for at, _, _ in world.outside.posts if at == "/callback"]) == 5

    run_virtually(story())


def _calls() -> int:
    async def story() -> int:
        world, fuse = await _world(), Fuse()
        await world.run(fuse, 40)
        return fuse.calls

    return run_virtually(story())


@pytest.mark.parametrize("after", [False, True], ids=["call_fails", "reply_is_lost"])
def test_no_crash_at_any_call_loses_a_message(after: bool) -> None:
    async def story(blow_at: int) -> None:
        world = await _world()
        crashing = Fuse(blow_at, after=after)
        await world.run(crashing, 40)
        assert crashing.blown or after, f"call {blow_at} never came"  # a call that fails by itself has no reply to lose
        await world.run(Fuse(), 90, until=lambda: world.outside.results() == EXPECTED)
        place = f"call {blow_at}, {crashing.names[-1]}"
        assert world.outside.results() == EXPECTED, place
        assert sorted(world.outside.arrived("/answer")) == ["a-1", "a-2"], place
        assert sorted(world.outside.arrived("/later")) == ["a-2", "b-3"], place

    for blow_at in range(1, _calls() + 1):
        run_virtually(story(blow_at))
