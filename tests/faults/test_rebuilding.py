"""A relay rebuilds its state from the log: slowly, by one process at a time, until nothing is missing. Meanwhile
unknown messages count as in doubt."""

import asyncio
import io
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.domain.exchange import Exchange, Request
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.receiver import Source
from relay.domain.timing import Timing
from relay.domain.topics import Topics
from relay.log.port import Backlog, Coordinate, Log, NewRecord, Record, TopicPartition
from relay.recovery.rebuild import Rebuild
from relay.recovery.rebuilding import CHECK_EVERY_S, Rebuilding
from relay.state.attempts import Settlement
from relay.state.port import State
from relay.state.replies import Refusal, answered
from relay.state.rows import TAGS, Mark, Row, RowKey, Stage, delivery_row
from relay.telemetry.logging import configure
from relay.telemetry.metrics import Metrics
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import REFUSED, Surroundings
from tests.fakes.world import Process, World, message, rebuilding, receiver

COUNT = 60


async def _lived(*, on_ambiguous: Any = "resend", status: bool = False, **retry: Any) -> World:
    """A relay that has delivered and answered, and then lost its state."""
    world = await World([receiver("r", "/answer", status=status, on_ambiguous=on_ambiguous, **retry)]).create()
    await world.send(*_sent())
    await world.run(Fuse(), 20, until=lambda: len(world.outside.results()) == COUNT)
    world.state.lose()
    return world


def _sent(start: int = 0, count: int = COUNT) -> list[Message]:
    return [message(number, "a", "r") for number in range(start, start + count)]


async def _rebuilding(world: World, owner: str, *, rate: int = 1_000, metrics: Metrics | None = None) -> Rebuilding:
    log = MemoryLog(world.broker)
    await log.start()
    return rebuilding(world, owner, log=log, rate=rate, metrics=metrics)


async def _closed(world: World) -> float:
    """When there was no gap any more, by the loop's time."""
    while await world.state.gaps(range(TAGS)):
        await world.clock.sleep(0.5)
    return world.clock.monotonic()


async def _finished(world: World) -> int:
    rows = await answered(world.state.peek([delivery_row(DeliveryId("r", *one.id)) for one in _sent()]))
    return sum(row.stage is Stage.DONE for row in rows)


async def test_it_begins_by_itself_keeps_to_its_rate_and_ends() -> None:
    world = await _lived()
    out, metrics = io.StringIO(), Metrics("1")
    configure("json", stream=out)
    process = await Process(world).run(1)
    begun = world.clock.monotonic()
    rebuilding = await _rebuilding(world, "one", rate=5, metrics=metrics)
    task = asyncio.create_task(rebuilding.run())
    await asyncio.sleep(1)
    assert b"relay_state_tags_rebuilding 64" in metrics.render()
    took_s = await _closed(world) - begun
    task.cancel()
    await process.stop()
    assert took_s >= 2 * COUNT / 5, "from_sender and to_sender"
    assert await _finished(world) == COUNT
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    told = [event for event in events if event["event"].startswith("rebu")]
    assert told[0]["event"] == "rebuild_begun"
    assert told[-1]["event"] == "rebuilt"
    assert told[-1]["rows"] == {"enqueued": COUNT, "done": COUNT}
    assert "rebuild_progress" in [event["event"] for event in told]
    assert b'relay_rebuild_records_total{topic="to_sender"} 60' in metrics.render()
    assert b"relay_state_tags_rebuilding 0" in metrics.render()


async def test_one_process_does_it_and_another_goes_on_when_it_dies() -> None:
    world = await _lived()
    process = await Process(world).run(1)
    first = asyncio.create_task((await _rebuilding(world, "first", rate=5)).run())
    await asyncio.sleep(5)
    second = asyncio.create_task((await _rebuilding(world, "second", rate=1_000)).run())
    await asyncio.sleep(5)
    assert await world.state.gaps(range(TAGS)), "the second waits for the first, or it would be over"
    first.cancel()
    await _closed(world)
    second.cancel()
    await process.stop()
    assert await _finished(world) == COUNT


async def test_it_ends_when_somebody_was_quicker() -> None:
    world = await _lived()
    out = io.StringIO()
    configure("json", stream=out)
    process = await Process(world).run(1)
    rebuilding = asyncio.create_task((await _rebuilding(world, "one", rate=1)).run())
    await asyncio.sleep(5)
    await world.state.close_gaps(await world.state.gaps(range(TAGS)))
    await asyncio.sleep(600)
    rebuilding.cancel()
    await process.stop()
    assert await world.state.lease("rebuilding", "anybody", 1), "it was given back"
    assert "rebuilt" not in [json.loads(line)["event"] for line in out.getvalue().splitlines()]


async def test_a_second_loss_meanwhile_starts_it_anew() -> None:
    world = await _lived()
    process = await Process(world).run(1)
    task = asyncio.create_task((await _rebuilding(world, "one", rate=10)).run())
    await asyncio.sleep(5)
    world.state.lose()
    await asyncio.sleep(40)  # a lane finds out, and a pass makes it ready
    await _closed(world)
    task.cancel()
    await process.stop()
    assert await _finished(world) == COUNT


async def test_what_may_be_sent_at_most_once_is_not_sent_again_before_or_after() -> None:
    """And new messages are sent, once nothing can be missing any longer."""
    world = await _lived(on_ambiguous="dead_letter")
    process = await Process(world).run(1)
    await world.send(*_sent(count=5), *_sent(start=COUNT, count=1))
    await process.ended(60)  # longer than a POST may take to arrive
    assert world.outside.arrived("/answer") == [one.message_id for one in _sent()], "the new one waits"
    task = asyncio.create_task((await _rebuilding(world, "one")).run())
    await _closed(world)
    await world.send(*_sent(start=5, count=COUNT - 5), *_sent(start=COUNT + 1, count=3))
    await process.ended(60)
    task.cancel()
    await process.stop()
    assert world.outside.arrived("/answer") == [one.message_id for one in _sent(count=COUNT + 4)]
    assert not world.told.dead_letters


@pytest.mark.parametrize("hold_max", [60.0, 5.0], ids=["held", "parked"])
async def test_what_was_answered_does_not_expire_before_its_row_is_back(hold_max: float) -> None:
    """Its record is read again after its deadline: without the row, it looks as if it had never been sent."""
    world = await _lived(max_age=30.0)
    world.settings = Settings(receivers_file="none", hold_max=hold_max)
    for group, at in list(world.broker.offsets):
        if at.topic.startswith("to_receiver"):
            del world.broker.offsets[group, at]
    await asyncio.sleep(30)
    process = await Process(world).run(60)
    task = asyncio.create_task((await _rebuilding(world, "one", rate=5)).run())
    await _closed(world)
    await process.ended(60)
    task.cancel()
    await process.stop()
    assert not world.told.dead_letters
    assert not world.told.broken_lanes
    assert len(world.outside.results()) == COUNT
    assert await world.is_at_rest()


async def test_a_replay_that_fails_before_its_row_may_be_back_is_not_lost() -> None:
    """It is too old when it is read: that waits for the rows, and then ends it."""
    world = await _lived(max_age=30.0)
    first, *_ = world.broker.records(world.topics.to_receiver("r"))
    again = structs.replace(decode_hop(first.headers), generation=1)
    await world.append(first.topic, first.key, first.value, encode_hop(again))
    await asyncio.sleep(30)
    process = await Process(world).run(60)
    assert world.uncommitted()
    task = asyncio.create_task((await _rebuilding(world, "one")).run())
    await _closed(world)
    await process.ended(60)
    task.cancel()
    await process.stop()
    assert world.told.dead_letters == {"expired": 1}
    assert await world.is_at_rest()


@pytest.mark.parametrize(
    ("hold_max", "delay"), [(60.0, 0.0), (60.0, 300.0), (5.0, 300.0)], ids=["behind", "due", "parked"]
)
async def test_what_finds_no_room_before_its_row_may_be_back_waits_for_it(hold_max: float, delay: float) -> None:
    """Behind a message that was parked, or because it is not due yet: its dead letter needs its row, too."""
    world = await World(
        [receiver("r", "/answer", lane="shared", base=90.0, cap=90.0)],
        settings=Settings(receivers_file="none", hold_max=hold_max, parked_per_receiver=1),
    ).create()
    process = await Process(world).run(5)
    world.state.lose()
    await process.ended(5)
    world.outside.down.add("answer")
    timing = Timing(world.clock.time() + delay) if delay else None
    await world.send(*(structs.replace(one, timing=timing) for one in _sent(count=5)))
    await process.ended(30)
    assert await world.parked_references() == 1
    assert not world.told.dead_letters
    world.outside.down.clear()
    task = asyncio.create_task((await _rebuilding(world, "one")).run())
    await _closed(world)
    await process.ended(400)
    task.cancel()
    await process.stop()
    assert not world.told.broken_lanes
    assert world.told.dead_letters == {"backlog_full": 4}
    assert len(world.outside.results()) == 5
    assert await world.is_at_rest()


class _SlowToGiveUp(MemoryLog):
    """The result of the first message is appended once `given_up` is set, and the second is sent before that."""

    def __init__(self, world: World) -> None:
        super().__init__(world.broker)
        self.given_up = asyncio.Event()
        self._world = world
        self._settle = world.state.settle

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        if not self.given_up.is_set() and records[0].topic == self._world.topics.to_sender:
            await self._world.send(_sent()[1])
            await self.given_up.wait()
        return await super().append(records)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | Refusal | None]:
        """The first refusal for want of room takes long, and the third message is sent meanwhile."""
        if settlements[0].reason == "backlog_full" and not self.given_up.is_set():
            self.given_up.set()
            await self._world.send(_sent()[2])
            await asyncio.sleep(5)
        return await self._settle(settlements)


async def test_no_message_passes_one_that_finds_no_room_before_its_row_may_be_back() -> None:
    """Its dead letter is being refused while the one before it ends, and makes room."""
    world = World(
        [receiver("r", "/answer", lane="shared", base=90.0, cap=90.0)],
        settings=Settings(receivers_file="none", parked_per_receiver=1),
    )
    log = _SlowToGiveUp(world)
    world.make_log = lambda _broker: log
    world.state.settle = log.settle  # type: ignore[method-assign]
    await world.create()
    process = await Process(world).run(5)
    world.state.lose()
    await process.ended(5)
    world.outside.down.add("answer")
    await world.send(_sent()[0])
    await process.ended(30)
    world.outside.down.clear()
    await process.stop(after=400)
    assert log.given_up.is_set()
    assert not world.told.dead_letters
    arrived = [headers["ce-id"] for path, headers, _ in world.outside.posts if path == "/answer"]
    assert arrived == [one.message_id for one in _sent(count=3)]
    assert await world.is_at_rest()


class _FirstCallbackWaits(Surroundings):
    """The callback of the first message is in flight until `end` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.end = asyncio.Event()

    async def _post(self, path: str, request: Request) -> Exchange:
        if path == "/callback" and dict(request.headers)["relay-message-id"] == _sent()[0].message_id:
            await self.end.wait()
        return await super()._post(path, request)


async def test_results_finished_behind_one_under_way_are_marked_once_they_are_committed() -> None:
    """Their lane goes on through the loss, and commits them after the rest has been read back."""
    world = World([receiver("r", "/answer")])
    world.outside = outside = _FirstCallbackWaits()
    await world.create()
    await world.send(*_sent())
    process = Process(world)
    while len(outside.results()) < COUNT - 1:
        await process.ended(0.5)
    world.state.lose()
    task = asyncio.create_task((await _rebuilding(world, "one")).run())
    await process.ended(40)  # a lane finds out, and a pass makes it ready
    await _closed(world)
    assert await _finished(world) < COUNT
    outside.end.set()
    while not await world.is_at_rest():
        await process.ended(1)
    await process.ended(CHECK_EVERY_S)
    task.cancel()
    await process.stop()
    assert await _finished(world) == COUNT
    assert len(outside.posts) == 2 * COUNT, "nothing was sent again"


# --- memory -----------------------------------------------------------------------------------------------------

MANY = 20_000
BODY = b"x" * 2_000


class _LongLog:
    """MANY answers on `to_sender`, made when they are asked for."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def backlogs(self, groups: dict[str, str]) -> list[Backlog]:
        at = TopicPartition(self._topics.to_sender, 0)
        return [Backlog("relay.to-sender", at, 0, MANY, MANY)]

    async def scan(
        self, topic: str, partition: int, *, start: int = 0, end: int | None = None, batch: int = 1_000
    ) -> AsyncIterator[Sequence[Record]]:
        for first in range(start, end or MANY, batch):
            yield [self._record(offset) for offset in range(first, min(first + batch, end or MANY))]

    def _record(self, offset: int) -> Record:
        hop = Hop(DeliveryId("r", "a", f"a-{offset}"), outcome="answered", answer_status=200)
        return Record(self._topics.to_sender, 0, offset, b"a", BODY + b"%d" % offset, encode_hop(hop), 1_000 + offset)


class _NoState:
    """Remembers nothing."""

    def __init__(self) -> None:
        self.marks = 0

    async def peek(self, rows: Sequence[RowKey]) -> list[Row]:
        return [Row()] * len(rows)

    async def remember(self, marks: Sequence[Mark]) -> None:
        self.marks += len(marks)


async def test_its_memory_does_not_grow_with_the_log() -> None:
    topics, state = Topics(), _NoState()
    log = cast(Log, _LongLog(topics))
    rebuild = Rebuild(log, cast(State, state), topics, lanes=(), source=Source, since_ms=0.0)
    tracemalloc.start()
    try:
        (read,) = await rebuild.run()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (read.records, state.marks) == (MANY, MANY)
    assert most < 10 * 2**20, "a few batches, of the 40 MiB that are read"


async def _replace_the_end(world: World) -> None:
    """The log loses the last 20 messages, and 30 others take their place."""
    for at in world.broker.partitions_of(world.topics.from_sender):
        if world.broker[at].end:
            world.broker.cut(Coordinate(*at, COUNT - 20))
    await world.send(*_sent(COUNT, 30))


async def _deliver_after(world: World, rebuilding: Rebuilding) -> None:
    """The rows are read back before the relay reads on; then it delivers the rest, each message once."""
    await world.state.lost()
    await world.state.set_edition(2**53)
    await world.state.ready(range(TAGS), in_doubt_s=world.settings.dedup_window)
    task = asyncio.create_task(rebuilding.run())
    await _closed(world)
    task.cancel()
    await world.run(Fuse(), 60, until=lambda: len(world.outside.results()) == COUNT + 30)
    assert world.outside.arrived("/answer") == [f"a-{n}" for n in range(COUNT + 30)], "each once"


async def test_what_took_the_place_of_lost_records_is_not_taken_for_routed() -> None:
    """The state and the end of the log are lost together."""
    world = await _lived()
    await _replace_the_end(world)
    await _deliver_after(world, await _rebuilding(world, "one"))


class _Interrupted(MemoryLog):
    """After its first answer about offsets, and before the caller has it, `then` happens."""

    def __init__(self, broker: MemoryBroker, then: Callable[[], Awaitable[None]]) -> None:
        super().__init__(broker)
        self._then: Callable[[], Awaitable[None]] | None = then

    async def backlogs(self, groups: Mapping[str, str]) -> list[Backlog]:
        found = await super().backlogs(groups)
        then, self._then = self._then, None
        if then is not None:
            await then()
        return found


async def test_what_takes_the_place_of_lost_records_during_a_rebuild_is_not_taken_for_routed() -> None:
    """The log loses its end after the rebuild has asked for offsets, and before it reads the records there."""
    world = await _lived()
    log = _Interrupted(world.broker, partial(_replace_the_end, world))
    await log.start()
    await _deliver_after(world, rebuilding(world, "one", log=log, rate=1_000))


class _RebuildingProcess(Process):
    rebuilds = True


async def test_a_message_that_an_older_memory_has_as_parked_is_not_taken_for_lost() -> None:
    """It was sent since, and the log has compacted its parked copy away."""
    world = World(
        [receiver("r", "/answer", base=8.0, factor=1.0)], settings=Settings(receivers_file="none", hold_max=5.0)
    )
    await world.create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(message(0, "a", "r"))
    process = await _RebuildingProcess(world).run(4)
    replica, [copy] = world.state.copied(), world.parked_copies()
    await process.ended(20)
    assert not world.parked_copies()
    end = world.broker[TopicPartition(copy.topic, copy.partition)].end
    world.broker.drop_before(Coordinate(copy.topic, copy.partition, end))
    world.state.fail_over(replica)
    await process.stop(after=200)
    assert world.told.dead_letters == {}
    assert world.outside.results() == {("a-0", "r"): {"answered"}}
    assert await world.is_at_rest()
