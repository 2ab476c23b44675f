"""The incident watch merges observations into the state, and publishes each change once, even if it cannot store it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from relay.control.apply import API
from relay.control.records import EntryRecord
from relay.control.registry import Registry
from relay.domain.errors import StateUnavailable
from relay.domain.hold import hold
from relay.domain.incident import HOLD_S, Incident, Party, PersonMark, incident_id
from relay.domain.incident_kinds import PATIENCE_S
from relay.domain.own_events import Change
from relay.domain.topics import Topics
from relay.incidents.reader import MOST_SHARED, IncidentReader
from relay.incidents.watch import IncidentWatch
from relay.log.port import Backlog, Coordinate, NewRecord, Record, TopicPartition
from relay.state.lanes import LaneNow
from relay.state.port import FailedEntry, StoredIncidents
from relay.state.read_model import Served
from relay.telemetry.metrics import Metrics
from tests.fakes.log import MemoryBroker, opened_log
from tests.fakes.state import MemoryState
from tests.integration.api_rig import NOW, StandingClock

CI = Party("receiver", "ci")


class _State(MemoryState):
    away = False

    async def incidents(self) -> StoredIncidents:
        if self.away:
            raise StateUnavailable("refused")
        return await super().incidents()


@dataclass
class Rig:
    state: _State = field(default_factory=_State)
    clock: StandingClock = field(default_factory=StandingClock)
    trouble: dict[str, str | None] = field(default_factory=dict)
    published: list[tuple[Change, str, str]] = field(default_factory=list)
    lanes: list[LaneNow] = field(default_factory=list)

    async def start(self) -> "Rig":
        self.topics = Topics("t-")
        self.log = await opened_log(MemoryBroker(), self.topics.fixed())
        self.watch = self.process()
        return self

    def process(self) -> IncidentWatch:
        registry = Registry(self.topics, {})
        reader = IncidentReader(self.log, self.state, self.topics, registry, self.clock, lambda: self.trouble, dict)
        return IncidentWatch(reader, self.state, self._lanes, self.clock, Metrics("0"), [self._publish])

    async def _lanes(self) -> list[LaneNow]:
        return self.lanes

    def _publish(self, change: Change, one: Incident) -> None:
        self.published.append((change, one.kind, one.party.name))

    async def fail(self, receiver: str = "ci") -> None:
        at = Coordinate("t-failed_messages", 0, 0)
        await self.state.index_failed([FailedEntry(receiver, at, self.clock.now, "answer_timeout", "shop", "m-1")])

    async def mend(self, receiver: str = "ci") -> None:
        await self.state.drop_failed(await self.state.failed(receiver, limit=10))

    async def look(self, after_s: float = 3.0) -> None:
        self.clock.now += after_s
        await self.watch.look()


async def failing() -> Rig:
    """One that has looked at a receiver with a dead letter."""
    rig = await Rig().start()
    await rig.fail()
    await rig.look()
    return rig


@pytest.fixture
async def rig() -> Rig:
    return await Rig().start()


async def test_any_receiver_of_the_shared_lane_is_looked_at_while_messages_wait_for_it(rig: Rig) -> None:
    """There may be millions: only the first ones are looked at in any case."""
    entry = EntryRecord(API, {"post_endpoint": "https://ci.example/", "lane": "shared"}).encode()
    names = [*(f"a{number}" for number in range(MOST_SHARED)), "ci"]
    await rig.log.append([NewRecord(rig.topics.receiver_config, name.encode(), entry) for name in names])
    following = asyncio.create_task(rig.watch.reader.registry.follow(rig.log))
    await rig.watch.reader.registry.ready.wait()
    await rig.state.hold("r:ci", hold("disabled", rig.clock.now, ""))
    backlog = Backlog("t-relay.to-receiver", TopicPartition("t-to_receiver_shared", 0), 0, 1, 0)
    rig.lanes = [LaneNow(backlog, "to-receiver", None, Served(queued={"r:ci": 1}, ago_s=0.0))]
    await rig.look()
    following.cancel()
    assert rig.published == [("incident.opened", "disabled", "ci")]


async def test_a_cause_is_stored_published_and_resolved() -> None:
    rig = await failing()
    await rig.look()
    assert rig.published == [("incident.opened", "no_answer", "ci")]
    assert set((await rig.state.incidents()).incidents) == {incident_id(CI, "no_answer")}
    await rig.mend()
    with capture_logs() as lines:
        await rig.look()
        await rig.look(HOLD_S)
    assert rig.published[1:] == [("incident.resolved", "no_answer", "ci")]
    [line] = lines
    assert (line["event"], "by" in line) == ("incident_resolved", False)


async def test_a_dead_letter_is_read_once_however_often_it_is_looked_at() -> None:
    """Each has its whole payload: those of a thousand causes would be a gigabyte every three seconds."""
    rig, read = await Rig().start(), list[Coordinate]()
    reading = rig.log.read

    async def counted(wanted: Sequence[tuple[Coordinate, bytes | None]]) -> list[Record | None]:
        read.extend(at for at, _ in wanted)
        return await reading(wanted)

    rig.log.read = counted  # type: ignore[method-assign]
    headers = (("relay-reason", b"answer_timeout"), ("relay-detail", b"it said nothing"))
    await rig.log.append([NewRecord("t-failed_messages", b"shop", b"{}", headers)])
    for _ in range(2):
        await rig.fail()
        await rig.look()
        await rig.look()
    [found] = (await rig.state.incidents()).incidents.values()
    assert found.facts.detail == "it said nothing"
    assert len(read) == 2, "the newest one, and the one that was newer then"


async def test_another_process_goes_on_where_the_former_ended() -> None:
    rig = await failing()
    rig.watch = rig.process()
    await rig.look()
    assert len(rig.published) == 1


async def test_a_state_that_lost_everything_gets_them_again() -> None:
    rig = await failing()
    [before] = (await rig.state.incidents()).incidents.values()
    rig.state.lose()
    for tag in rig.state._tags:
        tag.ready = True
    rig.watch = rig.process()
    await rig.fail()
    await rig.look()
    [after] = (await rig.state.incidents()).incidents.values()
    assert after.id == before.id


async def test_who_resolved_it_by_hand_is_stored() -> None:
    rig = await failing()
    [one] = (await rig.state.incidents()).incidents.values()
    await rig.state.mark_incident(one.id, "resolve", PersonMark(one.opened_at, "key:a", rig.clock.now + 1))
    with capture_logs() as lines:
        await rig.look()
    assert [(line["event"], line["by"]) for line in lines] == [("incident_resolved", "key:a")]
    [one] = (await rig.state.incidents()).incidents.values()
    assert one.resolved_by == "key:a"
    assert rig.published[1:] == [("incident.resolved", "no_answer", "ci")]


async def test_a_state_that_is_away_is_published_by_the_process_that_looked_last(rig: Rig) -> None:
    other = rig.process()
    await rig.look()
    rig.state.away = True
    rig.trouble["state"] = "it does not answer"
    await rig.watch.idle()
    await other.idle()
    rig.clock.now += 6
    await rig.watch.idle()
    await other.idle()
    assert rig.published == [("incident.opened", "store_away", "state")]
    rig.state.away, rig.trouble["state"] = False, None
    await rig.look()
    assert rig.published[1:] == [("incident.resolved", "store_away", "state")]
    assert incident_id(Party("relay", "state"), "store_away") in (await rig.state.incidents()).incidents


async def test_a_part_that_was_away_is_resolved_by_the_process_that_looks_next(rig: Rig) -> None:
    await rig.look()
    former, rig.state.away, rig.trouble["state"] = rig.watch, True, "it does not answer"
    rig.clock.now += 6
    await former.idle()
    rig.clock.now += 6
    await former.idle()
    assert rig.published == [("incident.opened", "store_away", "state")]
    rig.state.away, rig.trouble["state"] = False, None
    await former.idle()
    rig.watch = rig.process()
    await rig.look()
    assert rig.published[1:] == [("incident.resolved", "store_away", "state")]


async def test_a_process_that_finishes_its_work_before_it_ends_is_no_incident(rig: Rig) -> None:
    await rig.look()
    rig.trouble["stopping"] = "finishing what is in flight"
    backlog = Backlog("t-relay.to-sender", TopicPartition("t-to_sender", 0), 0, 1, 0)
    rig.lanes = [LaneNow(backlog, "to-sender", None, Served(ago_s=60.0))]
    for _ in range(3):
        await rig.look(PATIENCE_S["no_worker"])
    await rig.watch.idle()
    rig.clock.now += PATIENCE_S["store_away"]
    await rig.watch.idle()
    assert rig.published == []
    del rig.trouble["stopping"]
    for _ in range(3):
        await rig.look(PATIENCE_S["no_worker"])
    assert rig.published == [("incident.opened", "no_worker", "to-sender")]


async def test_a_log_that_is_away_leaves_the_others_as_they_are() -> None:
    rig = await failing()
    before = (await rig.state.incidents()).incidents
    rig.trouble["log"] = "the brokers do not answer"
    await rig.mend()
    await rig.log.close()

    async def away() -> list[LaneNow]:
        from relay.domain.errors import LogUnavailable

        raise LogUnavailable("the brokers do not answer")

    rig.watch.lanes = away
    await rig.look(HOLD_S)
    found = (await rig.state.incidents()).incidents
    assert before.items() <= found.items()
    assert {one.kind for one in found.values()} == {"no_answer", "store_away"}
    assert rig.clock.now > NOW


async def test_a_start_after_a_stop_reports_no_worker_only_once_that_lasts(rig: Rig) -> None:
    backlog = Backlog("t-relay.to-receiver", TopicPartition("t-to_receiver_ci", 0), 0, 10, 4)
    rig.lanes = [LaneNow(backlog, "to-receiver", "ci", Served(ago_s=600.0))]
    await rig.look()
    assert rig.published == []
    await rig.look(PATIENCE_S["no_worker"])
    assert rig.published == [("incident.opened", "no_worker", "to-receiver")]


@pytest.mark.parametrize("idle", [False, True])
async def test_an_outage_of_the_state_reports_no_worker_only_once_that_lasts(rig: Rig, *, idle: bool) -> None:
    """Workers cannot sign their lanes meanwhile."""
    backlog = Backlog("t-relay.to-receiver", TopicPartition("t-to_receiver_ci", 0), 0, 10, 4)
    rig.lanes = [LaneNow(backlog, "to-receiver", "ci", Served(ago_s=0.0))]
    await rig.look()
    rig.state.away, away_s = True, 2 * PATIENCE_S["no_worker"]
    if idle:
        await rig.watch.idle()
    else:
        with pytest.raises(StateUnavailable):
            await rig.look()
    rig.state.away = False
    rig.lanes = [LaneNow(backlog, "to-receiver", "ci", Served(ago_s=away_s))]
    await rig.look(away_s)
    assert rig.published == []
    await rig.look(PATIENCE_S["no_worker"])
    assert rig.published == [("incident.opened", "no_worker", "to-receiver")]


async def test_a_lane_that_was_not_served_before_an_outage_is_not_missed_during_it(rig: Rig) -> None:
    backlog = Backlog("t-relay.to-receiver", TopicPartition("t-to_receiver_ci", 0), 0, 10, 4)
    rig.lanes = [LaneNow(backlog, "to-receiver", "ci", None)]
    await rig.look()
    rig.trouble["state"] = "it does not answer"
    for _ in range(4):
        rig.clock.now += PATIENCE_S["no_worker"] / 2
        await rig.watch.idle()
    assert rig.published == [("incident.opened", "store_away", "state")]
