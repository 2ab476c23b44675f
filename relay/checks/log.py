"""Checks of the log: connection, rights and backlogs; a starting process checks the rights, too."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from relay.checks.context import Check, CheckContext
from relay.domain.coordinate import Coordinate
from relay.domain.diagnosis import Checked, error, fine, warning
from relay.domain.errors import UserError
from relay.domain.rights import API, Right, rights_of
from relay.domain.text import counted
from relay.domain.times import format_duration
from relay.domain.topics import Topics
from relay.log.checks import RISK, backlog_findings
from relay.log.port import Backlog, Log, TopicPartition, TopicState
from relay.telemetry.logging import get_logger

SPAN_S: Final = 2.0
"""Between the two readings of the backlogs: workers commit twice a second."""
BEHIND_S: Final = 60.0
_OLDEST_READ: Final = 100
_SHARED_WORK: Final = "moves, replays, rebuilding, the backlog watch, and applying the receivers file"

_log = get_logger("relay.process")


@Check(
    "log",
    per_receiver=True,
    limit_s=10.0,
    if_away="start Kafka, or correct RELAY_KAFKA_BOOTSTRAP_SERVERS and RELAY_KAFKA_SECURITY_PROTOCOL",
)
async def inspect_log(case: CheckContext) -> list[Checked]:
    """Whether the log answers, and its version."""
    log = await case.log()
    where = "" if case.data_dir is not None else f" at {case.settings.kafka_bootstrap_servers}"
    return [fine("log", f"{await log.about()}{where}")]


# --- rights -------------------------------------------------------------------------------------------------------


@Check("rights", limit_s=12.0, needs=("log",))
async def inspect_rights(case: CheckContext) -> list[Checked]:
    """The rights of this user on Kafka, compared with those that the roles need."""
    log, topics = await case.log(), case.topics
    lacking = await log.lacking(rights_of(topics, case.roles))
    return judge_rights(lacking, topics, case.roles)


def judge_rights(lacking: Sequence[Right], topics: Topics, roles: frozenset[str]) -> list[Checked]:
    found = []
    for right, line in zip(lacking, _lines(lacking, roles), strict=True):
        what = line.partition("; ")[0]
        severity = error if right.at_once(topics) is not None else warning
        found.append(severity("rights", what, _rights_command(roles)))
    return found or [fine("rights", "this user has all rights that the roles need")]


def _rights_command(roles: Collection[str]) -> str:
    of_one = "".join(f" --role {role}" for role in roles) if len(roles) == 1 else ""
    return f"relay rights{of_one}"


async def check_rights(log: Log, topics: Topics, roles: Collection[str]) -> bool:
    """Refuse to start if a role could not do its work. Raises UserError and LogUnavailable.

    Returns whether the process may also do the jobs that one process does for all: these need the rights of the API.
    """
    lacking = await log.lacking(rights_of(topics, roles))
    refuse([right for each in lacking if (right := each.at_once(topics))], roles)
    for line in _lines(lacking, roles):
        _log.warning("right_missing", problem=line)
    keeps = not any(each.at_once(topics) for each in await log.lacking(rights_of(topics, [API])))
    if not keeps:
        _log.info("shared_work_left", what=_SHARED_WORK, to="processes whose user has the rights of the API")
    return keeps


def refuse(lacking: Collection[Right], roles: Collection[str]) -> None:
    """Raises UserError with a line for each topic or group."""
    if lacking:
        raise UserError("\n".join(_lines(lacking, roles)))


def _lines(lacking: Collection[Right], roles: Collection[str]) -> list[str]:
    """The missing rights, a line each, with the command that prints how to grant them."""
    return [
        f"Kafka: this user may not {', '.join(each.operations)} on {each.kind} {each.probe}; "
        f"`{_rights_command(roles)}` prints the commands that allow it"
        for each in lacking
    ]


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


@Check("lag", per_receiver=True, limit_s=15.0, needs=("log",))
async def inspect_lag(case: CheckContext) -> list[Checked]:
    """For each consumer group, the number of unread records and the age of the oldest."""
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
    return judged or [fine("lag", f"{_are_unread(total)}, of {counted(len(found), 'topic')}{oldest}")]


def _are_unread(count: int) -> str:
    return f"{counted(count, 'record')} {'is' if count == 1 else 'are'} unread"


def _judged(unread: UnreadLag, *, embedded: bool) -> Checked | None:
    if not unread.after or unread.oldest_s is None or unread.oldest_s < BEHIND_S:
        return None
    waits = f"{_are_unread(unread.after)}, the oldest for {format_duration(round(unread.oldest_s))}"
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
        done = sum(each.position for each in now if each.partition in former) - sum(each.position for each in then)
        retention_s = states[topic].spec.retention_s if topic in states else None
        yield UnreadLag(group, topic, _size(then), _size(now), done, max(waited, default=None), retention_s)


def _size(backlogs: Iterable[Backlog]) -> int:
    return sum(each.unread for each in backlogs)


async def _oldest(log: Log, backlogs: Sequence[Backlog], now: float) -> dict[TopicPartition, float]:
    """How long the first unread record has waited, in seconds, for some of the partitions that have any."""
    unread = [each for each in backlogs if each.committed is not None and not each.is_lost and _size([each])]
    some_of_them = sorted(unread, key=lambda each: each.committed - each.end)[:_OLDEST_READ]  # type: ignore[operator]
    records = await log.read([(Coordinate(*each.partition, each.position), None) for each in some_of_them])
    return {
        each.partition: max(0.0, now - record.timestamp_ms / 1000)
        for each, record in zip(some_of_them, records, strict=True)
        if record is not None
    }
