"""The state is lost as a whole: `relay recover --dedup` makes known again what was finished, and claims no more."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from relay.config.settings import Settings
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.receiver import Endpoint, Receiver, RetryPolicy, Source
from relay.domain.topics import SHARED
from relay.engine.observer import Recovered, StateMemory
from relay.log.port import Backlog
from relay.recovery.rebuild import MemoryLostAgain, Read, Rebuild
from relay.state.port import FailedEntry
from relay.state.replies import answered
from relay.state.rows import Mark, MessageRow, Row, Stage, delivery_row
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.strikes import STRIKES, Fuse, Loss, Strikes, crash_at_each
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver, recovery_of

HELD = Settings(receivers_file="none", hold_max=5.0)
"""What waits for longer than 5 s is parked."""
CALLBACK = Endpoint("http://sender/callback")
SOURCES = [
    Source("called", CALLBACK),
    Source("silent"),
    Source("deaf", Endpoint("http://sender/deaf", retry=RetryPolicy(base=1.0, max_attempts=2, jitter=False))),
]


def _receivers() -> list[Receiver]:
    waits: dict[str, Any] = {"base": 60.0, "cap": 60.0}
    return [
        receiver("now", "/answer"),
        receiver("later", "/later", status=True),
        receiver("shared", "/answer", lane="shared"),
        receiver("broken", "/fail", max_attempts=2),
        receiver("slow", "/later"),  # takes all, and answers nothing
        receiver("away", "/away", **waits),
    ]


NAMES = ("now", "later", "shared", "broken", "slow", "away", "unknown")
SENT = [message(number, source, name) for number, name in enumerate(NAMES) for source in ("called", "silent", "deaf")]


async def _lived() -> World:
    """A relay that has deliveries with every kind of end, and some unfinished ones."""
    world = await World(_receivers(), settings=HELD, sources=SOURCES).create()
    world.outside.down |= {"away", "deaf"}
    await world.send(*SENT)
    await world.send(_other_payload(SENT[0]))
    await world.append(world.topics.from_sender, b"called", b"rubbish", ())
    await world.run(Fuse(), 40)
    assert world.parked_copies() != []
    return world


def _other_payload(sent: Message) -> Message:
    return Message(sent.source_id, sent.message_id, sent.receivers, "push", None, None, b"another")


async def recover(world: World) -> Recovered:
    """`relay recover`."""
    recovery = recovery_of(world, "recover", await world.client())
    while (done := await recovery.check()) is None:  # a relay process is at it
        await world.clock.sleep(0.001)
    return done


async def rebuild(
    world: World,
    *,
    dry_run: bool = False,
    told: Callable[[Read], None] = lambda _: None,
    log: MemoryLog | None = None,
) -> list[Read]:
    """`relay recover --dedup`, its second part."""
    log = log or MemoryLog(world.broker)
    await log.start()
    lanes = [each.name for each in world.known.receivers().values() if each.lane != SHARED]
    made = Rebuild(
        log,
        world.state,
        world.topics,
        lanes=lanes,
        source=world.known.source,
        since_ms=0,
        dry_run=dry_run,
        report=told,
    )
    return await made.run()


def _all_seen(world: World) -> Counter[tuple[str, str, str]]:
    """How often each (path, message, result) was POSTed, to receivers and callbacks."""
    return Counter(
        (path, headers.get("ce-id", ""), headers.get("webhook-id", "")) for path, headers, _ in world.outside.posts
    )


async def test_nothing_is_posted_again_when_everything_is_sent_and_read_again() -> None:
    world = await _lived()
    posts, tried = _posts(world), Counter(world.outside.tried)
    world.state.lose()
    done = await recover(world)
    assert done.memory is StateMemory.LOST
    assert {owner: found.total() for owner, found in done.owners.items()} == {"r:away": 3, "r:slow": 3}
    await rebuild(world)

    _rewind(world)
    await world.send(*SENT)
    world.outside.down.clear()
    await world.run(Fuse(), 100)

    unfinished = {sent.message_id for sent in SENT if sent.receivers == ("away",)}
    fresh = _posts(world) - posts
    assert {headers.get("ce-id") or headers["relay-message-id"] for headers in map(dict, fresh)} == unfinished
    assert set(fresh.values()) == {1}
    for finished in {sent.message_id for sent in SENT} - unfinished:
        assert world.outside.tried[finished] == tried[finished]


async def test_without_it_a_message_that_is_sent_again_is_delivered_again() -> None:
    world = await _lived()
    world.state.lose()
    await recover(world)
    await world.send(*SENT)
    await world.run(Fuse(), 40)
    assert world.outside.arrived("/answer").count("called-0") == 2


async def test_the_memory_is_as_it_was() -> None:
    """Finished rows, with their places and codes, messages, and the index of dead letters."""
    world = await _lived()
    before = await _memory(world)
    assert {row.stage for row in before.rows.values()} == {Stage.DONE, Stage.FAILED, Stage.AWAITING, Stage.ENQUEUED}
    world.state.lose()
    await recover(world)
    await rebuild(world)
    after = await _memory(world)
    assert after.messages == before.messages
    assert after.failed == before.failed
    for delivery, row in before.rows.items():
        if row.stage is Stage.ENQUEUED:
            assert after.rows[delivery].stage is Stage.NONE
        else:
            assert _proved(after.rows[delivery]) == _proved(row), delivery

    await rebuild(world)
    assert await _memory(world) == after


async def test_counting_only_changes_nothing() -> None:
    world = await _lived()
    world.state.lose()
    await recover(world)
    before = await _memory(world)
    counted = await rebuild(world, dry_run=True)
    assert await _memory(world) == before
    assert await rebuild(world) == counted


async def test_what_was_not_committed_is_not_claimed() -> None:
    world = await _lived()
    world.state.lose()
    await recover(world)
    for group, at in world.broker.offsets:
        if at.topic in (world.topics.from_sender, world.topics.to_sender):
            world.broker.offsets[group, at] = 0
    rows = {read.topic: read.rows for read in await rebuild(world)}
    assert rows[world.topics.from_sender]["enqueued"] == 0
    assert rows[world.topics.to_sender]["published"] > 0
    assert (await world.state.messages([SENT[0].id])) == [None]
    assert (await _row(world, SENT[0])).stage is Stage.PUBLISHED


async def test_what_lanes_had_finished_and_commit_only_now_is_claimed_at_the_end() -> None:
    world = await _lived()
    before = await _memory(world)
    world.state.lose()
    await recover(world)
    ours = (world.topics.from_sender, world.topics.to_sender)
    committed = {key: offset for key, offset in world.broker.offsets.items() if key[1].topic in ours}
    for key in committed:
        world.broker.offsets[key] = 0
    await rebuild(world, told=lambda _: world.broker.offsets.update(committed))
    after = await _memory(world)
    assert after.messages == before.messages
    done = [delivery for delivery, row in before.rows.items() if row.stage is Stage.DONE]
    assert {after.rows[delivery].stage for delivery in done} == {Stage.DONE}


class _LogThatGrows(MemoryLog):
    """It was asked where everything ends before lanes went on, and is read only after that."""

    def __init__(self, broker: MemoryBroker, before: Sequence[Backlog]) -> None:
        super().__init__(broker)
        self._before = list(before)

    async def backlogs(self, groups: Mapping[str, str]) -> list[Backlog]:
        before, self._before = self._before, []
        return [each for each in before if each.partition.topic in groups] or await super().backlogs(groups)


async def test_what_is_turned_away_meanwhile_is_not_claimed() -> None:
    world = await _lived()
    log = MemoryLog(world.broker)
    await log.start()
    lanes = [each.name for each in world.known.receivers().values() if each.lane != SHARED]
    await world.send(_other_payload(SENT[1]))
    before = await log.backlogs(world.topics.groups(lanes))
    await world.run(Fuse(), 20)
    assert world.told.dead_letters["id_conflict"] == 2
    _drop_first(world, SENT[1])
    world.state.lose()
    await recover(world)
    await rebuild(world, log=_LogThatGrows(world.broker, before))
    assert await world.state.messages([SENT[1].id]) == [None]


async def test_a_parked_callback_is_not_claimed_to_be_over() -> None:
    world = await World([receiver("now", "/answer")], settings=HELD, sources=[_patient_source()]).create()
    world.outside.down.add("callback")
    sent = message(0, "called", "now")
    await world.send(sent)
    await world.run(Fuse(), 20)
    assert len(world.parked_copies()) == 1
    world.state.lose()
    assert (await recover(world)).owners.keys() == {"s:called"}
    await rebuild(world)
    assert (await _row(world, sent)).stage is Stage.PUBLISHED
    world.outside.down.clear()
    await world.run(Fuse(), 60)
    assert world.outside.results() == {("called-0", "now"): {"answered"}}
    assert (await _row(world, sent)).stage is Stage.DONE


def _drop_first(world: World, sent: Message) -> None:
    """Retention removes the first record of that id."""
    sent_at = world.broker.records(world.topics.from_sender)
    first = next(record for record in sent_at if dict(record.headers).get("ce_id") == sent.message_id.encode())
    world.broker.drop_before(first.coordinate._replace(offset=first.offset + 1))


async def test_a_message_that_reuses_an_id_is_not_taken_for_the_first() -> None:
    """Also where retention has removed the first one."""
    world = await _lived()
    world.state.lose()
    await recover(world)
    _drop_first(world, SENT[0])
    await rebuild(world)
    assert await world.state.messages([SENT[0].id]) == [None]


async def test_a_later_generation_is_left_alone() -> None:
    world = await _lived()
    key = delivery_row(DeliveryId("now", *SENT[0].id))
    world.state.lose()
    await recover(world)
    await answered(world.state.mark([Mark(key, 1, Stage.AWAITING)]))
    await rebuild(world)
    (row,) = await answered(world.state.peek([key]))
    assert (row.generation, row.stage) == (1, Stage.AWAITING)


async def test_memory_that_goes_again_meanwhile_is_told() -> None:
    world = await _lived()
    world.state.lose()
    await recover(world)
    with pytest.raises(MemoryLostAgain):
        await rebuild(world, told=lambda _: world.state.lose())


# --- beside faults ----------------------------------------------------------------------------------------------


def _patient_source() -> Source:
    retry = RetryPolicy(base=8.0, factor=1.0, cap=8.0, max_attempts=9, jitter=False)
    return Source("called", Endpoint("http://sender/callback", retry=retry))


PARKS: dict[str, Any] = {"base": 8.0, "factor": 1.0, "cap": 8.0, "timeout": 2.0}
SOME = [message(number, "called", name) for number, name in enumerate(("now", "later", "again", "now"))]
ENDS = {(sent.message_id, name): {"answered"} for sent in SOME for name in sent.receivers or ()}


async def _young() -> World:
    """Each receiver can be asked; one refuses a message once, which is parked then."""
    receivers = [
        receiver("now", "/answer", status=True),
        receiver("later", "/later", status=True),
        receiver("again", "/answer", status=True, **PARKS),
    ]
    world = await World(receivers, settings=HELD, sources=[_patient_source()]).create()
    world.outside.troubles["called-2"] = [REFUSED]
    await world.send(*SOME)
    return world


def _complete(world: World) -> Callable[[], bool]:
    return lambda: world.outside.results() == ENDS


def _once_each(world: World, place: str) -> None:
    posts = [headers["ce-id"] for path, headers, _ in world.outside.posts if path != "/callback"]
    assert sorted(posts) == sorted(sent.message_id for sent in SOME), place


async def _counted() -> Fuse:
    world, fuse = await _young(), Fuse()
    await world.run(fuse, 40, until=_complete(world))
    _once_each(world, "without a fault")
    return fuse


@STRIKES
def test_no_crash_before_a_loss_and_its_rebuilding_loses_or_doubles_a_message(strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world = await _young()
        await world.run(fuse, 40, until=_complete(world))
        place = fuse.place
        world.state.lose()
        await recover(world)
        await rebuild(world)
        await world.send(*SOME)
        await world.run(Fuse(), 300, until=_complete(world))
        assert world.outside.results() == ENDS, place
        _once_each(world, place)
        assert world.parked_copies() == [], place
        assert not world.uncommitted(), place

    crash_at_each(story, strikes, late=True)


@STRIKES
def test_rebuilding_beside_a_working_relay_loses_and_doubles_nothing(strikes: Strikes) -> None:
    async def story(lose_at: int) -> None:
        world = await _young()
        losing = Loss(lose_at, world.state.lose)
        process = Process(world, losing)
        while losing.calls < lose_at and not await process.ended(0.001):
            pass
        await recover(world)
        await asyncio.gather(rebuild(world), world.send(*SOME))
        end = world.clock.monotonic() + 300
        while world.clock.monotonic() < end and not (_complete(world)() and await world.is_at_rest()):
            await process.ended(1.0)
        await process.stop()
        place = losing.place
        assert world.outside.results() == ENDS, place
        _once_each(world, place)

    for lose_at in strikes(run_virtually(_counted())):
        run_virtually(story(lose_at))


# --- comparison -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Memory:
    messages: Sequence[MessageRow | None]
    rows: dict[DeliveryId, Row]
    failed: dict[str, list[FailedEntry]]


async def _memory(world: World) -> _Memory:
    state = world.state
    deliveries = [DeliveryId(name, *sent.id) for sent in SENT for name in sent.receivers or ()]
    rows = await answered(state.peek([delivery_row(delivery) for delivery in deliveries]))
    failed = {name: await state.failed(name, limit=100) for name in await state.failed_receivers()}
    return _Memory(await state.messages([sent.id for sent in SENT]), dict(zip(deliveries, rows, strict=True)), failed)


async def _row(world: World, sent: Message) -> Row:
    names = sent.receivers or ()
    (row,) = await answered(world.state.peek([delivery_row(DeliveryId(names[0], *sent.id))]))
    return row


def _proved(row: Row) -> tuple[object, ...]:
    return row.stage, row.generation, row.at, row.code


def _posts(world: World) -> Counter[tuple[tuple[str, str], ...]]:
    """The POSTs, by the fields that are the same in a repeat."""
    told = ("ce-id", "webhook-id", "relay-message-id")
    return Counter(
        tuple((name, headers[name]) for name in told if name in headers) for _, headers, _ in world.outside.posts
    )


def _rewind(world: World) -> None:
    """Every group reads its topics anew, from the beginning."""
    for group, at in world.broker.offsets:
        world.broker.offsets[group, at] = 0
