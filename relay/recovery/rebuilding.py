"""Rebuilds in the background the rows of finished messages that a loss of the state took.

Lanes do not wait for it: an unknown delivery counts as in doubt. It runs slowly, as it shares log and state with the
lanes, and reports its progress.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Final, TypeVar

from relay.clock import Clock
from relay.control.resolve import read_declared
from relay.domain.errors import RelayError, Unavailable
from relay.domain.topics import Topics
from relay.engine.supervision import Retrier
from relay.log.port import Log
from relay.recovery.rebuild import MemoryLostAgain, Read, Rebuild
from relay.state.lease import LEASE_S, keeping_lease
from relay.state.port import Gap, State
from relay.state.rows import TAGS
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

T = TypeVar("T")

LEASE: Final = "rebuilding"
CHECK_EVERY_S: Final = 2.0
RETRY_S: Final = 30.0
REPORT_EVERY_S: Final = 10.0
LONGEST_LIFE: Final = 1.5
"""Longest age of a finished row, in dedup windows: an older row would have expired by now."""
MARGIN_S: Final = 600.0
"""Largest difference between the clocks of brokers and state."""

_log = get_logger("relay.rebuild")


@dataclass(eq=False)
class Rebuilding:
    """One per process; a lease lets one process at a time do it. `owner`: unique per process. `window_s`: the dedup
    window. `rate`: records a second, at most."""

    log: Log
    state: State
    topics: Topics
    clock: Clock
    retrier: Retrier
    metrics: Metrics
    _: KW_ONLY
    owner: str
    window_s: float
    rate: int
    _reported_at: float = -inf
    _counted: Counter[str] = field(default_factory=Counter)  # records by topic

    async def run(self) -> None:
        """Runs until cancelled. While the state is unavailable or in recovery it waits; other parts report that."""
        while True:
            again_s = CHECK_EVERY_S
            try:
                gaps = await self.state.gaps(range(TAGS))
                mine = bool(gaps) and await self.state.lease(LEASE, self.owner, LEASE_S)
                # the gauges of all processes are added up
                self.metrics.state_tags_rebuilding.set(len(gaps) if mine else 0)
                if mine:
                    async with keeping_lease(self.state, self.clock, LEASE, self.owner):
                        await self._fill(gaps)
            except (Unavailable, MemoryLostAgain, _ClosedByOthersError):
                pass  # checked again
            except RelayError as error:
                _log.error("rebuild_failed", error=str(error), again_in_s=RETRY_S)
                again_s = RETRY_S
            except Exception:  # noqa: BLE001  a record that breaks a reader must not end the process again and again
                _log.error("rebuild_failed", exc_info=True, again_in_s=RETRY_S)
                again_s = RETRY_S
            await self.clock.sleep(again_s)

    async def _fill(self, gaps: Mapping[int, Gap]) -> None:
        begun, since_s = self.clock.monotonic(), self._since_s(gaps)
        _log.info("rebuild_begun", tags=len(gaps), back_to=_moment(since_s), records_per_second=self.rate)
        self._counted.clear()
        self._reported_at = begun
        declared = await read_declared(self.log, self.topics)
        pace = _BackgroundPace(self.clock, self.retrier, self.rate, self._still_open)
        rebuild = Rebuild(
            self.log,
            self.state,
            self.topics,
            lanes=declared.lanes,
            source=declared.sources.source,
            since_ms=since_s * 1000,
            tags=gaps.keys(),
            everything=any(not gap.kept_until for gap in gaps.values()),
            report=self._report,
            pace=pace,
        )
        reads = await rebuild.run()
        await self.retrier.until_done("end the rebuild", lambda: self.state.close_gaps(gaps))
        self.metrics.state_tags_rebuilding.set(0)
        self.metrics.rebuild_reached_seconds.set(0)
        rows = sum((read.rows for read in reads), Counter[str]())
        seconds = round(self.clock.monotonic() - begun, 3)
        _log.info("rebuilt", tags=len(gaps), records=sum(read.records for read in reads), rows=rows, seconds=seconds)
        pace.closed = True
        while await rebuild.read_tails():
            await self.clock.sleep(CHECK_EVERY_S)
            if await self.retrier.until_done("check for lost rows", self._still_open):
                break  # a new loss: all is read again

    async def _still_open(self) -> bool:
        return bool(await self.state.gaps(range(TAGS)))

    def _since_s(self, gaps: Mapping[int, Gap]) -> float:
        kept_until = min(gap.kept_until for gap in gaps.values())
        return max(self.clock.time() - LONGEST_LIFE * self.window_s, kept_until - MARGIN_S)

    def _report(self, read: Read) -> None:
        """Progress in a topic."""
        self.metrics.rebuild_records_total.labels(read.topic).inc(read.records - self._counted[read.topic])
        self._counted[read.topic] = read.records
        if isfinite(read.reached_ms):
            self.metrics.rebuild_reached_seconds.set(max(0.0, self.clock.time() - read.reached_ms / 1000))
        now = self.clock.monotonic()
        if now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            records, reached = self._counted.total(), _moment(read.reached_ms / 1000)
            _log.info("rebuild_progress", topic=read.topic, records=records, rows=dict(read.rows), reached=reached)


class _ClosedByOthersError(RelayError):
    """No gap is left, and this process can stop."""


class _BackgroundPace:
    """Retries while log or state are unavailable, pauses between records, and stops when no gap is left: `relay
    recover --dedup` was quicker."""

    def __init__(self, clock: Clock, retrier: Retrier, rate: int, still_open: Callable[[], Awaitable[bool]]) -> None:
        self._clock = clock
        self._retrier = retrier
        self._rate = rate
        self._still_open = still_open
        self._looked_at = clock.monotonic()
        self.closed = False
        """Its own rebuild has closed the gaps."""

    async def until_done(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self._retrier.until_done(what, call)

    async def after(self, records: int) -> None:
        await self._clock.sleep(records / self._rate)
        now = self._clock.monotonic()
        if not self.closed and now - self._looked_at >= CHECK_EVERY_S:
            self._looked_at = now
            if not await self._still_open():
                raise _ClosedByOthersError


def _moment(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if 0 < seconds < inf else None
