"""The straight path of healthy messages: a batch of them, and what befalls it in its middle. A crash in any phase of it
is recovered from on the other paths, and what leaves it there takes nothing else along."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

import pytest

from relay.domain.errors import PartlyAppended, StateUnavailable
from relay.domain.exchange import Response
from relay.domain.message import Message
from relay.engine.phases import Phase
from relay.engine.policy import Bounds
from relay.log.port import Coordinate, NewRecord
from relay.state.attempts import Go
from tests.fakes.log import MemoryLog
from tests.fakes.strikes import CRASHES, Fuse, Strikes
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import VirtualLoop, run_virtually
from tests.fakes.world import Process, World, message, receiver

SOURCES: Final = "abc"
EACH: Final = 3
ALL: Final = {source: [f"{source}-{number}" for number in range(EACH)] for source in SOURCES}
PATH: Final = frozenset({Phase.WAITING, Phase.BEGINNING, Phase.RUNNING, Phase.SETTLING, Phase.APPENDING, Phase.MARKING})
"""The phases of a work on its way there, once it was read."""


def _batch() -> list[Message]:
    return [message(number, source, "r") for number in range(EACH) for source in SOURCES]


async def _world(path: str = "/answer", **how: Any) -> World:
    return await World([receiver("r", path, **how)]).create()


async def _route(world: World, *messages: Message) -> None:
    """They are in the receiver's lane, which no process reads."""
    served, world.served = world.served, frozenset()
    await world.send(*messages)
    await world.run(Fuse(), 2)
    world.served = served


async def _works(world: World, seconds: float = 60) -> None:
    await world.run(Fuse(), seconds)
    assert await world.is_at_rest()


def _arrived_in_order(world: World, path: str = "/answer") -> bool:
    """Each once."""
    return all(world.outside.arrived(path, source) == ids for source, ids in ALL.items())


# a crash


class LastLook(Fuse):
    """Sees in which phases the works of a process are when it dies."""

    process: Process
    phases: frozenset[Phase] = frozenset()

    async def strike(self) -> None:
        lanes = self.process.lanes.pump.lanes() if self.process.lanes else ()
        self.phases = frozenset(work.phase for lane in lanes for work in lane.works)
        await super().strike()


@CRASHES
def test_a_crash_in_each_phase_is_recovered_from(late: bool, strikes: Strikes) -> None:
    async def story(blow_at: int | None) -> LastLook:
        world = await _world(status=True, timeout=2.0)
        await _route(world, *_batch())
        fuse = LastLook(blow_at, after=late)
        fuse.process = Process(world, fuse)
        await fuse.process.ended(5)
        await fuse.process.stop()
        await world.run(Fuse(), 60, until=lambda: len(world.outside.results()) == EACH * len(SOURCES))
        place = fuse.place
        assert _arrived_in_order(world), place
        assert set(map(frozenset, world.outside.results().values())) == {frozenset({"answered"})}, place
        assert await world.is_at_rest(), place
        return fuse

    seen = [run_virtually(story(blow_at)).phases for blow_at in strikes(run_virtually(story(None)))]
    assert frozenset().union(*seen) >= PATH


# in the middle of a batch


async def test_a_hostile_record_is_a_dead_letter_and_all_others_go_straight_on() -> None:
    world = await _world()
    topic, batch = world.topics.to_receiver("r"), _batch()
    await _route(world, *batch[:4])
    await world.append(topic, b"a", b"rubbish", ())
    await world.append(topic, None, b"\x00" * 1_000, (("ce_id", b"\xff\xfe"), ("relay-generation", b"9" * 400)))
    await _route(world, *batch[4:])
    await _works(world)
    assert _arrived_in_order(world)
    assert world.told.dead_letters == {"invalid": 2}


async def test_a_lane_that_is_fenced_half_way_stores_what_it_sent_and_sends_no_more() -> None:
    world = await _world("/slow")
    world.outside.slow_s = 3.0
    await _route(world, *_batch())
    former = await Process(world).run(1)
    assert world.outside.under_way["/slow"] == len(SOURCES)
    former.log.expel()
    owner = await Process(world).run(60)
    await asyncio.gather(former.stop(), owner.stop())
    assert _arrived_in_order(world, "/slow")
    assert await world.is_at_rest()


@pytest.mark.parametrize("method", ["begin", "settle", "mark"])
async def test_an_error_for_one_item_of_a_call_repeats_it_without_a_second_post(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Its effect is unknown; the others of the call have theirs."""
    world = await _world()
    await _route(world, *_batch())
    rightly, failed = getattr(world.state, method), list[int]()

    async def failing(items: Sequence[Any]) -> list[Any]:
        replies = list(await rightly(items))
        if not failed and len(replies) > 1:
            failed.append(len(replies))
            replies[1] = StateUnavailable("an error of the script")
        return replies

    monkeypatch.setattr(world.state, method, failing)
    await _works(world)
    assert failed
    assert _arrived_in_order(world)


class HalfLog(MemoryLog):
    """Acknowledges only every second record of its first large append to `to_sender`."""

    halved = 0

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        if HalfLog.halved or len(records) < len(SOURCES) or {record.topic for record in records} != {"to_sender"}:
            return await super().append(records)
        HalfLog.halved = len(records)
        places = await super().append(records[::2])
        raise PartlyAppended("half of it", dict(zip(range(0, len(records), 2), places, strict=True)))


async def test_of_an_append_that_is_half_refused_only_the_other_half_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HalfLog, "halved", 0)
    world = await _world()
    await _route(world, *_batch())
    world.make_log = HalfLog
    await _works(world)
    assert HalfLog.halved >= len(SOURCES)
    assert _arrived_in_order(world)
    assert len(world.broker.records(world.topics.to_sender)) == EACH * len(SOURCES), "one answer for each"


async def test_a_receiver_that_turns_bad_in_a_batch_gets_the_rest_in_order_when_it_is_well() -> None:
    world = await _world()
    world.outside.troubles["a-1"] = [REFUSED]
    world.outside.troubles["b-1"] = [Response(500, {}, b"")]
    world.outside.troubles["c-0"] = [Response(503, {}, b"")]
    await _route(world, *_batch())
    await _works(world)
    assert _arrived_in_order(world)
    assert world.outside.tried == {
        each: 2 if each in ("a-1", "b-1", "c-0") else 1 for ids in ALL.values() for each in ids
    }


async def test_a_pause_that_comes_in_a_batch_holds_all_that_has_not_begun() -> None:
    world = await _world()
    world.outside.troubles["a-0"] = [Response(429, {"retry-after": "20"}, b"")]
    await _route(world, *_batch())
    await _works(world)
    first, *later = world.outside.starts["/answer"]
    begun = sum(at < first + 1 for at in later)
    assert begun == len(SOURCES) - 1, "they were under way"
    assert all(at >= first + 20 for at in later[begun:])
    assert _arrived_in_order(world)


async def test_a_process_that_is_frozen_between_begin_and_post_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await _world()
    await _route(world, *_batch())
    loop, rightly, begun = cast(VirtualLoop, asyncio.get_running_loop()), world.state.begin, list[float]()

    async def begin(asks: Sequence[Any]) -> list[Any]:
        replies = list(await rightly(asks))
        begun.append(loop.time())
        if len(begun) == 1:
            assert all(isinstance(each, Go) for each in replies)
            loop.stand_still(Bounds().start_within_s + 1)
        return replies

    monkeypatch.setattr(world.state, "begin", begin)
    await _works(world)
    assert all(at >= begun[1] for at in world.outside.starts["/answer"]), "nothing of the first begin was sent"
    assert _arrived_in_order(world)
