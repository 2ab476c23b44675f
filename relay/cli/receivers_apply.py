"""`relay receivers apply`: announces the entries of a receivers file to all processes, or previews the changes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from relay.cli.config import notes_on, print_refused, refusals
from relay.cli.options import FILE, config_option, output_option, settings_from
from relay.cli.table import print_json
from relay.clock import Clock
from relay.config.receivers_file import ReceiversFile, load_receivers_file
from relay.config.redacted_entry import FieldChange
from relay.config.settings import Settings
from relay.control.apply import LEASE, ApplyPreview, Diff, apply_file, awaited, preview_file, refusal_of
from relay.domain.errors import StateUnavailable, UserError
from relay.domain.topics import Topics
from relay.log.port import Log
from relay.state.port import State
from relay.watch.registry import file_stamp

_AWAIT_S: Final = 1.0
_LARGE_BYTES: Final = 1_000_000
_LEASE_LOOK_S: Final = 0.2
_LEASE_PATIENCE_S: Final = 60.0
"""Several times as long as a process needs for a file of 100,000 receivers, and as the lease of a dead one lasts."""
_TOLD_EVERY: Final = 10_000

Say = Callable[[str], None]

file_option = click.option("--file", "-f", type=FILE, help="Receivers file. Default: the setting receivers_file.")


@click.command()
@file_option
@config_option
@click.option("--dry-run", is_flag=True, help="Only show what would change, field by field.")
@click.option("--prune", is_flag=True, help="Apply the file even if it has no receivers, which removes all.")
@click.option("--wait", is_flag=True, help="Wait until moves and removals are complete.")
@output_option
def apply(file: Path | None, config_file: Path | None, dry_run: bool, prune: bool, wait: bool, output: str) -> None:
    """Apply the receivers file: create topics of new receivers, and publish its entries to all processes.

    A receiver whose lane changes, or that gets more partitions, is moved in order while the relay runs; a removed one
    leaves when its last message is finished. The command prints these, and waits for them only with --wait. It holds
    the lease of receivers in Redis, so that no other process changes them at the same time.
    """
    settings = settings_from(config_file)
    known = _loaded(file or settings.receivers_file)
    notes = [*known.notes(), *notes_on(known.receivers, settings)]
    say: Say = click.echo if output != "json" else lambda _text: None
    if dry_run:
        preview = asyncio.run(_preview(settings, known, prune=prune))
        _print_changes(preview, "not applied: dry run", say)
        diff, rest = preview.diff, dict[str, str]()
        more: dict[str, object] = {
            "fields": {key: [asdict(each) for each in changes] for key, changes in preview.fields.items()}
        }
    else:
        preview = None
        diff, rest = asyncio.run(_apply(settings, known, prune=prune, wait=wait, say=say))
        more = {}
    if output == "json":
        changes = {"added": list(diff.added), "changed": list(diff.changed), "removed": list(diff.removed)}
        taken = {key: refusal_of(key) for key in diff.refused}
        status = {
            "applied": not dry_run,
            "awaited": rest,
            "refused": refusals(known, settings),
            "taken": taken,
            "notes": notes,
        }
        print_json({**changes, **status, **more})
    else:
        print_refused(known, settings)
        for note in notes:
            click.echo(f"note: {note}")
    if preview is not None and preview.refusal is not None:
        raise UserError(preview.refusal)
    if diff.refused:
        raise UserError("\n".join(f"{known.origin}: {refusal_of(key)}" for key in diff.refused))


async def _preview(settings: Settings, file: ReceiversFile, *, prune: bool) -> ApplyPreview:
    from relay.cli.stores import REPEAT_S  # costs the clients' imports, which other commands do not need
    from relay.run.composition import open_log

    async with open_log(settings, repeat_s=REPEAT_S) as log:
        return await preview_file(log, file, Topics(settings.topic_prefix), prune=prune)


async def _apply(
    settings: Settings, file: ReceiversFile, *, prune: bool, wait: bool, say: Say
) -> tuple[Diff, dict[str, str]]:
    """The changes, and those still pending at the end."""
    from relay.cli.stores import REPEAT_S, wait_for_cluster
    from relay.run.composition import open_log

    topics = Topics(settings.topic_prefix)
    async with open_log(settings, repeat_s=REPEAT_S) as log:
        async with alone(settings):
            diff = await wait_for_cluster(
                lambda: apply_file(log, file, topics, prune=prune, announced=_print_announced), settings.kafka_wait
            )
        _print_changes(ApplyPreview(diff, {}), "applied", say)
        return diff, await _print_awaited(log, topics, say, wait=wait)


@asynccontextmanager
async def alone(settings: Settings) -> AsyncIterator[None]:
    """No process of the relay changes receivers meanwhile. If Redis does not answer, this continues without the lease:
    it may run where only Kafka is reachable, and with Redis down no other process gets the lease either."""
    from relay.cli.stores import own_name
    from relay.clock import SystemClock
    from relay.run.composition import redis_state
    from relay.state.lease import keeping_lease

    state, clock, owner = redis_state(settings), SystemClock(), own_name("apply")
    try:
        if await _has_lease(state, clock, owner):
            async with keeping_lease(state, clock, LEASE, owner):
                yield
        else:
            yield
    finally:
        await state.close()


async def _has_lease(state: State, clock: Clock, owner: str) -> bool:
    """False if there is no Redis. Raises StateUnavailable if another process keeps it for too long."""
    from relay.state.lease import take_lease

    try:
        given = await take_lease(state, clock, LEASE, owner, patience_s=_LEASE_PATIENCE_S, look_s=_LEASE_LOOK_S)
    except StateUnavailable as error:
        click.echo(
            f"note: no lock in Redis, so make sure that no other process changes receivers now: {error}",
            err=True,
        )
        return False
    if not given:
        raise StateUnavailable("another process is still changing receivers; try again later")
    return True


def _loaded(path: Path) -> ReceiversFile:
    """The file; a slow one is announced. Raises UserError."""
    stamp = file_stamp(path)
    is_large = stamp is not None and stamp.size > _LARGE_BYTES
    if is_large:
        click.echo(f"reading {path} ...", err=True)
    known = load_receivers_file(path)
    if is_large:
        click.echo(f"{len(known.receivers):,} receivers; comparing them with those in effect ...", err=True)
    return known


def _print_announced(records: int) -> None:
    if records % _TOLD_EVERY == 0:
        click.echo(f"{records} changes to publish ...", err=True)


async def _print_awaited(log: Log, topics: Topics, say: Say, *, wait: bool) -> dict[str, str]:
    printed: dict[str, str] = {}
    while True:
        now = await awaited(log, topics)
        for name in sorted(printed.keys() - now.keys()):
            say(f"done     {name}")
        for name, text in now.items():
            if printed.get(name) != text:
                say(f"awaited  {name} {text}")
        if not (wait and now):
            return now
        printed = now
        await asyncio.sleep(_AWAIT_S)


def _print_changes(preview: ApplyPreview, done: str, say: Say) -> None:
    diff = preview.diff
    for sign, keys in (("+", diff.added), ("~", diff.changed), ("-", diff.removed)):
        for key in keys:
            say(f"{sign} {key}")
            for change in preview.fields.get(key, ()):
                say(f"    {in_words(change)}")
    say(done if diff else "nothing to change")


def in_words(change: FieldChange) -> str:
    """A changed field in a line: `timeout: 15 -> 20`."""
    if change.secret:
        return f"{change.field}: changed"
    return f"{change.field}: {_value(change.old)} -> {_value(change.new)}"


def _value(value: object) -> str:
    if value is None:
        return "(default)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
