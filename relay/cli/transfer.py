"""`relay export` and `relay import`: the data of a stopped relay as JSON lines, and into another relay."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import click

from relay import __version__
from relay.cli.options import DIRECTORY, FILE_OR_STDIN, config_option, output_option, settings_from
from relay.cli.stores import stopped_relay
from relay.cli.table import print_json
from relay.config.encryption import KeyRing
from relay.config.references import usable_variables
from relay.config.setting_values import key_of
from relay.config.settings import Settings
from relay.domain.errors import RelayError, UserError
from relay.embedded.relay import stored_secret
from relay.recovery.rebuilding import LONGEST_LIFE
from relay.state.lease import LEASE_S, keeping_lease
from relay.transfer.form import Line, decode_line, encode_line
from relay.transfer.incoming import Import, ImportResult
from relay.transfer.outgoing import Export

_EXPORTED_STOPPED: Final = "stop that `relay dev` first: it can be exported only while it is stopped"
LEASE: Final = "import"
_IMPORTS_STOPPED: Final = "stop that `relay dev` first: it can import only while it is stopped"
_data_dir_option = click.option(
    "--data-dir",
    type=DIRECTORY,
    help="Data directory of a `relay dev` that is not running. Default: use Kafka and Redis.",
)


@click.command()
@click.argument("file", type=FILE_OR_STDIN, default="-")
@config_option
@_data_dir_option
@click.option("--with-secrets", is_flag=True, help="Include entries with secrets, which stay encrypted.")
def export(file: str, config_file: Path | None, data_dir: Path | None, with_secrets: bool) -> None:
    """Write the data of a stopped relay to FILE (default: stdout), for `relay import`.

    The data are receivers, sources and keys, dead letters, unfinished messages, and the rows of finished ones, so that
    none is delivered again. They include payloads. Nothing is removed: the relay can be started again.
    """
    with _out(str(file)) as out:
        written = asyncio.run(_export(settings_from(config_file), data_dir, with_secrets, out))
    click.echo(f"exported: {written} lines", err=True)


async def _export(settings: Settings, data_dir: Path | None, with_secrets: bool, out: BinaryIO) -> int:
    """Returns the number of lines."""
    written = 0
    keys = [key_of(key.get_secret_value()) for key in settings.secrets_key]
    async with stopped_relay(settings, data_dir, "export", use=_EXPORTED_STOPPED) as relay:
        if data_dir is not None:
            keys.append(stored_secret(data_dir / "secrets_key"))

        def report(line: Line) -> None:
            nonlocal written
            written += out.write(encode_line(line)) > 0

        await Export(
            relay.log,
            relay.state,
            relay.topics,
            relay.clock,
            since_ms=int((relay.clock.time() - LONGEST_LIFE * settings.dedup_window) * 1000),
            variables=usable_variables(os.environ, settings.secrets_from),
            ring=KeyRing(keys),
            with_secrets=with_secrets,
            version=__version__,
            write=report,
        ).run()
    return written


@contextmanager
def _out(file: str) -> Iterator[BinaryIO]:
    """A file takes its place once it is complete: a failed export leaves none, and an earlier one as it was. It is
    readable by its owner only, because it contains payloads."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    special = os.path.exists(file) and not os.path.isfile(file)  # a pipe or device
    target = os.path.realpath(file)
    draft = target if special else f"{target}.new"
    descriptor = _opened(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "write")
    try:
        with open(descriptor, "wb") as out:
            yield out
            if not special:
                out.flush()
                os.fsync(descriptor)
                os.replace(draft, target)
    except BaseException:
        if not special:
            Path(draft).unlink(missing_ok=True)
        raise


@click.command("import")
@click.argument("file", type=FILE_OR_STDIN, default="-")
@config_option
@_data_dir_option
@output_option
def import_(file: str, config_file: Path | None, data_dir: Path | None, output: str) -> None:
    """Import the output of `relay export` from FILE (default: stdin), before the workers of this relay start.

    Its API may run: new messages are queued behind those that were routed. Can be repeated, and continues after a kill.
    """
    with _in(str(file)) as source:
        lines = (decode_line(text, str(file), number) for number, text in enumerate(source, 1))
        taken = asyncio.run(_import(settings_from(config_file), data_dir, lines))
    if output == "json":
        print_json(_as_json(taken))
        return
    if taken.again:
        click.echo(f"export {taken.id} was imported before: nothing to do")
        return
    records = ", ".join(f"{topic} {count:,}" for topic, count in sorted(taken.records.items())) or "none"
    click.echo(f"entries: {taken.entries:,} imported, {taken.kept:,} existed and are unchanged")
    click.echo(f"finished: {taken.messages:,} messages, {taken.rows:,} deliveries and callbacks remembered")
    click.echo(f"records: {records}" + (f"; {taken.before:,} were imported before" if taken.before else ""))


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
    async with stopped_relay(settings, data_dir, "import", use=_IMPORTS_STOPPED) as (log, state, topics, clock, owner):
        if not await state.lease(LEASE, owner, LEASE_S):
            raise RelayError(f"another `relay import` is running, or was killed less than {LEASE_S:g} s ago")
        async with keeping_lease(state, clock, LEASE, owner):
            return await Import(log, state, topics, clock, lines, partial(click.echo, err=True)).run()


@contextmanager
def _in(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with open(_opened(file, os.O_RDONLY, "read"), "rb") as source:
        yield source


def _opened(file: str, flags: int, what: str) -> int:
    """Raises UserError."""
    try:
        return os.open(file, flags, 0o600)
    except OSError as error:
        raise UserError(f"cannot {what} {file}: {error.strerror}") from error
