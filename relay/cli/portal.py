"""`relay portal`: links into the portal."""

from pathlib import Path
from typing import Any

import click

from relay.cli.client import Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json


@click.group()
def portal() -> None:
    """Create links to the portal of an owner."""


@portal.command()
@click.argument("owner")
@click.option("--hours", type=float, default=24, show_default=True, help="How long it is valid, at most 168.")
@click.option("--receiver", "receivers", multiple=True, help="Only this one of theirs. May be given more than once.")
@api_option
@config_option
@output_option
def link(
    owner: str, hours: float, receivers: tuple[str, ...], api: str | None, config_file: Path | None, output: str
) -> None:
    """Create a link to a page with the receivers of OWNER, which may be changed there."""
    wanted = {"owner": owner, "hours": hours} | ({"receivers": list(receivers)} if receivers else {})

    async def work(client: Client) -> Any:
        return await client.portal_link(wanted)

    made = with_client(settings_from(config_file), api, work)
    if output == "json":
        print_json(made)
        return
    click.echo(made["url"])
    shown = ", ".join(made["receivers"]) if made["receivers"] else "all of theirs"
    click.echo(f"  receivers of {owner!r}: {shown}; until {made['expires_at']}", err=True)
