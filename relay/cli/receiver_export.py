"""`relay receivers export` and `catch-up` write the messages of a receiver as lines of JSON; `gaps` lists the numbers
that it did not get."""

import json
from typing import Final, Unpack

import click

from relay.cli.api import ApiOptions, error_of, with_api
from relay.cli.options import WholeRange, api_option, config_option
from relay.cli.replay import How, SelectOptions, carrying_out, count_and_begin, split
from relay.cli.table import print_table
from relay.client import AsyncRelay, ClientError
from relay.domain.errors import RelayError, UserError
from relay.domain.text import counted
from relay.schema.receivers import GapPage
from relay.schema.replays import JobView, PreviewView
from relay.telemetry.redaction import escape_in_json

_NUMBER: Final = WholeRange(min=1)


@click.command(name="export")
@click.argument("name")
@click.option("--since", help="Only messages received since this time: RFC 3339, or how long ago, such as 2h.")
@click.option("--until", help="Only messages received before this time.")
@click.option("--after", help="Continue after the line with this cursor.")
@api_option
@config_option
@with_api
def export(call: ApiOptions, name: str, since: str | None, until: str | None, after: str | None) -> None:
    """Write everything that NAME got or missed, with payloads: a line of JSON for each message, the newest first.

    \b
    relay receivers export ci --since 1d > ci.ndjson
    relay receivers export ci | jq 'select(.delivery.state == "failed").message_id'

    If the connection breaks, the command reconnects. After another error, continue with --after and the cursor of the
    last line.
    """
    written, place = 0, after

    async def write(client: AsyncRelay) -> None:
        nonlocal written, place
        items = client.receivers.export(name, since=since, until=until, after=after, reconnect=_reconnecting)
        async for item in items:
            _echo(item)
            written, place = written + 1, item["cursor"]

    try:
        call.run(write)
    except ClientError as error:
        hint = f"; {written} lines are written: continue with --after {place}" if written else ""
        raise RelayError(f"{error_of(error)}{hint}") from error
    click.echo(f"{written} messages", err=True)


@click.command(name="catch-up")
@click.argument("name")
@click.option("--after", type=WholeRange(min=0), required=True, help="The last number that the receiver has.")
@api_option
@config_option
@with_api
def catch_up(call: ApiOptions, name: str, after: int) -> None:
    """Write the messages behind the last number that NAME has, in the order of their numbers.

    \b
    relay receivers catch-up ci --after 1204 > missed.ndjson

    For a receiver with `ordering: receiver` that was restored from a backup. Numbers without a delivered message are
    in lines with `first`, `last` and `reason`.
    """
    written, last = 0, after

    async def write(client: AsyncRelay) -> None:
        nonlocal written, last
        async for item in client.receivers.catch_up(name, after=after):
            _echo(item)
            if "sequence" in item:
                written, last = written + 1, item["sequence"]
            else:
                last = item["last"]

    try:
        call.run(write)
    except ClientError as error:
        hint = f"; continue with --after {last}" if last != after else ""
        raise RelayError(f"{error_of(error)}{hint}") from error
    click.echo(f"{counted(written, 'message')} up to number {last}", err=True)


def _echo(item: object) -> None:
    click.echo(escape_in_json(json.dumps(item, ensure_ascii=False, separators=(",", ":"))))


def _reconnecting(error: ClientError) -> None:
    click.echo(f"{error_of(error)}; continuing", err=True)


@click.command()
@click.argument("name")
@click.option("--first", type=_NUMBER, help="Only this number and higher ones.")
@click.option("--last", type=_NUMBER, help="Only this number and lower ones.")
@click.option("--replay", is_flag=True, help="Send the messages in these gaps again.")
@carrying_out
def gaps(
    call: ApiOptions, name: str, first: int | None, last: int | None, replay: bool, **given: Unpack[SelectOptions]
) -> None:
    """List the numbers that NAME did not get, and why. NAME has `ordering: receiver`."""
    chosen, how = split(given)
    if replay:
        _replay(call, name, first, last, given.get("rate"), how)
        return
    if unused := [option for option, value in {**how, **chosen}.items() if value]:
        raise UserError(f"--{unused[0].replace('_', '-')} is for --replay")
    call.show(call.run(lambda client: _all(client, name, first, last)), lambda page: _print_gaps(name, page))


async def _all(client: AsyncRelay, name: str, first: int | None, last: int | None) -> GapPage:
    """All pages in one."""
    page = await client.receivers.gaps_page(name, after=(first or 1) - 1)
    items, cursor = page["items"], page["cursor"]
    while cursor is not None:
        more = await client.receivers.gaps_page(name, cursor=cursor)
        items, cursor = items + more["items"], more["cursor"]
    kept = [gap for gap in items if last is None or gap["first"] <= last]
    return GapPage(numbered=page["numbered"], items=kept, cursor=None)


def _print_gaps(name: str, page: GapPage) -> None:
    if not page["numbered"]:
        click.echo(f"{name} has another order than `ordering: receiver`: its messages have no numbers without holes")
    elif not page["items"]:
        click.echo(f"{name} has no gaps")
    else:
        rows = [(str(gap["first"]), str(gap["last"]), gap["reason"], gap["failed_at"] or "-") for gap in page["items"]]
        print_table(("FIRST", "LAST", "REASON", "FAILED AT"), rows)
        missing = sum(gap["last"] - gap["first"] + 1 for gap in page["items"])
        click.echo(f"{counted(missing, 'message')}; `relay receivers gaps {name} --replay` sends them again")


def _replay(call: ApiOptions, name: str, first: int | None, last: int | None, rate: float | None, how: How) -> None:
    async def preview(client: AsyncRelay) -> PreviewView:
        return await client.receivers.preview_replay_gaps(name, first=first, last=last)

    async def create(client: AsyncRelay) -> JobView:
        return await client.receivers.replay_gaps(name, first=first, last=last, rate=rate)

    count_and_begin(call, "replay", preview, create, how)
