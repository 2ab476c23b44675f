"""Opens log and state for a command that works beside the relay, or while it is stopped: of production, or of a
`relay dev`'s data directory."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import click
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay, wait_exponential

from relay.clock import Clock, SharedClock, SystemClock
from relay.config.settings import Settings
from relay.domain.errors import LogUnavailable, RelayError, UserError
from relay.domain.times import format_duration
from relay.domain.topics import Topics
from relay.embedded.directory import is_taken
from relay.embedded.relay import embedded_state, streams_log
from relay.embedded.valkey import ValkeyServer
from relay.log.port import Log
from relay.run.composition import EMBEDDED_OWNER, kafka_log, recovery_of, redis_state
from relay.state.lease import LEASE_S
from relay.state.port import State

QUIET_S: Final = 10.0
"""Lanes report every 3 s."""
LOOK_S: Final = 0.5


def opened(settings: Settings, data_dir: Path | None, *, use: str) -> AbstractAsyncContextManager[tuple[Log, State]]:
    """Started. `use`: the advice if a relay runs in `data_dir`. Raises UserError."""
    if data_dir is not None:
        return _embedded(settings, data_dir, use)
    return _opened(kafka_log(settings), redis_state(settings))


@asynccontextmanager
async def _opened(log: Log, state: State) -> AsyncIterator[tuple[Log, State]]:
    try:
        await log.start()
        await state.start()
        yield log, state
    finally:
        await log.close()
        await state.close()


@asynccontextmanager
async def _embedded(settings: Settings, data_dir: Path, use: str) -> AsyncIterator[tuple[Log, State]]:
    """Log and state on the embedded server of a `relay dev` that is not running."""
    if not (data_dir / "relay.lock").exists():
        raise UserError(f"--data-dir: {data_dir} is no data directory; `relay dev` makes one at its start")
    if is_taken(data_dir):
        raise UserError(f"--data-dir: a `relay dev` runs on {data_dir}; {use}")
    server = ValkeyServer(data_dir)
    await server.start()
    try:
        async with _opened(streams_log(settings, server), embedded_state(settings, server)) as opened:
            yield opened
    except Exception as error:
        if server.lacked_room:
            raise RelayError(f"the disk of {data_dir} is full: free some of it, and try again") from error
        raise
    finally:
        await server.stop()


class StoppedRelay(NamedTuple):
    """The stores of a relay whose workers do not run. `owner`: the name under which this command holds leases."""

    log: Log
    state: State
    topics: Topics
    clock: SharedClock
    owner: str


@asynccontextmanager
async def stopped_relay(
    settings: Settings, data_dir: Path | None, command: str, *, use: str
) -> AsyncIterator[StoppedRelay]:
    """With lost state restored. `use`: as for `opened`. Raises UserError while any worker is running."""
    topics, owner = Topics(settings.topic_prefix), own_name(command, data_dir)
    async with opened(settings, data_dir, use=use) as (log, state):
        await check_topics(log, topics)
        if data_dir is None:
            await _check_stopped(log, state, topics)
        clock = await shared_clock(state)
        await _make_ready(log, state, topics, clock, settings, owner)
        yield StoppedRelay(log, state, topics, clock, owner)


async def check_topics(log: Log, topics: Topics) -> None:
    names = [spec.name for spec in topics.fixed() if spec.name not in topics.informational]
    there = await log.describe(names)
    missing = [name for name in names if name not in there]
    if missing:
        raise UserError(f"topic {missing[0]} does not exist ({len(missing)} are missing): is the topic prefix right?")


async def shared_clock(state: State) -> SharedClock:
    """Due times were written by the clock of all processes."""
    clock = SharedClock(SystemClock(), state)
    await clock.measure()
    return clock


def own_name(command: str, data_dir: Path | None = None) -> str:
    """The owner of the leases of this run of `command`."""
    if data_dir is not None:
        return EMBEDDED_OWNER
    return f"{command}-{socket.gethostname()}-{os.getpid()}"


async def _make_ready(log: Log, state: State, topics: Topics, clock: Clock, settings: Settings, owner: str) -> None:
    """Restore lost state, as a relay does at its start. Raises RelayError if another process is doing so; the lease of
    a dead process does not count."""
    recovery = recovery_of(log, state, topics, clock, settings, owner)
    for _ in range(round((LEASE_S + 1.0) / LOOK_S)):
        if await recovery.check() is not None:
            return
        await asyncio.sleep(LOOK_S)
    raise RelayError("a recovery is running, in a relay process or a `relay recover`: wait until it ends")


async def _check_stopped(log: Log, state: State, topics: Topics) -> None:
    """Raises UserError while any worker is running; waits until it is sure that none is."""
    backlogs = await log.backlogs(topics.fixed_groups())
    places = [backlog.partition for backlog in backlogs]
    for _ in range(round((QUIET_S + 2.0) / LOOK_S)):
        ages = [sign.ago_s for sign in await state.heartbeats(places) if sign is not None]
        if min(ages, default=QUIET_S) >= QUIET_S:
            return
        await asyncio.sleep(LOOK_S)
    raise UserError("workers of this relay are running: stop them first (its API may continue to accept messages)")


T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
REPEAT_S: Final = 0.5
"""Interval of the log's own retries. It is short, so that the command soon reports what it waits for."""


async def wait_for_cluster(call: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """The result of `call`, which is repeated for `limit_s` while the log is not ready; each reason is printed once.
    Raises the last LogUnavailable, with the time waited."""
    said: list[str] = []

    def say(state: RetryCallState) -> None:
        reason = str(state.outcome.exception()) if state.outcome is not None else ""
        if reason not in said:
            said.append(reason)
            click.echo(f"waiting, for up to {format_duration(limit_s)} (RELAY_KAFKA_WAIT): {reason}", err=True)

    async def attempt() -> T:  # tenacity awaits only functions declared `async`
        return await call()

    repeating = AsyncRetrying(
        retry=retry_if_exception_type(LogUnavailable),
        wait=wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S),
        stop=stop_before_delay(limit_s),
        before_sleep=say,
        reraise=True,
    )
    try:
        return await repeating(attempt)
    except LogUnavailable as error:
        if not said:
            raise
        raise LogUnavailable(f"{error}; waited {format_duration(limit_s)} for it (RELAY_KAFKA_WAIT)") from error
