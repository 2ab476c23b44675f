"""`relay import`: imports the data of another relay."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import click

from relay.cli.options import DIRECTORY, FILE_OR_STDIN, config_option, output_option, settings_from
from relay.cli.stores import check_stopped, check_topics, make_ready, opened, own_name, shared_clock
from relay.cli.table import print_json
from relay.config.settings import Settings
from relay.domain.errors import RelayError, UserError
from relay.domain.topics import Topics
from relay.state.lease import LEASE_S, keeping_lease
from relay.transfer.form import Line, decode_line
from relay.transfer.incoming import Import, ImportResult

LEASE: Final = "import"
_STOP: Final = "it imports while it is stopped: end that `relay dev` first"


@click.command("import")
@click.argument("file", type=FILE_OR_STDIN, default="-")
@config_option
@click.option("--data-dir", type=DIRECTORY, help="Of a `relay dev` that is not running. Default: Kafka and Redis.")
@output_option
def import_(file: str, config_file: Path | None, data_dir: Path | None, output: str) -> None:
    """Import the output of `relay export` from FILE (default: stdin), before the workers of this relay start.

    Its API may run: new messages are queued behind the imported ones. Can be repeated, and continues after a kill.
    """
    with _in(str(file)) as source:
        taken = asyncio.run(_import(settings_from(config_file), data_dir, _lines(source, str(file))))
    if output == "json":
        print_json(_as_json(taken))
        return
    if taken.again:
        click.echo(f"export {taken.id} was imported before: nothing to do")
        return
    records = ", ".join(f"{topic} {count}" for topic, count in sorted(taken.records.items())) or "none"
    click.echo(f"entries: {taken.entries} imported, {taken.kept} existed and are unchanged")
    click.echo(f"finished: {taken.messages} messages, {taken.rows} deliveries and callbacks remembered")
    click.echo(f"records: {records}" + (f"; {taken.before} were imported before" if taken.before else ""))


def _as_json(taken: ImportResult) -> dict[str, object]:
    return {
        "id": taken.id,
        "again": taken.again,
        "entries": {"taken": taken.entries, "kept": taken.kept},
        "finished": {"messages": taken.messages, "rows": taken.rows},
        "records": dict(taken.records),
        "records_before": taken.before,
    }


async def _import(settings: Settings, data_dir: Path | None, lines: Iterator[Line]) -> ImportResult:
    topics, owner = Topics(settings.topic_prefix), own_name("import")
    async with opened(settings, data_dir, use=_STOP) as (log, state):
        await check_topics(log, topics)
        if data_dir is None:
            await check_stopped(log, state, topics)
        clock = await shared_clock(state)
        await make_ready(log, state, topics, clock, settings.dedup_window, owner)
        if not await state.lease(LEASE, owner, LEASE_S):
            raise RelayError(f"another `relay import` is running, or was killed less than {LEASE_S:g} s ago")
        async with keeping_lease(state, clock, LEASE, owner):
            return await Import(log, state, topics, clock, lines).run()


def _lines(source: BinaryIO, origin: str) -> Iterator[Line]:
    for number, text in enumerate(source, 1):
        yield decode_line(text, origin, number)


@contextmanager
def _in(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    with open(descriptor, "rb") as source:
        yield source
