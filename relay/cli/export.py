"""`relay export`: the data of a stopped relay, as JSON lines."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import click

from relay import __version__
from relay.cli.options import DIRECTORY, FILE_OR_STDIN, config_option, settings_from
from relay.cli.stores import check_stopped, check_topics, make_ready, opened, own_name, shared_clock
from relay.config.encryption import KeyRing
from relay.config.references import usable_variables
from relay.config.setting_values import key_of
from relay.config.settings import Settings
from relay.domain.errors import UserError
from relay.domain.topics import Topics
from relay.embedded.relay import kept_secret
from relay.recovery.rebuilding import LONGEST_LIFE
from relay.transfer.form import Line, encode_line
from relay.transfer.outgoing import Export

_STOP: Final = "it is exported while it is stopped: end that `relay dev` first"


@click.command()
@click.argument("file", type=FILE_OR_STDIN, default="-")
@config_option
@click.option("--data-dir", type=DIRECTORY, help="Of a `relay dev` that is not running. Default: Kafka and Redis.")
@click.option("--with-secrets", is_flag=True, help="Also entries with secrets, which stay encrypted.")
def export(file: str, config_file: Path | None, data_dir: Path | None, with_secrets: bool) -> None:
    """Write the data of a stopped relay to FILE (default: stdout), for `relay import`.

    Receivers, sources and keys; dead letters; unfinished messages; and the rows of finished ones, so that none is
    delivered again. Payloads are in it. Nothing is removed: the relay can be started again.
    """
    with _out(str(file)) as out:
        asyncio.run(_export(settings_from(config_file), data_dir, with_secrets, out))


async def _export(settings: Settings, data_dir: Path | None, with_secrets: bool, out: BinaryIO) -> None:
    topics, written = Topics(settings.topic_prefix), 0
    keys = [key_of(key) for key in settings.secrets_key]
    async with opened(settings, data_dir, use=_STOP) as (log, state):
        if data_dir is not None:
            keys.append(kept_secret(data_dir / "secrets_key"))
        await check_topics(log, topics)
        if data_dir is None:
            await check_stopped(log, state, topics)
        clock = await shared_clock(state)
        await make_ready(log, state, topics, clock, settings.dedup_window, own_name("export"))

        def report(line: Line) -> None:
            nonlocal written
            written += out.write(encode_line(line)) > 0

        await Export(
            log,
            state,
            topics,
            clock,
            since_ms=int((clock.time() - LONGEST_LIFE * settings.dedup_window) * 1000),
            variables=usable_variables(os.environ, settings.secrets_from),
            ring=KeyRing(keys),
            with_secrets=with_secrets,
            version=__version__,
            write=report,
        ).run()
    click.echo(f"exported: {written} lines", err=True)


@contextmanager
def _out(file: str) -> Iterator[BinaryIO]:
    """Readable by its owner only: it contains payloads."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
    with open(descriptor, "wb") as out:
        yield out
        out.flush()
        os.fsync(descriptor)
