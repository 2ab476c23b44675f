"""Checks of topics: errors, warnings, and that each is reported once, with its remedy."""

import asyncio
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ByteSize

from relay.checks.topics import LaneChecks, log_findings, needs_of, needs_of_entry, refuse
from relay.config.receivers_file import parse_receivers_file, resolve
from relay.config.settings import Settings
from relay.control.registry import Registry
from relay.domain.errors import UserError
from relay.domain.topics import DAY_S, SHARED, Topics, TopicSpec
from relay.engine.observer import Observer
from relay.engine.supervision import Retrier
from relay.log.checks import (
    HEADROOM_BYTES,
    Expected,
    Finding,
    Grade,
    backlog_findings,
    expected_fixed,
    findings,
    wait_findings,
)
from relay.log.port import Backlog, TopicPartition, TopicState
from relay.run.composition import kafka_log
from relay.telemetry.logging import configure
from relay.watch.readiness import AGAIN_S, TopicWatch
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.virtual_time import LoopClock, virtually
from tests.fakes.world import receiver

TOPICS = Topics("t-")
PAYLOAD = 1_000_000
EXPECTED = {
    each.spec.name.removeprefix("t-"): each for each in expected_fixed(TOPICS, payload_bytes=PAYLOAD, answer_bytes=1000)
}
GOOD = TopicState(TopicSpec("-", 1), replication=3, min_insync=2, max_message_bytes=PAYLOAD + HEADROOM_BYTES)


def as_expected(topic: str, **changes: object) -> TopicState:
    """A topic as it should be, except for `changes`."""
    spec = EXPECTED[topic].spec
    of_spec = {name: value for name, value in changes.items() if name in ("partitions", "cleanup", "retention_s")}
    rest = {name: value for name, value in changes.items() if name not in of_spec}
    return GOOD._replace(spec=dataclasses.replace(spec, **of_spec), **rest)  # type: ignore[arg-type]


def found(topic: str, **changes: object) -> list[Finding]:
    return findings([EXPECTED[topic]], {f"t-{topic}": as_expected(topic, **changes)})


@pytest.mark.parametrize("topic", sorted(EXPECTED))
def test_nothing_is_said_about_a_topic_that_is_right(topic: str) -> None:
    assert found(topic) == []
    assert found(topic, retention_bytes=None, replication=None, min_insync=None) == []


@pytest.mark.parametrize(
    ("topic", "changes", "grade", "words"),
    [
        ("from_sender", {"cleanup": "compact", "retention_s": None}, Grade.REFUSE, "set cleanup.policy=delete"),
        ("from_sender", {"mixed_cleanup": True}, Grade.REFUSE, "cleanup.policy is compact,delete"),
        ("parked_messages", {"cleanup": "delete", "retention_s": DAY_S}, Grade.REFUSE, "set cleanup.policy=compact"),
        ("receiver_config", {"mixed_cleanup": True, "cleanup": "delete"}, Grade.REFUSE, "deleted by age"),
        ("to_sender", {"retention_bytes": 10**9}, Grade.REFUSE, "set retention.bytes=-1"),
        ("to_receiver_shared", {"retention_s": DAY_S}, Grade.WARN, "set retention.ms=604800000"),
        ("parked_messages", {"partitions": 9}, Grade.REFUSE, "must have 10"),
        ("parked_messages", {"partitions": 11}, Grade.WARN, "only the first 10"),
        ("receiver_config", {"partitions": 2}, Grade.WARN, "only the first 1"),
        ("from_sender", {"partitions": 64}, Grade.WARN, "64 partitions, expected 10"),
        ("failed_messages", {"max_message_bytes": PAYLOAD}, Grade.REFUSE, "blocks its partition"),
        ("parked_messages", {"max_message_bytes": PAYLOAD}, Grade.REFUSE, "max_payload_bytes"),
        ("from_sender", {"max_message_bytes": PAYLOAD}, Grade.WARN, "set max.message.bytes=1065536"),
        ("to_sender", {"max_message_bytes": 1000}, Grade.WARN, "set max.message.bytes=66536"),
        ("from_sender", {"replication": 1}, Grade.WARN, "losing a broker"),
        ("from_sender", {"min_insync": 1}, Grade.WARN, "set min.insync.replicas=2"),
        ("from_sender", {"in_sync": (3, 1)}, Grade.ALARM, "1 of 10 partitions refuse records"),
        ("from_sender", {"sender_timed": True}, Grade.WARN, "senders' clocks decide when a message is too old"),
        ("audit", {"cleanup": "compact", "retention_s": None}, Grade.REFUSE, "set cleanup.policy=delete"),
        ("parked_messages", {"sender_timed": True}, Grade.WARN, "set message.timestamp.type=LogAppendTime"),
    ],
)
def test_what_loses_messages_by_itself_is_refused(
    topic: str, changes: Mapping[str, object], grade: Grade, words: str
) -> None:
    [finding] = found(topic, **changes)
    assert (finding.topic, finding.grade) == (f"t-{topic}", grade)
    assert words in finding.problem
    assert "\n" not in finding.problem


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("parked_messages", {"retention_bytes": 10**6}),  # without a meaning where nothing is deleted
        ("from_sender", {"retention_s": None}),
        ("from_sender", {"retention_s": 30 * DAY_S}),
        ("receiver_config", {"max_message_bytes": 1000}),
        ("audit", {"retention_s": DAY_S}),  # how long people want to look back
        ("audit", {"retention_bytes": 10**9}),
        ("delivery_attempts", {"retention_s": DAY_S // 2}),
    ],
)
def test_what_does_no_harm_is_not_said(topic: str, changes: Mapping[str, object]) -> None:
    assert found(topic, **changes) == []


def test_copies_come_before_how_many_of_them_have_to_answer() -> None:
    [finding] = found("from_sender", replication=1, min_insync=1)
    assert "replication is 1" in finding.problem


def test_a_missing_topic_is_refused_with_what_to_do() -> None:
    missing = findings([EXPECTED["from_sender"], EXPECTED["to_sender"]], {})
    with pytest.raises(UserError) as raised:
        refuse(missing)
    assert str(raised.value) == "topic t-from_sender, t-to_sender: is missing; run `relay topics apply`"


@pytest.mark.parametrize("topic", ["audit", "delivery_attempts"])
def test_a_missing_topic_that_no_message_depends_on_is_informational(topic: str) -> None:
    [finding] = findings([EXPECTED[topic]], {})
    assert (finding.grade, "relay topics apply" in finding.problem) == (Grade.WARN, True)


def test_a_line_for_each_problem_and_not_for_each_topic() -> None:
    names = [f"t{number}" for number in range(9)]
    specs = [TopicSpec(name, 1) for name in names]
    compacted = GOOD._replace(spec=TopicSpec("-", 1, "compact", None), replication=1)
    all_found = findings(map(Expected, specs), dict.fromkeys(names, compacted))
    with pytest.raises(UserError) as raised:
        refuse(all_found)
    [line] = str(raised.value).splitlines()
    assert line.startswith("topic t0, t1, t2, t3, t4 and 4 more: cleanup.policy is compact: ")
    out = io.StringIO()
    configure("json", stream=out)
    log_findings(all_found)
    told = [json.loads(text) for text in out.getvalue().splitlines()]
    assert [(line["level"], line["topics"]) for line in told] == [("error", names), ("warning", names)]
    refuse([finding for finding in all_found if finding.grade is Grade.WARN])


@pytest.mark.parametrize(("allowed", "made_for"), [(1000, 2 * 2**20), (5 * 2**20, 5 * 2**20)])
async def test_topics_are_made_for_the_largest_payload_allowed(allowed: int, made_for: int) -> None:
    log = kafka_log(Settings(max_payload_bytes=ByteSize(allowed)))
    assert log._cluster.max_record_bytes == made_for + HEADROOM_BYTES
    await log.close()


# waits against retention


@given(st.floats(1.0, 30 * DAY_S), st.integers(1, 30 * DAY_S))
def test_a_wait_has_to_be_under_half_of_the_retention(wait_s: float, retention_s: int) -> None:
    state = GOOD._replace(spec=TopicSpec("t", 1, retention_s=retention_s))
    assert bool(wait_findings("t", state, {"ci": wait_s, "quick": 0.0})) == (wait_s >= retention_s / 2)


def test_waits_are_said_once_for_a_topic() -> None:
    [finding] = wait_findings("t", GOOD, {"a": 4 * DAY_S, "b": 5 * DAY_S, "c": 1})
    assert finding.problem.startswith("b (and 1 more) may wait 5 d (max_age + answer_deadline)")
    assert finding.grade is Grade.WARN
    assert wait_findings("t", None, {"a": 4 * DAY_S}) == []
    assert wait_findings("t", GOOD._replace(spec=TopicSpec("t", 1, retention_s=None)), {"a": 4 * DAY_S}) == []


@pytest.mark.parametrize("lane", ["shared", "dedicated"])
def test_the_file_and_what_is_in_force_need_the_same(lane: str) -> None:
    partitions = "" if lane == "shared" else ", partitions: 3"
    file = parse_receivers_file(
        f"receivers: {{ci: {{post_endpoint: 'https://ci.example/', lane: {lane}, answer_deadline: 2h,"
        f" retry: {{max_age: 3d}}{partitions}}}}}"
    )
    needs = needs_of_entry("ci", file.receivers["ci"])
    assert needs == needs_of(resolve("ci", file.receivers["ci"], {}))
    assert needs.lane == (SHARED if lane == "shared" else "ci")
    assert needs.wait_s == 3 * DAY_S + 7200


# groups


def backlog(number: int, first: int, end: int, committed: int | None) -> Backlog:
    return Backlog("g", TopicPartition("t", number), first, end, committed)


def test_groups_that_can_go_on_are_not_mentioned() -> None:
    assert backlog_findings([backlog(0, 0, 0, 0), backlog(1, 5, 9, 5), backlog(2, 5, 9, 9)]) == []


def test_a_missing_offset_and_one_that_is_gone_are_alarms_with_what_to_do() -> None:
    missing, gone = backlog_findings(
        [*(backlog(number, 0, 5, None) for number in range(7)), backlog(7, 5, 9, 4), backlog(8, 0, 9, 10)]
    )
    assert (missing.grade, gone.grade) == (Grade.ALARM, Grade.ALARM)
    assert "g has no committed offset (partition 0, 1, 2, 3, 4 and 2 more)" in missing.problem
    assert "relay topics apply" in missing.problem
    assert "(partition 7, 8): records that were deleted" in gone.problem
    assert "continues with the first record that exists" in gone.problem


# lanes as they come and change


class _Counting(MemoryLog):
    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.described: list[Sequence[str]] = []

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        self.described.append(topics)
        return await super().describe(topics)


@virtually
async def test_each_receiver_is_looked_at_once_and_again_when_it_changes() -> None:
    log, topics = _Counting(MemoryBroker()), Topics()
    await log.start()
    checks = LaneChecks(log, topics, Settings(), LoopClock())
    known = {"ci": receiver("ci", "/"), "shy": receiver("shy", "/", lane="shared")}
    await log.create([*topics.fixed(), *topics.lane_specs("ci", 1)], {})
    assert await checks.look(known) == []
    assert await checks.look(known) == []
    assert len(log.described) == 1
    known["ci"] = receiver("ci", "/", max_age=6.0 * DAY_S)
    assert {finding.topic for finding in await checks.look(known)} == {topics.to_receiver("ci"), topics.pending("ci")}
    assert log.described[1:] == [["pending_from_receiver_ci", "to_receiver_ci"]]


@virtually
async def test_a_warning_goes_with_its_cause() -> None:
    broker, topics = MemoryBroker(), Topics()
    log = MemoryLog(broker)
    await log.start()
    fixed = topics.fixed()
    short = [dataclasses.replace(fixed[0], retention_s=DAY_S), *fixed[1:], *topics.lane_specs("ci", 1)]
    await log.create(short, {})
    registry = Registry(topics, {})
    watch = TopicWatch(log, topics, Settings(), registry, LoopClock(), Retrier(LoopClock(), Observer()))
    await watch.check_fixed()
    assert watch.warning is not None
    assert fixed[0].name in watch.warning
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(10 * AGAIN_S)  # virtual
    assert watch.warning is not None
    broker.specs[fixed[0].name] = fixed[0]  # an operator has corrected it
    await asyncio.sleep(AGAIN_S + 1)
    assert watch.warning is None
    running.cancel()


@virtually
async def test_a_lane_without_its_topics_is_refused_but_not_at_the_first_look() -> None:
    log, topics = _Counting(MemoryBroker()), Topics()
    await log.start()
    checks = LaneChecks(log, topics, Settings(), LoopClock())
    missing = await checks.look({"ci": receiver("ci", "/")})
    assert [(finding.topic, finding.grade) for finding in missing] == [
        (topics.to_receiver("ci"), Grade.REFUSE),
        (topics.pending("ci"), Grade.REFUSE),
    ]
    assert len(log.described) > 1
