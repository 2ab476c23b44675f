"""Retries calls to Kafka and Redis, and lanes, that fail. Nothing stops, or ends, without a report. (A failure that
concerns one lane restarts that lane: see the runner. Services: `relay/run/services.py`.)"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Final, Protocol, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from relay.clock import Clock
from relay.domain.errors import ConsumerBroken, OffsetMissing, PartitionLost, StateRecovering, Unavailable
from relay.engine.observer import Observer
from relay.log.port import Assignment, Consumer, TopicPartition
from relay.state.port import Lane, State

T = TypeVar("T")
L = TypeVar("L")

Broken = ConsumerBroken | OffsetMissing | PartitionLost
"""Failures that end a member or a lane, and not the process: a new one may succeed."""

FIRST_REPEAT_S: Final = 0.05
LONGEST_REPEAT_S: Final = 2.0


class Retrier:
    """Repeats calls that raised Unavailable until they succeed; every port call allows that."""

    def __init__(self, clock: Clock, observer: Observer) -> None:
        self._clock = clock
        self._observer = observer

    async def until_done(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`; other errors pass through. `what` names the call in reports."""
        try:
            return await call()  # nearly always; tenacity would cost several times as much as a batch of records
        except Unavailable as error:
            return await self.again(what, error, call)

    async def again(self, what: str, failed: Unavailable, call: Callable[[], Awaitable[T]]) -> T:
        """As `until_done`, after `call` has failed once."""
        self.report(what, failed)
        await self._clock.sleep(FIRST_REPEAT_S)

        async def attempt() -> T:  # tenacity awaits only functions that are declared `async`
            return await call()

        return await self._repeating(what)(attempt)

    def report(self, what: str, error: Unavailable) -> None:
        """Report the call that waits."""
        if isinstance(error, StateRecovering):
            self._observer.state_recovering(error.tags)
        self._observer.waiting(what, error)

    def _repeating(self, what: str) -> AsyncRetrying:
        def report(state: RetryCallState) -> None:
            error = state.outcome and state.outcome.exception()
            if isinstance(error, Unavailable):
                self.report(what, error)

        return AsyncRetrying(
            retry=retry_if_exception_type(Unavailable),
            wait=wait_exponential(multiplier=2 * FIRST_REPEAT_S, max=LONGEST_REPEAT_S),
            before_sleep=report,
            sleep=self._clock.sleep,
        )

    async def pause(self, what: str, error: Unavailable) -> None:
        """Report, and wait a little: for callers with their own loop."""
        self.report(what, error)
        await self._clock.sleep(LONGEST_REPEAT_S / 2)


CANCEL_AGAIN_S: Final = 0.1


class CallCancelled(Exception):
    """The awaited call was cancelled, but this task was not."""


async def raising_stray_cancels(work: Awaitable[T]) -> T:
    """The result of `work`. Raises CallCancelled if a library raises a CancelledError although this task was not
    cancelled. Otherwise the task would end like a cancelled one, and its end would not be reported."""
    try:
        return await work
    except asyncio.CancelledError as error:
        if (stray := stray_cancel(error)) is not None:
            raise stray from error
        raise


def stray_cancel(error: asyncio.CancelledError) -> CallCancelled | None:
    """The error that `raising_stray_cancels` raises; None if this task itself was cancelled."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        return None
    stray = CallCancelled("a call was cancelled, although its task was not")
    stray.__cause__ = error
    return stray


async def end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel `tasks` until each has ended; their exceptions stay in them.

    Once is not always enough: up to Python 3.11, `asyncio.wait_for` loses a cancellation that comes together with its
    result, and client libraries use it around each network call.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)


FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
LONG_LIFE_S: Final = 300.0
"""After running for so long, the next pause is the first one again."""


async def unless_stopped(work: Awaitable[object], stop: asyncio.Event) -> bool:
    """Run `work`; False if `stop` was set first."""
    doing = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await doing
            return True
        return False
    finally:
        for each in (doing, stopping):
            each.cancel()
            with suppress(asyncio.CancelledError, Unavailable):
                await each


def next_pause(pause_s: float, lived_s: float) -> float:
    """Seconds until a lane or service that ran for `lived_s` opens again. `pause_s`: the previous pause; 0 for none."""
    if pause_s == 0 or lived_s >= LONG_LIFE_S:
        return FIRST_PAUSE_S
    return min(2 * pause_s, LONGEST_PAUSE_S)


class Restarts:
    """Lanes that are being restarted, and when each was last. Times are seconds on any monotonic clock."""

    def __init__(self) -> None:
        self._restarting: dict[TopicPartition, object] = {}
        """The lane that each restart is for: it does not affect a later lane of the partition."""
        self._last: dict[TopicPartition, tuple[float, float]] = {}
        """When a lane was restarted, and after which pause."""

    def begin(self, lanes: Mapping[TopicPartition, L], now: float) -> tuple[dict[TopicPartition, L], float]:
        """Those that are not being restarted already, and the pause before they restart."""
        new = object()
        those = {p: lane for p, lane in lanes.items() if self._restarting.get(p, new) is not lane}
        before = [self._last.get(each, (now, 0.0)) for each in those]
        pause_s = max((next_pause(pause_s, now - began) for began, pause_s in before), default=0.0)
        self._last |= dict.fromkeys(those, (now + pause_s, pause_s))
        self._restarting.update(those)
        return those, pause_s

    def end(self, lanes: Mapping[TopicPartition, object]) -> None:
        for partition, lane in lanes.items():
            if self._restarting.get(partition) is lane:
                self._restarting.pop(partition, None)


STALLED_S: Final = 60.0


class StallDetector:
    """Detects a lane that makes no progress without a reason, from checks about a second apart.

    Every wait has a known end: a time, a request in flight, a call to the log or the state that is being repeated.
    Otherwise there is a bug, or a call that never returns.
    """

    def __init__(self) -> None:
        self._head: int | None = None
        self._since = inf

    def look(self, head: int | None, now: float) -> float | None:
        """How long nothing has been in progress for the record `head` (None if there is none): returned once a minute,
        from a minute on."""
        if head is None or head != self._head:
            self._head, self._since = head, now
            return None
        stood = now - self._since
        if stood < STALLED_S:
            return None
        self._since = now
        return stood


class OwnedLane(Protocol):
    """A lane, and the state that has its epoch. `tags`: the hash tags in which that may be stored."""

    @property
    def lane(self) -> Lane: ...

    @property
    def tags(self) -> tuple[int, ...]: ...

    @property
    def state(self) -> State: ...

    @property
    def partition(self) -> TopicPartition: ...


async def begin_anew(consumer: Consumer, lanes: Sequence[OwnedLane], clock: Clock) -> list[TopicPartition]:
    """Restart the epochs of lanes that the state takes for lost, and that are assigned to this member by their group.
    Returns these lanes.

    A group that was deleted, whose offsets expired, or whose cluster was rebuilt counts its generations from 1 again,
    while the state still knows the last one of before. The group decides: but only a group that answers now, and only
    about the epoch that was read before it was asked. What it has confirmed counts as long as it would not have given
    the lane to another without our having been asked.

    Raises PartitionLost when the group does not confirm them, or its confirmation has grown too old; Unavailable.
    """
    higher = [(lane, epochs) for lane in lanes if (epochs := await _higher(lane))]
    if not higher:
        return []
    asked_at = clock.monotonic()
    holds_s = await consumer.confirm([Assignment(lane.partition, lane.lane.epoch) for lane, _ in higher])
    begun: list[TopicPartition] = []
    for lane, seen in higher:
        if clock.monotonic() - asked_at >= holds_s:
            raise PartitionLost("the group's confirmation has grown too old")
        if await lane.state.begin_anew(lane.lane, seen):
            begun.append(lane.partition)
    return begun


async def _higher(lane: OwnedLane) -> dict[int, int]:
    """The epochs that fence this lane, by tag."""
    seen = await lane.state.epochs(lane.lane, lane.tags)
    return {tag: epoch for tag, epoch in seen.items() if epoch > lane.lane.epoch}
