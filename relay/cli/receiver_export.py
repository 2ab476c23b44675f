"""`relay receivers export` and `catch-up`: write the messages of a receiver as lines of JSON."""

import asyncio
import json
from pathlib import Path

import click

from relay.cli.api import api_base, api_client, error_of, key_in
from relay.cli.options import api_option, config_option, settings_from
from relay.client import ClientError
from relay.domain.errors import RelayError
from relay.domain.text import counted
from relay.telemetry.redaction import escape_in_json


@click.command(name="export")
@click.argument("name")
@click.option("--since", help="Only messages received since this time: RFC 3339, or how long ago, such as 2h.")
@click.option("--until", help="Only messages received before this time.")
@click.option("--after", help="Continue after the line with this cursor.")
@api_option
@config_option
def export(
    name: str, since: str | None, until: str | None, after: str | None, api: str | None, config_file: Path | None
) -> None:
    """Write everything that NAME got or missed, with payloads: a line of JSON for each message, the newest first.

    \b
    relay receivers export ci --since 1d > ci.ndjson
    relay receivers export ci | jq 'select(.delivery.state == "failed").message_id'

    If the connection breaks, the command reconnects. After another error, continue with --after and the cursor of the
    last line.
    """
    settings = settings_from(config_file)
    url, key = api_base(settings, api), key_in(settings)
    written, place = 0, after

    async def write() -> None:
        nonlocal written, place
        async with api_client(url, key) as client:
            items = client.receivers.export(name, since=since, until=until, after=after, reconnect=_reconnecting)
            async for item in items:
                _echo(item)
                written, place = written + 1, item["cursor"]

    try:
        asyncio.run(write())
    except ClientError as error:
        hint = f"; {written} lines are written: continue with --after {place}" if written else ""
        raise RelayError(f"{error_of(error)}{hint}") from error
    click.echo(f"{written} messages", err=True)


@click.command(name="catch-up")
@click.argument("name")
@click.option("--after", type=click.IntRange(min=0), required=True, help="The last number that the receiver has.")
@api_option
@config_option
def catch_up(name: str, after: int, api: str | None, config_file: Path | None) -> None:
    """Write the messages behind the last number that NAME has, in the order of their numbers.

    \b
    relay receivers catch-up ci --after 1204 > missed.ndjson

    For a receiver with `ordering: receiver` that was restored from a backup. Numbers without a delivered message are
    in lines with `first`, `last` and `reason`.
    """
    settings = settings_from(config_file)

    written, last = 0, after

    async def write() -> None:
        nonlocal written, last
        async with api_client(api_base(settings, api), key_in(settings)) as client:
            async for item in client.receivers.catch_up(name, after=after):
                _echo(item)
                if "sequence" in item:
                    written, last = written + 1, item["sequence"]
                else:
                    last = item["last"]

    try:
        asyncio.run(write())
    except ClientError as error:
        hint = f"; continue with --after {last}" if last != after else ""
        raise RelayError(f"{error_of(error)}{hint}") from error
    click.echo(f"{counted(written, 'message')} up to number {last}", err=True)


def _echo(item: object) -> None:
    click.echo(escape_in_json(json.dumps(item, ensure_ascii=False, separators=(",", ":"))))


def _reconnecting(error: ClientError) -> None:
    click.echo(f"{error_of(error)}; continuing", err=True)
