"""One message for many receivers, and a log that is far away: appends are bounded, and never start over."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.errors import LogUnavailable, PartlyAppended
from relay.domain.message import Message
from relay.engine.parked_copy import LIFE_KEY
from relay.engine.pump import Pump
from relay.engine.slices import Slices
from relay.log.port import Coordinate, NewRecord
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, receiver
from tests.faults.simulation.watched_log import Troubles, WatchedLog
from workers.from_sender import FromSender

SUBSCRIBERS = 400
MESSAGES = 12
PAYLOAD = bytes(25_000)
MOST_BYTES = 8 * 1024**2
MOST_RECORDS = 1_500
"""What a log far away takes in the time that one append has."""


class FarLog(MemoryLog):
    """Half a second away. `calls`: records and bytes of each append, in order. More than MOST_BYTES it does not
    acknowledge in time."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.calls: list[tuple[int, int]] = []

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        size = sum(len(record.value or b"") for record in records)
        self.calls.append((len(records), size))
        await asyncio.sleep(0.5)
        if size > MOST_BYTES:
            await asyncio.sleep(20)
            raise LogUnavailable("no answer in time")
        return await super().append(records)


@contextmanager
def counting_hops(most: list[int]) -> Iterator[None]:
    """Puts into `most` how many hop records were made while the event loop had no turn, at most."""
    made = 0

    def turn(self: Pump) -> None:
        nonlocal made
        made = 0
        turn_rightly(self)
        most.append(made)

    def hop(self: FromSender, *given: object) -> NewRecord:
        nonlocal made
        made += 1
        return hop_rightly(self, *given)  # type: ignore[arg-type]

    turn_rightly, hop_rightly = Pump._turn, FromSender._hop
    with patch.object(Pump, "_turn", turn), patch.object(FromSender, "_hop", hop):
        yield


async def _fanned_out(subscribers: int = SUBSCRIBERS, payloads: Sequence[bytes] = (PAYLOAD,) * MESSAGES) -> World:
    """Messages to many receivers wait on `from_sender`; no process here reads the receivers' own lanes."""
    names = [f"r{number}" for number in range(subscribers)]
    world = World([receiver(name, "/answer") for name in names])
    world.served = frozenset()
    await world.create()
    await world.send(
        *(Message("a", f"a-{n}", tuple(names), "push", None, "text/plain", each) for n, each in enumerate(payloads))
    )
    return world


def _routed(world: World) -> Counter[str]:
    """By receiver, how many records are in its lane."""
    topics = [world.topics.to_receiver(name) for name in world.known.receivers()]
    return Counter({topic: len(world.broker.records(topic)) for topic in topics})


def _rest(world: World) -> int:
    """Records of `from_sender` that are not finished."""
    return sum(count for at, count in world.uncommitted().items() if at.topic == world.topics.from_sender)


async def test_a_far_log_gets_slices_and_the_watermark_moves_on() -> None:
    world = await _fanned_out()
    process = Process(world)
    process.log = log = FarLog(world.broker)
    await process.ended(30)
    assert _rest(world) < MESSAGES, "something was committed by now"
    await process.stop(after=90)
    assert _rest(world) == 0
    assert set(_routed(world).values()) == {MESSAGES}
    assert max(size for _, size in log.calls) <= MOST_BYTES
    assert max(count for count, _ in log.calls) <= MOST_RECORDS


async def test_the_event_loop_has_its_turn_between_messages() -> None:
    world, most = await _fanned_out(), list[int]()
    with counting_hops(most):
        await Process(world).stop(after=60)
    assert set(_routed(world).values()) == {MESSAGES}
    assert max(most) <= MOST_RECORDS


async def test_messages_keep_their_order_across_slices() -> None:
    world = await _fanned_out()
    process = Process(world)
    process.log = FarLog(world.broker)
    await process.stop(after=120)
    for name in world.known.receivers():
        ids = [dict(record.headers)["ce_id"] for record in world.broker.records(world.topics.to_receiver(name))]
        assert ids == [b"a-%d" % number for number in range(MESSAGES)]


class PartlyLog(MemoryLog):
    """Acknowledges the first part of each append once, and fails; of some of it the acknowledgement is lost."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.acknowledged = Counter[tuple[str, bytes]]()
        self._failed = False

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        self._failed = not self._failed and len(records) > 1
        some = records[: len(records) // 2] if self._failed else records
        places = await super().append(some)
        self.acknowledged.update(_named(record) for record in some if record.key != LIFE_KEY)
        if self._failed:
            raise PartlyAppended("no answer in time", dict(enumerate(places)))
        return places


def _named(record: NewRecord) -> tuple[str, bytes]:
    return record.topic, dict(record.headers).get("ce_id", b"")


async def test_what_was_acknowledged_is_not_appended_again() -> None:
    world = await _fanned_out()
    process = Process(world)
    process.log = log = PartlyLog(world.broker)
    await process.stop(after=120)
    assert _rest(world) == 0
    assert set(log.acknowledged.values()) == {1}
    assert set(_routed(world).values()) == {MESSAGES}


async def test_what_was_acknowledged_beside_a_record_that_is_too_large_is_not_appended_again() -> None:
    """Each message is appended alone then, and without that record."""
    world = await _fanned_out()
    last = world.topics.to_receiver(f"r{SUBSCRIBERS - 1}")
    world.broker.limits[last] = len(PAYLOAD)
    process = Process(world)
    process.log = log = PartlyLog(world.broker)
    await process.stop(after=300)
    assert _rest(world) == 0
    assert len(world.broker.records(world.topics.failed_messages)) == MESSAGES
    assert set(log.acknowledged.values()) == {1}
    assert _routed(world) == {topic: MESSAGES for topic in _routed(world) if topic != last} | {last: 0}


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    subscribers=st.sampled_from([1, 7, 200, 1_000]),
    sizes=st.lists(st.sampled_from([0, 25_000, 1_000_000]), min_size=1, max_size=4),
    partly=st.lists(st.tuples(st.integers(0, 999), st.booleans()), max_size=8),
)
def test_whatever_the_log_acknowledges_each_receiver_gets_each_message(
    subscribers: int, sizes: list[int], partly: list[tuple[int, bool]]
) -> None:
    run_virtually(_each_gets_each(subscribers, sizes, partly))


async def _each_gets_each(subscribers: int, sizes: list[int], partly: list[tuple[int, bool]]) -> None:
    world, troubles = await _fanned_out(subscribers, [bytes(size) for size in sizes]), Troubles()
    troubles.partly.extend(partly)
    world.make_log = partial(WatchedLog, troubles=troubles)
    await Process(world).stop(after=300)
    assert _rest(world) == 0
    assert troubles.wrongs == []
    for name in world.known.receivers():
        lane = world.broker.records(world.topics.to_receiver(name))
        ids = [dict(record.headers)["ce_id"] for record in lane]
        assert list(dict.fromkeys(ids)) == [b"a-%d" % number for number in range(len(sizes))]


def test_an_append_that_forgets_what_was_acknowledged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slices, "partly", lambda _slices, _places: None)
    with pytest.raises(AssertionError):
        run_virtually(_each_gets_each(7, [0], [(3, False)]))
