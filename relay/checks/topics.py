"""Checks topics: refuses those that lose messages before they are used, and reports other problems and unused ones."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from relay.checks.context import Check, CheckContext
from relay.clock import Clock
from relay.config.receiver_entry import ReceiverEntry
from relay.config.settings import Settings
from relay.control.records import Topic, read_topic
from relay.domain.diagnosis import Checked, error, fine, warning
from relay.domain.errors import UserError
from relay.domain.receiver import Receiver
from relay.domain.topics import SHARED, Topics, lane_of
from relay.log.checks import Expected, Finding, Grade, expected_fixed, expected_lane, findings, in_lines, wait_findings
from relay.log.port import Log, TopicState
from relay.telemetry.logging import get_logger

WAITS_LOOKED_AT: Final = 20
"""The receivers in the shared lane to check: those with the longest waits."""
_SHOWN: Final = 5
_LOOKS: Final = 5
_LOOK_S: Final = 1.0
_SETTING: Final = re.compile(r"\bset ([a-z]+(?:\.[a-z]+)+=[^\s;,]+)")
_COMMAND: Final = re.compile(r"`(relay [^`]+)`")

_log = get_logger("relay.checks")


@dataclass(frozen=True, slots=True)
class LaneNeeds:
    """A receiver's needs of the log. `wait_s`: how long one of its messages may be in progress."""

    lane: str
    partitions: int
    wait_s: float


def needs_of(receiver: Receiver) -> LaneNeeds:
    wait_s = receiver.post.retry.max_age + receiver.answer_deadline
    return LaneNeeds(lane_of(receiver), receiver.partitions, wait_s)


def needs_of_entry(name: str, entry: ReceiverEntry) -> LaneNeeds:
    """The same, for an entry of the receivers file."""
    wait_s = entry.retry_policy().max_age + entry.answer_deadline
    return LaneNeeds(SHARED if entry.lane == SHARED else name, entry.partitions, wait_s)


def expected_topics(topics: Topics, settings: Settings) -> list[Expected]:
    """The required settings of the fixed topics."""
    return expected_fixed(topics, payload_bytes=settings.max_payload_bytes, answer_bytes=settings.answer_body_cap)


def expected_lanes(topics: Topics, settings: Settings, needs: Iterable[LaneNeeds]) -> list[Expected]:
    """The required settings of the topics of receivers' own lanes."""
    own = {each.lane: each.partitions for each in needs if each.lane != SHARED}
    return [
        expected
        for lane, partitions in own.items()
        for expected in expected_lane(topics, lane, partitions, payload_bytes=settings.max_payload_bytes)
    ]


def too_long_waits(topics: Topics, needs: Mapping[str, LaneNeeds], there: Mapping[str, TopicState]) -> list[Finding]:
    """Receivers whose messages may wait longer than the retention of their topics allows."""
    waits: dict[str, dict[str, float]] = defaultdict(dict)
    for name, each in needs.items():
        for topic in topics.lane_groups(each.lane):
            waits[topic][name] = each.wait_s
    return [
        finding for topic, of_topic in waits.items() for finding in wait_findings(topic, there.get(topic), of_topic)
    ]


class LaneChecks:
    """Checks the receivers' needs of the log: each once, and again after a change."""

    def __init__(self, log: Log, topics: Topics, settings: Settings, clock: Clock) -> None:
        self._log = log
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._seen: dict[str, LaneNeeds] = {}

    async def look(
        self, receivers: Mapping[str, Receiver], shared_waits_s: Mapping[str, float] | None = None
    ) -> list[Finding]:
        """Problems of those that are new or changed. Raises LogUnavailable; then they still count as new.

        `shared_waits_s`: how long a message may be in progress, for the receivers in the shared lane with the longest
        waits: only one of them is reported, so the list need not be complete.
        """
        needs = {name: LaneNeeds(SHARED, 1, wait_s) for name, wait_s in (shared_waits_s or {}).items()}
        needs |= {name: needs_of(receiver) for name, receiver in receivers.items()}
        new = {name: each for name, each in needs.items() if self._seen.get(name) != each}
        self._seen = {name: each for name, each in self._seen.items() if name in needs}
        if not new:
            return []
        expected = expected_lanes(self._topics, self._settings, new.values())
        names = {topic for each in new.values() for topic in self._topics.lane_groups(each.lane)}
        there = await self._described(sorted(names))
        self._seen = needs
        return [*findings(expected, there), *too_long_waits(self._topics, new, there)]

    def forget(self) -> None:
        """Check all of them again."""
        self._seen = {}

    async def _described(self, names: Sequence[str]) -> Mapping[str, TopicState]:
        """A topic that was just created may be unknown to some brokers for a moment."""
        for _ in range(_LOOKS):
            there = await self._log.describe(names)
            if len(there) == len(names):
                break
            await self._clock.sleep(_LOOK_S)
        return there


def refuse(found: Iterable[Finding]) -> None:
    """Raises UserError, with a line for each problem, if messages would be lost."""
    refused = [finding for finding in found if finding.grade is Grade.REFUSE]
    if refused:
        lines = in_lines(refused).items()
        raise UserError("\n".join(f"topic {_some(sorted(names))}: {problem}" for problem, names in lines))


def log_findings(found: Iterable[Finding]) -> None:
    """Log a line for each problem."""
    by_grade: dict[Grade, list[Finding]] = defaultdict(list)
    for finding in found:
        by_grade[finding.grade].append(finding)
    for grade, these in by_grade.items():
        say = _log.warning if grade is Grade.WARN else _log.error
        for problem, names in in_lines(these).items():
            say("topic_problem", problem=problem, topics=sorted(names))


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


# --- for the doctor ------------------------------------------------------------------------------------------------


@Check("topics", per_receiver=True, limit_s=15.0, needs=("log",))
async def inspect_topics(case: CheckContext) -> list[Checked]:
    """Each topic: whether it exists, and its settings."""
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
        judged.append(severity("topics", problem, command_for(problem, sorted(names)), _some(sorted(names))))
    return judged or [fine("topics", f"{count:,} topics have the required settings")]


def command_for(problem: str, topics: Sequence[str]) -> str | None:
    """The command that fixes a finding of the topics, if there is one."""
    if (command := _COMMAND.search(problem)) is not None:
        return command[1]
    if (setting := _SETTING.search(problem)) is None:
        return None
    more = f" (likewise for {len(topics) - 1} more)" if len(topics) > 1 else ""
    words = f"--alter --entity-type topics --entity-name {shlex.quote(topics[0])} --add-config {setting[1]}"
    return f"kafka-configs.sh --bootstrap-server ... {words}{more}"


# --- unused topics --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnusedTopic:
    """A topic of the relay that no receiver needs any more. `note`: the former owner and the remaining records, for
    operators."""

    state: TopicState
    note: str

    @property
    def topic(self) -> str:
        return self.state.spec.name


async def unused_topics(log: Log, topics: Topics) -> list[UnusedTopic]:
    """Topics of receivers that were removed, or moved to the shared lane. Sorted by receiver. Raises LogUnavailable."""
    if not await log.describe([topics.receiver_config]):
        return []
    there = await read_topic(log, topics)
    names = there.routes.all().keys() | there.routes.removed.keys()
    return [found for name in sorted(names) for found in await _of_receiver(log, topics, there, name)]


async def _of_receiver(log: Log, topics: Topics, there: Topic, name: str) -> list[UnusedTopic]:
    if there.uses_own_topics(name):
        return []
    groups = topics.lane_groups(name)
    states, backlogs = await log.describe(list(groups)), await log.backlogs(groups)
    who = f"left by {name}, which " + ("moved to the shared lane" if name in there.declared else "was removed")
    served = there.routes.route(name).left or name in there.routes.removed
    found = []
    for topic, state in states.items():
        of_topic = [each for each in backlogs if each.partition.topic == topic]
        unread = sum(each.end - each.position for each in of_topic)
        rest = (
            "it is served until all its records are finished, parked ones included"
            if served or unread
            else "it may be deleted"
        )
        found.append(UnusedTopic(state, f"{who}; unread: {unread}; {rest}"))
    return found
