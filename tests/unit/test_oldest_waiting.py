"""How long the oldest message has waited for an endpoint: read from lanes and from parked lines, and published."""

from dataclasses import replace

import pytest

from relay.control.registry import Registry
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.timing import Timing
from relay.domain.topics import Topics
from relay.engine.parked_copy import wrap
from relay.engine.work import Work
from relay.incidents.reader import IncidentReader, queues_of
from relay.incidents.watch import IncidentWatch
from relay.log.port import Backlog, NewRecord, Record, TopicPartition
from relay.state.lanes import LaneNow, waits_of, with_oldest
from relay.state.port import Lane
from relay.state.read_model import ParkedLine, Served, Waiting
from relay.state.rows import Parked, RowKey, delivery_row
from relay.telemetry.metrics import Metrics
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState
from tests.integration.api_rig import NOW, StandingClock

QUEUE = b"github------"
PARKED = "t-parked_messages"


def record(
    receiver: str = "ci", *, waited_s: float = 90.0, timing: Timing | None = None, generation: int = 0
) -> Record:
    hop = Hop(DeliveryId(receiver, "a/b", "m-1"), timing=timing, generation=generation)
    return Record("t-to_receiver_ci", 0, 4, b"k", b"{}", encode_hop(hop), int((NOW - waited_s) * 1000))


@pytest.mark.parametrize(
    ("timing", "generation", "since"),
    [
        (None, 0, NOW - 90),
        (Timing(deadline=NOW + 60), 0, NOW - 90),
        (Timing(deliver_at=NOW - 30), 0, NOW - 30),
        (Timing(deliver_at=NOW - 30, key="k", window=20), 0, NOW - 10),
        (Timing(deliver_at=NOW + 500), 0, NOW + 500),
        (Timing(deliver_at=NOW + 500), 1, NOW - 90),
    ],
)
def test_a_message_waits_since_it_is_in_its_lane_and_due(timing: Timing | None, generation: int, since: float) -> None:
    assert waits_of(record(timing=timing, generation=generation)) == {
        "to_receiver": Waiting("r:ci", since),
        "to_sender": Waiting("s:a/b", since),
    }


def test_a_record_of_no_delivery_waits_for_nothing() -> None:
    assert waits_of(Record("t-to_receiver_ci", 0, 4, b"k", b"{}", (("x", b"\xff"),), 0)) == {}


class Rig:
    """A watch over lanes that the test sets."""

    def __init__(self) -> None:
        self.broker, self.topics, self.clock = MemoryBroker(now_ms=self._now_ms), Topics("t-"), StandingClock()
        self.log, self.state = MemoryLog(self.broker), MemoryState(clock=lambda: self.clock.now)
        self.lanes: list[LaneNow] = []
        self.reader = IncidentReader(
            self.log, self.state, self.topics, Registry(self.topics, {}), self.clock, dict, dict
        )

    def _now_ms(self) -> int:
        return int(self.clock.now * 1000)

    async def start(self) -> "Rig":
        await self.log.start()
        await self.log.create([*self.topics.fixed(), *self.topics.lane_specs("ci", 1)], {})
        return self

    async def _lanes(self) -> list[LaneNow]:
        return await with_oldest(self.log, self.lanes, self.clock.time())

    async def lane(self, role: str, topic: str, *lines: ParkedLine) -> LaneNow:
        """With one record, which has just been appended."""
        [at] = await self.log.append([NewRecord(topic, b"k", b"{}", record(waited_s=0.0).headers)])
        backlog = Backlog("t-relay." + role, TopicPartition(topic, at.partition), 0, 1, 0)
        return LaneNow(backlog, role, None, Served(ago_s=1.0, parked=lines))

    async def look(self) -> dict[str, float]:
        await IncidentWatch(self.reader, self.state, self._lanes, self.clock, Metrics("0"), ()).look()
        return await self.state.waiting()

    async def park(
        self, stage: str, topic: str, owner: str, waited: Record, *, queue: bytes | None = QUEUE, message: str = "m-1"
    ) -> None:
        row = RowKey(owner, delivery_row(DeliveryId("ci", "a/b", message)).digest)
        work = Work(waited, row, 0, queue, owner)
        new = wrap(PARKED, stage, work, row, due_ms=0, poll=False)
        [at] = await self.log.append([new])
        await self.state.park([(Lane(topic, 0, 1), Parked(row, 0, at, 60.0, queue, 4))])


async def test_the_first_unread_record_of_a_lane_and_the_first_parked_one_of_a_line_count() -> None:
    rig = await Rig().start()
    own, results = "t-to_receiver_ci", rig.topics.to_sender
    rig.lanes = [
        await rig.lane("to-receiver", own, ParkedLine("r:cd", QUEUE)),
        await rig.lane("to-sender", results, ParkedLine("s:other", QUEUE)),
        await rig.lane("from-receiver-async", rig.topics.pending("ci")),
    ]
    await rig.park("to_receiver", own, "r:cd", record("cd", waited_s=500.0))
    assert await rig.look() == {"r:cd": NOW - 500}
    rig.clock.now += 70
    assert await rig.look() == {"r:cd": NOW - 500, "r:ci": NOW, "s:a/b": NOW}
    rig.lanes = [replace(lane, backlog=lane.backlog._replace(committed=1), heartbeat=None) for lane in rig.lanes]
    assert await rig.look() == {}


async def test_a_record_in_the_place_of_one_that_the_log_lost_after_its_commit_counts() -> None:
    rig = await Rig().start()
    lane = await rig.lane("to-receiver", "t-to_receiver_ci")
    rig.lanes = [replace(lane, backlog=lane.backlog._replace(committed=1, lost_from=0))]
    rig.clock.now += 70
    assert await rig.look() == {"r:ci": NOW}


async def test_what_is_parked_without_an_order_key_counts_too() -> None:
    rig = await Rig().start()
    own, results = "t-to_receiver_ci", rig.topics.to_sender
    await rig.park("to_receiver", own, "r:ci", record(waited_s=3_600.0), queue=None)
    await rig.park("to_receiver", own, "r:ci", record(waited_s=60.0), queue=None, message="m-2")
    await rig.park("to_sender", results, "s:a/b", record(waited_s=500.0), queue=None)
    assert await rig.look() == {"r:ci": NOW - 3_600, "s:a/b": NOW - 500}


def test_what_waits_for_an_endpoint_is_counted_over_all_lanes() -> None:
    def lane(role: str, receiver: str | None, queued: dict[str, int], *, ago_s: float = 1.0) -> LaneNow:
        backlog = Backlog("t-relay." + role, TopicPartition("t", 0), 0, 10, 4)
        return LaneNow(backlog, role, receiver, Served(ago_s=ago_s, queued=queued))

    assert queues_of(
        [
            lane("to-receiver", "ci", {}),
            lane("to-receiver", None, {"r:cd": 3}),
            lane("to-sender", None, {"s:shop": 4}),
            lane("to-sender", None, {"s:shop": 5}),
            lane("to-sender", None, {"s:shop": 7}, ago_s=3_600.0),  # of a process that has ended
            lane("from-receiver-async", None, {"r:cd": 9}),  # it waits for an answer, not for a request
        ]
    ) == {"r:ci": 6, "r:cd": 3, "s:shop": 9}


async def test_each_endpoint_of_a_lane_of_many_counts() -> None:
    rig = await Rig().start()
    lane = await rig.lane("to-receiver", rig.topics.to_receiver("shared"))
    waiting = (Waiting("r:cd", NOW - 70), Waiting("r:ce", NOW - 7_200))
    rig.lanes = [replace(lane, heartbeat=Served(ago_s=1.0, waiting=waiting))]
    assert await rig.look() == {"r:cd": NOW - 70, "r:ce": NOW - 7_200}
    rig.lanes = [replace(lane, heartbeat=Served(ago_s=3_600.0, waiting=waiting))]  # of a process that has ended
    assert await rig.look() == {}
