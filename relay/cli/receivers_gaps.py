"""`relay receivers gaps`: lists the numbers that a receiver did not get, and replays their messages."""

from typing import Final, Unpack

import click

from relay.cli.api import ApiOptions
from relay.cli.replay import How, SelectOptions, carrying_out, count_and_begin, split
from relay.cli.table import print_table
from relay.client import AsyncRelay
from relay.domain.errors import UserError
from relay.domain.text import counted
from relay.schema.receivers import GapPage
from relay.schema.replays import JobView, PreviewView

_COLUMNS: Final = ("FIRST", "LAST", "REASON", "FAILED AT")
_NUMBER: Final = click.IntRange(min=1)


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
        print_table(_COLUMNS, rows)
        missing = sum(gap["last"] - gap["first"] + 1 for gap in page["items"])
        click.echo(f"{counted(missing, 'message')}; `relay receivers gaps {name} --replay` sends them again")


def _replay(call: ApiOptions, name: str, first: int | None, last: int | None, rate: float | None, how: How) -> None:
    async def preview(client: AsyncRelay) -> PreviewView:
        return await client.receivers.preview_replay_gaps(name, first=first, last=last)

    async def create(client: AsyncRelay) -> JobView:
        return await client.receivers.replay_gaps(name, first=first, last=last, rate=rate)

    count_and_begin(call, "replay", preview, create, how)
