"""`relay recover`: restores lost state from the log."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import click

from relay.cli.options import DIRECTORY, config_option, output_option, settings_from
from relay.cli.stores import check_topics, opened, own_name, shared_clock
from relay.cli.table import print_table, show_as
from relay.clock import SystemClock
from relay.config.settings import Settings
from relay.control.resolve import read_declared
from relay.domain.errors import RelayError
from relay.domain.incident import party_of
from relay.domain.times import utc_text
from relay.domain.topics import Topics
from relay.engine.observer import Recovered, StateMemory
from relay.engine.parked_reader import adopt_cluster
from relay.log.port import Log
from relay.recovery.rebuild import Read, Rebuild
from relay.recovery.rebuilding import LONGEST_LIFE
from relay.run.composition import recovery_of
from relay.state.lease import LEASE_S, keeping_lease
from relay.state.port import Restored, State
from relay.state.rows import TAGS

T = TypeVar("T")

DEDUP_LEASE: Final = "recovery-dedup"
"""Lease of manual runs; a relay that rebuilds in the background stops once it sees the result."""
LOOK_S: Final = 0.5
TELL_S: Final = 5.0
_STOPPED: Final = "a running `relay dev` restores its state on its own; stop it before you use --dedup"
_COLUMNS: Final = ("kind", "name", "parked", "put_back", "tombstones")
_ROWS: Final = ("enqueued", "done", "published", "awaiting", "failed", "indexed")


@click.command()
@config_option
@click.option("--dedup", is_flag=True, help="Also rebuild the memory of finished messages, from all topics.")
@click.option("--dry-run", is_flag=True, help="Only count them; change nothing.")
@click.option("--no-wait", is_flag=True, help="Fail at once if another recovery is running.")
@click.option("--data-dir", type=DIRECTORY, help="Data directory of a `relay dev` that is not running.")
@output_option
def recover(
    config_file: Path | None, dedup: bool, dry_run: bool, no_wait: bool, data_dir: Path | None, output: str
) -> None:
    """Restore lost state from the log.

    A running relay does this on its own. After Redis lost everything it also rebuilds its memory of finished messages,
    slowly and in the background; --dedup does that at once. Safe to repeat, and while the relay runs. On a Kafka
    cluster that has replaced another one, parked messages that it lacks are given up from then on.
    """
    settings = settings_from(config_file)
    run = _Run(settings, data_dir, dedup=dedup, dry_run=dry_run, wait=not no_wait)
    done, topics = asyncio.run(run())
    found = _as_json(done, topics, dry_run=dry_run)
    show_as(found, output, lambda _: _print(done, topics, dry_run=dry_run))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the command."""

    settings: Settings
    data_dir: Path | None
    dedup: bool
    dry_run: bool
    wait: bool

    async def __call__(self) -> tuple[Recovered, list[Read]]:
        async with opened(self.settings, self.data_dir, use=_STOPPED) as (log, state):
            topics = Topics(self.settings.topic_prefix)
            await check_topics(log, topics)
            done = await self._references(log, state, topics)
            return done, await self._memory(log, state, topics) if self.dedup else []

    async def _references(self, log: Log, state: State, topics: Topics) -> Recovered:
        clock = await shared_clock(state)
        recovery = recovery_of(log, state, topics, clock, self.settings, own_name("recover", self.data_dir))
        if self.dry_run:
            return await recovery.preview()
        await adopt_cluster(log, state)
        return await self._when_free(recovery.check)

    async def _memory(self, log: Log, state: State, topics: Topics) -> list[Read]:
        clock, owner, progress = await shared_clock(state), own_name("recover", self.data_dir), _Progress()
        declared = await read_declared(log, topics)
        rebuild = Rebuild(
            log,
            state,
            topics,
            lanes=declared.lanes,
            source=declared.sources.source,
            since_ms=int((clock.time() - LONGEST_LIFE * self.settings.dedup_window) * 1000),
            dry_run=self.dry_run,
            report=progress.print,
        )
        if self.dry_run:
            return await rebuild.run()

        async def alone() -> list[Read] | None:
            if not await state.lease(DEDUP_LEASE, owner, LEASE_S):
                return None
            async with keeping_lease(state, clock, DEDUP_LEASE, owner):
                gaps = await state.gaps(range(TAGS))
                reads = await rebuild.run()
                await state.close_gaps(gaps)
                return reads

        return await self._when_free(alone)

    async def _when_free(self, work: Callable[[], Awaitable[T | None]]) -> T:
        """The result of `work`, once no other process is doing the same; `work` returns None until then."""
        waiting = False
        while (done := await work()) is None:
            if not self.wait:
                raise RelayError("another recovery is running, in a relay process or another `relay recover`")
            if not waiting:
                click.echo("another recovery is running (in a relay process, or a `relay recover`): waiting", err=True)
            waiting = True
            await asyncio.sleep(LOOK_S)
        return done


class _Progress:
    """Prints every few seconds the progress in the topics."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._told_at = self._clock.monotonic()
        self._records: Counter[str] = Counter()  # by topic
        self._before = 0

    def print(self, read: Read) -> None:
        self._records[read.topic] = read.records
        now, records = self._clock.monotonic(), self._records.total()
        if now - self._told_at >= TELL_S:
            rate = (records - self._before) / (now - self._told_at)
            click.echo(f"{read.topic}: {read.records:,} records so far, {rate:,.0f} a second", err=True)
            self._told_at, self._before = now, records


# --- output -----------------------------------------------------------------------------------------------------

_STATES: Final = {
    StateMemory.NEW: "was new",
    StateMemory.KEPT: "came back from a restart that lost nothing",
    StateMemory.LOST: "had lost its memory, or its end",
}


def _print(done: Recovered, topics: list[Read], *, dry_run: bool) -> None:
    if done.owners:
        rows = [(*party_of(owner), *map(str, _numbers(done, owner))) for owner in sorted(done.owners)]
        print_table(("KIND", "NAME", "PARKED", "MISSING" if dry_run else "PUT BACK", "TOMBSTONES"), rows)
        click.echo()
    if topics:
        columns = ("TOPIC", "RECORDS", *(name.upper() for name in _ROWS))
        cells = [(read.topic, read.records, *(read.rows[name] for name in _ROWS)) for read in topics]
        print_table(columns, [tuple(map(str, row)) for row in cells])
        click.echo()
    for line in _summary(done, dry_run=dry_run):
        click.echo(line)


def _summary(done: Recovered, *, dry_run: bool) -> list[str]:
    if not done.tags:
        first = "state: ready"
    elif dry_run:
        first = f"state: {len(done.tags)} of 64 hash tags are not ready"
    else:
        first = f"state: {_STATES[done.memory]}; {len(done.tags)} of 64 hash tags were not ready, and are now"
    missing, owed = done.count(Restored.PUT_BACK), done.count(Restored.FINISHED)
    what = ("missing", "owed") if dry_run else ("put back", "written")
    lines = [first, f"parked records: {done.count()} read, {missing} {what[0]}, {owed} tombstones {what[1]}"]
    if done.doubt_until is not None and not dry_run:
        lines.append(f"deliveries without a row count as in doubt until {utc_text(done.doubt_until)}")
    return lines


def _as_json(done: Recovered, topics: list[Read], *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "tags_not_ready": len(done.tags),
        "memory": done.memory.value if done.tags else "ready",
        "parked": done.count(),
        "put_back": done.count(Restored.PUT_BACK),
        "tombstones": done.count(Restored.FINISHED),
        "in_doubt_until": utc_text(done.doubt_until),
        "seconds": round(done.seconds, 3),
        "owners": [
            dict(zip(_COLUMNS, (*party_of(owner), *_numbers(done, owner)), strict=True))
            for owner in sorted(done.owners)
        ],
        "topics": [
            {"topic": read.topic, "records": read.records} | {name: read.rows[name] for name in _ROWS}
            for read in topics
        ],
    }


def _numbers(done: Recovered, owner: str) -> tuple[int, int, int]:
    found = done.owners[owner]
    return found.total(), found[Restored.PUT_BACK], found[Restored.FINISHED]
