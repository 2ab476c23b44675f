"""Checks of topics and groups: findings with their fixes, for start-up checks and for operators. Pure.

REFUSE: with this configuration messages are lost or blocked for ever, so the relay does not start, which loses nothing.
WARN: messages may be lost or reordered together with another fault: a broker failure, a long outage. ALARM: it has
happened already: the rest continues, and an operator has to act.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Final

from relay.domain.topics import DAY_S, Topics, TopicSpec
from relay.log.port import Backlog, TopicState

HEADROOM_BYTES: Final = 65_536
"""Maximum bytes of a record beyond its payload: hop metadata, and a dead letter's detail of 8 KiB."""

SAFE_REPLICATION: Final = 3
RISK: Final = 0.5
"""An alarm is raised when an unread record is older than this part of the retention."""


class Grade(Enum):
    REFUSE = "refuse"
    ALARM = "alarm"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """`problem`: of `topic`, with its fix, in a line."""

    topic: str
    problem: str
    grade: Grade


@dataclass(frozen=True, slots=True)
class Expected:
    """The required configuration of a topic. `record_bytes`: the largest record that it has to accept.

    `all_read`: the partitions of `spec` are the only ones that are read and written. `must_fit`: a record that is too
    large would be retried for ever, as it can go nowhere else. `informational`: no message depends on it, so operators
    choose its retention.
    """

    spec: TopicSpec
    record_bytes: int = 0
    all_read: bool = False
    must_fit: bool = False
    informational: bool = False


def expected_fixed(topics: Topics, *, payload_bytes: int, answer_bytes: int) -> list[Expected]:
    """The topics that do not depend on receivers, given the limits of payloads and answers."""
    largest, answer = payload_bytes + HEADROOM_BYTES, answer_bytes + HEADROOM_BYTES
    sizes = {topics.to_sender: answer, topics.receiver_config: 0, **dict.fromkeys(topics.informational, 0)}
    return [
        Expected(
            spec,
            record_bytes=sizes.get(spec.name, largest),
            all_read=spec.name in topics.read_partitions(),
            must_fit=spec.name in (topics.parked_messages, topics.failed_messages),
            informational=spec.name in topics.informational,
        )
        for spec in topics.fixed()
    ]


def expected_lane(topics: Topics, lane: str, partitions: int, *, payload_bytes: int) -> list[Expected]:
    """The topics of a receiver's own lane."""
    return [Expected(spec, payload_bytes + HEADROOM_BYTES) for spec in topics.lane_specs(lane, partitions)]


def findings(expected: Iterable[Expected], there: Mapping[str, TopicState]) -> list[Finding]:
    """The problems of all topics."""
    found: list[Finding] = []
    for each in expected:
        name = each.spec.name
        if name in there:
            found += (Finding(name, problem, grade) for problem, grade in _problems(each, there[name]))
        else:
            grade = Grade.WARN if each.informational else Grade.REFUSE
            found.append(Finding(name, "is missing; run `relay topics apply`", grade))
    return found


def _problems(expected: Expected, state: TopicState) -> Iterator[tuple[str, Grade]]:
    yield from _of_cleanup(expected, state)
    yield from _of_partitions(expected, state)
    if state.max_message_bytes < expected.record_bytes:
        grade = Grade.REFUSE if expected.must_fit else Grade.WARN
        fate = "blocks its partition for ever" if expected.must_fit else "becomes a dead letter, too_large"
        yield (
            f"max.message.bytes is {state.max_message_bytes}, so the largest message allowed {fate}; "
            f"set max.message.bytes={expected.record_bytes} or more, or lower max_payload_bytes",
            grade,
        )
    yield from _of_replication(state)
    if state.sender_timed:
        yield (
            "message.timestamp.type is CreateTime: senders' clocks decide when a message is too old, and when "
            "retention deletes it; set message.timestamp.type=LogAppendTime",
            Grade.WARN,
        )


def _of_cleanup(expected: Expected, state: TopicState) -> Iterator[tuple[str, Grade]]:
    spec, there = expected.spec, state.spec
    grade = Grade.REFUSE
    if state.mixed_cleanup or there.cleanup != spec.cleanup:
        shown = "compact,delete" if state.mixed_cleanup else there.cleanup
        fate = "compacted away unread" if spec.cleanup == "delete" else "deleted by age while they are needed"
        yield f"cleanup.policy is {shown}: its records are {fate}; set cleanup.policy={spec.cleanup}", grade
    if spec.cleanup == "compact" or expected.informational:
        return
    if state.retention_bytes is not None:
        yield (
            f"retention.bytes is {state.retention_bytes}: a backlog beyond that is deleted unread; "
            f"set retention.bytes=-1",
            grade,
        )
    if spec.retention_s is not None and there.retention_s is not None and there.retention_s < spec.retention_s:
        yield (
            f"retention is {_days(there.retention_s)}, expected {_days(spec.retention_s)} or more: "
            f"an outage of that length loses messages; set retention.ms={spec.retention_s * 1000}",
            Grade.WARN,
        )


def _of_partitions(expected: Expected, state: TopicState) -> Iterator[tuple[str, Grade]]:
    wanted, there = expected.spec.partitions, state.spec.partitions
    if there == wanted:
        return
    if expected.all_read and there < wanted:
        yield (
            f"it has {there} partitions and must have {wanted}; "
            f"stop the relay when the topic is empty, and create it again with {wanted}",
            Grade.REFUSE,
        )
    elif expected.all_read:
        yield (
            f"it has {there} partitions, and only the first {wanted} are written and read: that is fine, unless a "
            f"process of an earlier release has written to the others",
            Grade.WARN,
        )
    else:
        yield (
            f"it has {there} partitions, expected {wanted}: that is fine if it always had; "
            f"after a change, messages in progress may arrive out of order",
            Grade.WARN,
        )


def _of_replication(state: TopicState) -> Iterator[tuple[str, Grade]]:
    if state.refusing:
        yield (
            f"{state.refusing} of {state.spec.partitions} partitions refuse records: fewer replicas are in sync than "
            f"min.insync.replicas ({state.min_insync}); start the missing brokers",
            Grade.ALARM,
        )
    if state.replication is not None and state.replication < SAFE_REPLICATION:
        yield (
            f"replication is {state.replication}: losing a broker may lose messages; "
            f"{SAFE_REPLICATION} copies are safe (RELAY_KAFKA_REPLICATION_FACTOR sets it for new topics)",
            Grade.WARN,
        )
    elif state.min_insync is not None and state.min_insync < SAFE_REPLICATION - 1:  # fewer copies allow no more
        yield (
            f"min.insync.replicas is {state.min_insync}: an acknowledged record may be on one broker only; "
            f"set min.insync.replicas={SAFE_REPLICATION - 1}",
            Grade.WARN,
        )


def wait_findings(topic: str, state: TopicState | None, waits_s: Mapping[str, float]) -> list[Finding]:
    """Whether the retention of `topic` leaves room for the longest wait in it, and for an outage as long.

    `waits_s`: by name, how long a record may be worked on: `max_age` of its retries, and the `answer_deadline`.
    """
    retention_s = state.spec.retention_s if state is not None else None
    if retention_s is None:
        return []
    over = {name: seconds for name, seconds in waits_s.items() if 2 * seconds >= retention_s}
    if not over:
        return []
    longest = max(over, key=lambda name: over[name])
    others = f" (and {len(over) - 1} more)" if len(over) > 1 else ""
    problem = (
        f"{longest}{others} may wait {_days(over[longest])} (max_age + answer_deadline), which is not under half "
        f"of the retention, {_days(retention_s)}: an outage may lose messages; lower max_age, or raise retention.ms"
    )
    return [Finding(topic, problem, Grade.WARN)]


def backlog_findings(backlogs: Iterable[Backlog]) -> list[Finding]:
    """Groups that cannot continue from their committed offsets."""
    found: list[Finding] = []
    for (group, topic), these in groupby(backlogs, lambda each: (each.group, each.partition.topic)):
        of_group = list(these)
        without = [each for each in of_group if each.committed is None]
        gone = [each for each in of_group if each.is_lost]
        for problem, of_problem in ((_MISSING, without), (_LOST, gone)):
            if of_problem:
                found.append(Finding(topic, problem.format(group, _partitions(of_problem)), Grade.ALARM))
    return found


_MISSING: Final = (
    "{} has no committed offset ({}): it starts at the oldest record once it runs, or after `relay topics apply`"
)
_LOST: Final = (
    "{} has committed an offset that no longer exists ({}): records that were deleted unread are lost; it continues "
    "with the first record that exists"
)


def _partitions(backlogs: Sequence[Backlog]) -> str:
    numbers = sorted(each.partition.partition for each in backlogs)
    shown = ", ".join(map(str, numbers[:5]))
    return f"partition {shown}" + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")


def _days(seconds: float) -> str:
    return f"{seconds / DAY_S:.3g} d"


def in_lines(found: Iterable[Finding]) -> dict[str, list[str]]:
    """Problem -> the topics that have it, which share one line."""
    lines: dict[str, list[str]] = {}
    for finding in found:
        lines.setdefault(finding.problem, []).append(finding.topic)
    return lines
