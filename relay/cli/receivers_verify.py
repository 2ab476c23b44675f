"""`relay receivers verify`: makes a verification handshake with a receiver's URL, over the API."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay.cli.config import api_option, config_option
from relay.cli.entry_options import asked
from relay.cli.receivers_register import verified_in_words
from relay.cli.table import output_option, print_json

if TYPE_CHECKING:
    from relay.cli.client import Client


@click.command()
@click.argument("name")
@api_option
@config_option
@output_option
def verify(name: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Make the handshake of NAME's verification now, and print the result; exit code 1 if it failed. The relay also
    retries on its own, less and less often."""

    async def work(client: "Client") -> Any:
        return await client.verify_receiver(name)

    known = asked(config_file, api, work)
    seen = known["verification"]
    needed = seen["state"] != "not_required"
    if output == "json":
        print_json(known)
    elif not needed:
        click.echo(f"{name}: needs no verification (verification: none)")
    else:
        click.echo(f"{name}: {verified_in_words(seen)}")
        if seen["state"] == "verified" and not known["proved"]:
            click.echo(f"this handshake failed: {known['detail']}")
    if needed and not known["proved"]:
        raise click.exceptions.Exit(1)
