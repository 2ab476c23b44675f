"""Messages over the API: the process that takes one dies at any call, and the sender, which got no answer, sends it
again with the same id."""

import pytest

from relay.api.intake import AcceptedMessage, IncomingMessage, Intake, Repeated
from relay.domain.message import message_headers
from tests.fakes.strikes import CrashError, Fuse
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import World, message, receiver

MESSAGE = message(1, "a", "r")


async def _accepted(world: World, fuse: Fuse) -> bool:
    """Whether the sender got a 202."""
    intake = Intake(await world.api_context(fuse))
    try:
        (fate,) = await intake.take("a", [IncomingMessage(MESSAGE, message_headers(MESSAGE), fresh=False)])
    except CrashError:
        return False
    assert isinstance(fate, AcceptedMessage | Repeated)
    return True


@pytest.mark.parametrize("meanwhile", [0.0, 30.0], ids=["sent again at once", "sent again after its delivery"])
@pytest.mark.parametrize("after", [False, True], ids=["call_fails", "reply_is_lost"])
def test_an_api_that_dies_at_any_call_accepts_a_message_once(after: bool, meanwhile: float) -> None:
    async def story(blow_at: int) -> Fuse:
        world, fuse = World([receiver("r", "/answer")]), Fuse(blow_at, after=after)
        await world.create()
        await world.run(Fuse(), 1)
        accepted = await _accepted(world, fuse)
        if meanwhile:
            await world.run(Fuse(), meanwhile)
        assert accepted or await _accepted(world, Fuse())
        await world.run(Fuse(), 60)
        place = f"call {blow_at}, {fuse.names[-1]}"
        assert world.outside.arrived("/answer") == ["a-1"], place
        assert world.outside.results() == {("a-1", "r"): {"answered"}}, place
        assert await world.is_at_rest(), place
        return fuse

    blow_at = 1
    while run_virtually(story(blow_at)).blown:
        blow_at += 1
    assert blow_at > 3, "messages, append and arrive"
