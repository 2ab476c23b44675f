"""Checks of the log: connection, rights, topics, backlogs and clock."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from relay.checks.context import CheckContext
from relay.checks.rights import lines
from relay.checks.topics import expected_lanes, expected_topics, needs_of, too_long_waits
from relay.clock.shared import OFF_S
from relay.config.durations import format_duration
from relay.domain.coordinate import Coordinate
from relay.domain.diagnosis import Checked, error, fine, warning
from relay.domain.rights import Right, rights_of
from relay.domain.topics import Topics
from relay.log.checks import RISK, Finding, Grade, backlog_findings, findings, in_lines
from relay.log.port import Backlog, Log, TopicPartition, TopicState

SPAN_S: Final = 2.0
"""Between the two readings of the backlogs: workers commit twice a second."""
BEHIND_S: Final = 60.0
_OLDEST_READ: Final = 100
_SETTING: Final = re.compile(r"\bset ([a-z]+(?:\.[a-z]+)+=[^\s;,]+)")
_COMMAND: Final = re.compile(r"`(relay [^`]+)`")
_SHOWN: Final = 5


async def look_at_log(case: CheckContext) -> list[Checked]:
    log = await case.log()
    where = "" if case.data_dir is not None else f" at {case.settings.kafka_bootstrap_servers}"
    return [fine("log", f"{await log.about()}{where}")]


# --- rights -------------------------------------------------------------------------------------------------------


async def look_at_rights(case: CheckContext) -> list[Checked]:
    log, topics = await case.log(), case.topics
    lacking = await log.lacking(rights_of(topics, case.roles))
    return judge_rights(lacking, topics, case.roles)


def judge_rights(lacking: Sequence[Right], topics: Topics, roles: frozenset[str]) -> list[Checked]:
    found = []
    for right, line in zip(lacking, lines(lacking, roles), strict=True):
        what = line.partition("; ")[0]
        severity = error if right.at_once(topics) is not None else warning
        found.append(severity("rights", what, _rights_command(roles)))
    return found or [fine("rights", "this user has all rights that the roles need")]


def _rights_command(roles: frozenset[str]) -> str:
    of_one = "".join(f" --role {role}" for role in roles) if len(roles) == 1 else ""
    return f"relay rights{of_one}"


# --- topics -------------------------------------------------------------------------------------------------------


async def look_at_topics(case: CheckContext) -> list[Checked]:
    log, known = await case.log(), await case.known()
    topics, settings = case.topics, case.settings
    needs = {name: needs_of(receiver) for name, receiver in known.receivers.items()}
    expected = expected_lanes(topics, settings, needs.values())
    if case.receiver is None:
        expected = [*expected_topics(topics, settings), *expected]
    there = await log.describe([each.spec.name for each in expected])
    found = [*findings(expected, there), *too_long_waits(topics, needs, there)]
    return judge_topics(found, len(expected))


def judge_topics(found: Sequence[Finding], count: int) -> list[Checked]:
    grades = {finding.problem: finding.grade for finding in found}
    judged = []
    for problem, names in in_lines(found).items():
        severity = warning if grades[problem] is Grade.WARN else error
        judged.append(severity("topics", problem, command_for(problem, sorted(names)), some(sorted(names))))
    return judged or [fine("topics", f"{count} topics have the required settings")]


def command_for(problem: str, topics: Sequence[str]) -> str | None:
    """The command that fixes a finding of the topics, if there is one."""
    if (command := _COMMAND.search(problem)) is not None:
        return command[1]
    if (setting := _SETTING.search(problem)) is None:
        return None
    more = f" (likewise for {len(topics) - 1} more)" if len(topics) > 1 else ""
    words = f"--alter --entity-type topics --entity-name {shlex.quote(topics[0])} --add-config {setting[1]}"
    return f"kafka-configs.sh --bootstrap-server ... {words}{more}"


def some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


# --- lag ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnreadLag:
    """A group's lag in a topic at two readings: unread records, and the records that it had committed by the second.
    `oldest_s`: how long the oldest had waited; None: unknown. `retention_s`: of the topic."""

    group: str
    topic: str
    before: int
    after: int
    committed: int
    oldest_s: float | None = None
    retention_s: int | None = None


async def look_at_lag(case: CheckContext) -> list[Checked]:
    log, known = await case.log(), await case.known()
    groups = {lane.topic: case.topics.group(lane.role) for lane in case.lanes(known)}
    first = await log.backlogs(groups)
    await case.clock.sleep(SPAN_S)
    second = await log.backlogs(groups)
    ages, states = await _oldest(log, second, case.clock.time()), await log.describe(sorted(groups))
    return [
        *(error("lag", each.problem, "relay topics describe", each.topic) for each in backlog_findings(second)),
        *judge_lag(list(_unread(first, second, ages, states)), embedded=case.embedded),
    ]


def judge_lag(found: Sequence[UnreadLag], *, embedded: bool = False) -> list[Checked]:
    """A line for each lag, or one that says that there is none."""
    judged = [checked for each in found if (checked := _judged(each, embedded=embedded)) is not None]
    total = sum(each.after for each in found)
    oldest_s = max((each.oldest_s or 0.0 for each in found), default=0.0)
    oldest = f"; the oldest has waited for {format_duration(round(oldest_s))}" if total and oldest_s >= 1 else ""
    return judged or [fine("lag", f"{total} records are unread, of {len(found)} topics{oldest}")]


def _judged(unread: UnreadLag, *, embedded: bool) -> Checked | None:
    if not unread.after or unread.oldest_s is None or unread.oldest_s < BEHIND_S:
        return None
    waits = f"{unread.after} records are unread, the oldest for {format_duration(round(unread.oldest_s))}"
    role = unread.group.rpartition("relay.")[2]
    todo = "see `lanes`, and find slow receivers: relay receivers health NAME"
    todo = todo if embedded else f"{todo}; more processes: relay worker {role}"
    if unread.retention_s is not None and unread.oldest_s > RISK * unread.retention_s:
        kept = format_duration(unread.retention_s)
        return error("lag", f"{waits}: after {kept} it is deleted unread", todo, unread.topic)
    if not unread.committed:
        grown = f" and {unread.after - unread.before} arrived" if unread.after > unread.before else ""
        return warning("lag", f"{waits}: within {SPAN_S:g} s none was finished{grown}", todo, unread.topic)
    if unread.after > unread.before:
        grows = f"it grows by {(unread.after - unread.before) / SPAN_S:.0f} a second"
        return warning("lag", f"{waits}: {grows}", todo, unread.topic)
    return None


def _unread(
    first: Sequence[Backlog],
    second: Sequence[Backlog],
    ages: Mapping[TopicPartition, float],
    states: Mapping[str, TopicState],
) -> Iterable[UnreadLag]:
    former = {each.partition: each for each in first}
    for (group, topic), these in groupby(second, lambda each: (each.group, each.partition.topic)):
        now = list(these)
        then = [former[each.partition] for each in now if each.partition in former]
        waited = [ages[each.partition] for each in now if each.partition in ages]
        done = sum(_next(each) for each in now if each.partition in former) - sum(map(_next, then))
        retention_s = states[topic].spec.retention_s if topic in states else None
        yield UnreadLag(group, topic, _size(then), _size(now), done, max(waited, default=None), retention_s)


def _next(backlog: Backlog) -> int:
    return max(backlog.first, backlog.committed or 0)


def _size(backlogs: Iterable[Backlog]) -> int:
    return sum(each.unread for each in backlogs)


async def _oldest(log: Log, backlogs: Sequence[Backlog], now: float) -> dict[TopicPartition, float]:
    """How long the first unread record has waited, in seconds, for some of the partitions that have any."""
    unread = [each for each in backlogs if each.committed is not None and not each.is_lost and _size([each])]
    some_of_them = sorted(unread, key=lambda each: each.committed - each.end)[:_OLDEST_READ]  # type: ignore[operator]
    records = await log.read([(Coordinate(*each.partition, _next(each)), None) for each in some_of_them])
    return {
        each.partition: max(0.0, now - record.timestamp_ms / 1000)
        for each, record in zip(some_of_them, records, strict=True)
        if record is not None
    }


# --- its clock ----------------------------------------------------------------------------------------------------


async def look_at_clock(case: CheckContext) -> list[Checked]:
    """Kafka does not report its time; but its newest record was appended before now."""
    log, topic = await case.log(), case.topics.from_sender
    there = await log.describe([topic])
    if topic not in there or there[topic].sender_timed:
        return []
    partitions = [TopicPartition(topic, number) for number in range(there[topic].spec.partitions)]
    last = [Coordinate(*at, end - 1) for at, end in (await log.ends(partitions)).items() if end]
    records = await log.read([(at, None) for at in last])
    newest_ms = max((record.timestamp_ms for record in records if record is not None), default=0)
    return judge_newest(newest_ms / 1000 - case.clock.wall())


def judge_newest(ahead_s: float) -> list[Checked]:
    """`ahead_s`: how far our clock is ahead of the newest record's time; below 0 it proves nothing."""
    if ahead_s <= OFF_S:
        return []
    what = f"this machine's clock is {ahead_s:.0f} s or more behind that of the log, whose newest record is from then"
    return [error("clock", what, "set the clocks of all machines by NTP: timedatectl set-ntp true")]
