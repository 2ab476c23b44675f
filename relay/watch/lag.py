"""Watches the lags: of each lane, of the history, and of consumer groups whose unread records may be deleted.

One process of the cluster watches all of them, also lanes without a process and groups without members: nothing else
would notice these.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from relay.checks.topics import log_findings
from relay.clock import Clock
from relay.domain.coordinate import Coordinate
from relay.domain.errors import HistoryUnavailable, Unavailable
from relay.domain.sliced import sliced
from relay.domain.topics import Topics
from relay.history.lag import Behind
from relay.history.port import HistoryReader
from relay.log.checks import RISK, backlog_findings
from relay.log.port import Backlog, Log, TopicPartition
from relay.state.lanes import LaneNow, read_lanes, with_oldest
from relay.state.port import State
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from relay.telemetry.series import MAX_RECEIVERS, OTHER

LOOK_S: Final = 15.0
BACKLOG_LOOK_S: Final = 300.0
COST: Final = 10.0
"""A look is repeated after this many times its own duration: looks never take more than a tenth of the time."""
LEASE_S: Final = 45.0
"""Seconds of a lease beyond the time until the next check."""
MANY: Final = "-"
"""Label value for a lane of many receivers."""
_AT_ONCE: Final = 100
_PROBLEMS: Final = ("missing_offset", "lost", "old", "open_transaction")

_log = get_logger("relay.backlog")


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """Lets one process of the cluster look at a time, under a lease. `owner`: unique per process."""

    state: State
    clock: Clock
    lease: str
    owner: str

    async def run(
        self, look: Callable[[], Awaitable[object]], clear: Callable[[], Awaitable[None]], every_s: float
    ) -> None:
        """Runs until cancelled. `clear`: called while another process looks, or while a dependency is unavailable."""

        def pause_s() -> float:
            return max(every_s, COST * (self.clock.monotonic() - begun))

        while True:
            begun = self.clock.monotonic()
            try:
                is_ours = await self._has_lease(every_s)
                if is_ours:
                    await look()
                    is_ours = pause_s() == every_s or await self._has_lease(pause_s())
                if not is_ours:
                    await clear()
            except Unavailable:
                await clear()
                await self._let_others_look()
            await self.clock.sleep(pause_s())

    async def _has_lease(self, pause_s: float) -> bool:
        return await self.state.lease(self.lease, self.owner, pause_s + LEASE_S)

    async def _let_others_look(self) -> None:
        """Another process may reach what this one cannot."""
        with suppress(Unavailable):
            await self.state.release(self.lease, self.owner)


@dataclass(eq=False)
class _LanesWatch:
    """A watch of all lanes. `lanes`: receivers with lanes of their own. `owner`: unique per process."""

    log: Log
    state: State
    topics: Topics
    lanes: Callable[[], Iterable[str]]
    clock: Clock
    metrics: Metrics
    owner: str


# --- of each lane -------------------------------------------------------------------------------------------------


class LagWatch(_LanesWatch):
    """Publishes the lag of each lane's group, the age of its first unfinished record, and whether a process serves
    it."""

    async def run(self) -> None:
        """Runs until cancelled. While log or state are unavailable, no value is published."""
        leased = LeasedTask(self.state, self.clock, "lag-watch", self.owner)
        await leased.run(self.publish, self.clear, LOOK_S)

    async def publish(self) -> None:
        """Publishes the result of a look. Raises Unavailable."""
        self._show(await self.look())

    async def clear(self) -> None:
        """Publishes nothing any more."""
        self._show(())

    async def look(self) -> Sequence[LaneNow]:
        """One check. Raises Unavailable."""
        lanes = await read_lanes(self.log, self.state, self.topics, self.topics.groups(self.lanes()))
        return await with_oldest(self.log, lanes, self.clock.time())

    def _show(self, lanes: Sequence[LaneNow]) -> None:
        metrics, named = self.metrics, worst(lanes)
        for family in (metrics.consumer_lag, metrics.oldest_message_age_seconds, metrics.lanes_unserved):
            family.clear()
        for lane in lanes:
            receiver = lane.receiver or MANY
            place = (receiver, lane.key.topic, str(lane.key.partition))
            if receiver not in named:
                receiver, *_ = place = (OTHER, OTHER, OTHER)
            metrics.consumer_lag.labels(lane.role, *place).add(lane.lag)
            metrics.oldest_message_age_seconds.labels(lane.role, *place).raise_to(lane.oldest_s or 0.0)
            metrics.lanes_unserved.labels(lane.role, receiver).add(not lane.served)


def worst(lanes: Iterable[LaneNow]) -> frozenset[str]:
    """The receivers to name: of those with lanes of their own, those without a serving process and those with the
    largest lag."""
    lags: dict[str, tuple[int, int]] = {}
    for lane in lanes:
        if lane.receiver is not None:
            unserved, lag = lags.get(lane.receiver, (0, 0))
            lags[lane.receiver] = unserved + (not lane.served and lane.lag > 0), lag + lane.lag
    ranked = sorted(lags, key=lambda name: (-lags[name][0], -lags[name][1], name))
    return frozenset((MANY, *ranked[:MAX_RECEIVERS]))


# --- of the history -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistoryWatch:
    """Publishes the lag of the history: in one process of those that know its store, whichever fills it."""

    history: HistoryReader
    log: Log
    state: State
    topics: Topics
    clock: Clock
    metrics: Metrics
    owner: str

    async def run(self) -> None:
        """Runs until cancelled. While the lag is unknown, no value is published."""
        behind = Behind(self.history, self.log, self.topics, self.clock)

        async def publish() -> None:
            behind_s = await behind.seconds()
            if behind_s is None:
                raise HistoryUnavailable("its lag is unknown")
            self.metrics.history_behind_seconds.labels().set(behind_s)

        async def clear() -> None:
            self.metrics.history_behind_seconds.clear()

        leased = LeasedTask(self.state, self.clock, "history-watch", self.owner)
        await leased.run(publish, clear, LOOK_S)


# --- of unread records that may be deleted ------------------------------------------------------------------------


class Old(NamedTuple):
    """A partition whose oldest unread record is old. `age_s`, `retention_s`: seconds."""

    backlog: Backlog
    age_s: float
    retention_s: int


@dataclass(eq=False)
class BacklogWatch(_LanesWatch):
    """Watches for unread records that retention will delete: they are lost, and nothing else would report that.

    `stable`: the partitions and positions at which transactions were open at the last look.
    """

    stable: set[tuple[TopicPartition, int | None]] = field(default_factory=set)

    async def run(self) -> None:
        """Runs until cancelled. While log or state are unavailable it waits; other parts report that."""
        leased = LeasedTask(self.state, self.clock, "backlog-watch", self.owner)
        await leased.run(self.look, self.clear, BACKLOG_LOOK_S)

    async def look(self) -> None:
        """One check. Raises Unavailable."""
        backlogs = await self.log.backlogs(self.topics.groups(self.lanes()))
        log_findings(backlog_findings(backlogs))
        old = await self._old(backlogs)
        _log_old(old)
        held_back = self._held_back(backlogs)
        _log_held_back(held_back)
        missing = sum(each.committed is None for each in backlogs)
        lost = sum(each.is_lost for each in backlogs)
        self._count(Counter(missing_offset=missing, lost=lost, old=len(old), open_transaction=len(held_back)))

    async def clear(self) -> None:
        """Publishes that there are none."""
        self._count(Counter())

    def _held_back(self, backlogs: Sequence[Backlog]) -> list[Backlog]:
        """Partitions where the same transaction is open as at the last check."""
        now = [each for each in backlogs if each.stable is not None]
        held_back = [each for each in now if (each.partition, each.stable) in self.stable]
        self.stable = {(each.partition, each.stable) for each in now}
        return held_back

    async def _old(self, backlogs: Sequence[Backlog]) -> list[Old]:
        unread = [b for b in backlogs if b.committed is not None and not b.is_lost and b.unread]
        states = await self.log.describe(sorted({each.partition.topic for each in unread}))
        found = []
        for some in sliced(unread, _AT_ONCE):
            # None if, say, a transaction's end marker is next: the next check finds another
            records = await self.log.read([(Coordinate(*b.partition, b.committed or 0), None) for b in some])
            now = self.clock.time()
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
            self.metrics.backlog_problem_partitions.labels(problem).set(partitions[problem])


def _log_held_back(backlogs: Sequence[Backlog]) -> None:
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


def _log_old(old: Sequence[Old]) -> None:
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
            problem="the log will delete them unread; repair or start their consumer, or raise retention.ms",
        )
