"""Watches the lag of consumer groups: unread records that retention deletes are lost, and nothing else would report
that.

One process of the cluster checks every few minutes, including groups without members, which cannot notice it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from relay.checks.topics import log_findings
from relay.clock import Clock
from relay.domain.batches import batches
from relay.domain.coordinate import Coordinate
from relay.domain.errors import Unavailable
from relay.domain.topics import Topics
from relay.log.checks import RISK, backlog_findings
from relay.log.port import Backlog, Log, TopicPartition
from relay.state.port import State
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

EVERY_S: Final = 300.0
LEASE: Final = "backlog-watch"
LEASE_S: Final = EVERY_S + 30.0
_AT_ONCE: Final = 100
_PROBLEMS: Final = ("missing_offset", "lost", "old", "open_transaction")
_log = get_logger("relay.backlog")


class Old(NamedTuple):
    """A partition whose oldest unread record is old. `age_s`, `retention_s`: seconds."""

    backlog: Backlog
    age_s: float
    retention_s: int


class BacklogWatch:
    """One per process; a lease lets one process at a time check. `lanes`: receivers with lanes of their own.

    `owner`: unique per process.
    """

    def __init__(
        self,
        log: Log,
        state: State,
        topics: Topics,
        lanes: Callable[[], Iterable[str]],
        clock: Clock,
        metrics: Metrics,
        *,
        owner: str,
    ) -> None:
        self._log = log
        self._state = state
        self._topics = topics
        self._lanes = lanes
        self._clock = clock
        self._metrics = metrics
        self._owner = owner
        self._stable: set[tuple[TopicPartition, int | None]] = set()
        """The partitions and positions at which transactions were open at the last check."""

    async def run(self) -> None:
        """Runs until cancelled. While log or state are unavailable it waits; other parts report that."""
        while True:
            try:
                if await self._state.lease(LEASE, self._owner, LEASE_S):
                    await self.look()
                else:
                    self._count(Counter())
            except Unavailable:
                self._count(Counter())
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        """One check. Raises Unavailable."""
        backlogs = await self._log.backlogs(self._topics.groups(self._lanes()))
        log_findings(backlog_findings(backlogs))
        old = await self._old(backlogs)
        _tell_old(old)
        held_back = self._held_back(backlogs)
        _tell_held_back(held_back)
        missing = sum(each.committed is None for each in backlogs)
        lost = sum(each.is_lost for each in backlogs)
        self._count(Counter(missing_offset=missing, lost=lost, old=len(old), open_transaction=len(held_back)))

    def _held_back(self, backlogs: Sequence[Backlog]) -> list[Backlog]:
        """Partitions where the same transaction is open as at the last check."""
        now = [each for each in backlogs if each.stable is not None]
        held_back = [each for each in now if (each.partition, each.stable) in self._stable]
        self._stable = {(each.partition, each.stable) for each in now}
        return held_back

    async def _old(self, backlogs: Sequence[Backlog]) -> list[Old]:
        unread = [b for b in backlogs if b.committed is not None and not b.is_lost and b.unread]
        states = await self._log.describe(sorted({each.partition.topic for each in unread}))
        found = []
        for some in batches(unread, _AT_ONCE):
            # None if, say, a transaction's end marker is next: the next check finds another
            records = await self._log.read([(Coordinate(*b.partition, b.committed or 0), None) for b in some])
            now = self._clock.time()
            for backlog, record in zip(some, records, strict=True):
                state = states.get(backlog.partition.topic)
                retention_s = state.spec.retention_s if state is not None else None
                if record is None or retention_s is None:
                    continue
                age_s = now - record.timestamp_ms / 1000
                if age_s > RISK * retention_s:
                    found.append(Old(backlog, age_s, retention_s))
        return found

    def _count(self, partitions: Counter[str]) -> None:
        for problem in _PROBLEMS:
            self._metrics.backlog_problem_partitions.labels(problem).set(partitions[problem])


def _tell_held_back(backlogs: Sequence[Backlog]) -> None:
    for each in backlogs:
        topic, partition = each.partition
        _log.warning(
            "transaction_open",
            topic=topic,
            partition=partition,
            offset=each.stable,
            records=each.end - each.readable,
            problem="a producer's transaction has been open since the last check: nothing behind it is read until it "
            "ends, at the latest after its transaction.timeout.ms",
        )


def _tell_old(old: Sequence[Old]) -> None:
    """One line per group: an idle reader is one problem, however many partitions it has."""
    of_group: dict[tuple[str, str], list[Old]] = defaultdict(list)
    for each in old:
        of_group[each.backlog.group, each.backlog.partition.topic].append(each)
    for (group, topic), these in of_group.items():
        oldest = max(these, key=lambda each: each.age_s)
        _log.error(
            "unread_records_old",
            group=group,
            topic=topic,
            partitions=sorted(each.backlog.partition.partition for each in these),
            age_s=round(oldest.age_s),
            retention_s=oldest.retention_s,
            problem="the log will delete them unread; fix or add their consumer, or raise retention.ms",
        )
