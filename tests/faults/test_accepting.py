"""Messages over the API: the process that takes one dies at any call, and the sender, which got no answer, sends it
again with the same id."""

import pytest

from relay.api.intake import AcceptedMessage, IncomingMessage, Intake, Repeated
from relay.domain.message import message_headers
from relay.state.rows import MessageStage
from tests.fakes.strikes import CRASHES, CrashError, Fuse, Strikes
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


async def _deleted_unread(fuse: Fuse) -> World:
    """The process that reads the message may die; then the log deletes the record, and its sender sends it again."""
    world = await World([receiver("r", "/answer", status=True)]).create()
    await world.run(Fuse(), 1)
    assert await _accepted(world, Fuse())
    await world.run(fuse, 5)
    [lost] = world.broker.records(world.topics.from_sender)
    world.broker.drop_before(lost.coordinate._replace(offset=lost.offset + 1))
    assert await _accepted(world, Fuse())
    await world.run(Fuse(), 60)
    return world


@CRASHES
def test_what_the_log_deleted_unread_is_accepted_again(late: bool, strikes: Strikes) -> None:
    """Its row is no proof that it went on."""

    async def story(blow_at: int) -> None:
        fuse = Fuse(blow_at, after=late)
        world = await _deleted_unread(fuse)
        place = f"call {blow_at}, {fuse.names[-1]}"
        assert world.outside.arrived("/answer") == ["a-1"], place
        [row] = await world.state.messages([MESSAGE.id])
        assert row is not None
        assert row.stage is MessageStage.ENQUEUED, place
        is_there = any(record.offset == row.offset for record in world.broker.records(world.topics.from_sender))
        assert is_there or "state.arrive" in fuse.names, place
        assert await world.is_at_rest(), place

    async def counted() -> Fuse:
        await _deleted_unread(fuse := Fuse())
        return fuse

    for blow_at in strikes(run_virtually(counted())):
        run_virtually(story(blow_at))
