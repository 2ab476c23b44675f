"""`relay receivers rotate`: a new signing secret for a receiver, over the API."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay.cli.config import api_option, config_option
from relay.cli.entry_options import asked, match_option
from relay.cli.table import output_option, print_json
from relay.domain.errors import UserError

if TYPE_CHECKING:
    from relay.cli.client import Client


@click.command()
@click.argument("name")
@click.option("--grace", default="1d", show_default=True, help="How long the former secret signs, too; 0: not at all.")
@click.option(
    "--secret-from", "source", metavar="FILE", help="The new secret, in a file; - is stdin. Default: a generated one."
)
@match_option
@api_option
@config_option
@output_option
def rotate(
    name: str, grace: str, source: str | None, tag: str | None, api: str | None, config_file: Path | None, output: str
) -> None:
    """Give NAME, which was registered over the API, a new signing secret, and show it, only this once."""
    wanted = {"grace": grace} | ({} if source is None else {"secret": _secret_in(source)})

    async def work(client: "Client") -> Any:
        return await client.rotate_receiver(name, wanted, tag)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
        return
    former = known["former_until"]
    click.echo(f"{name}: the former secret signs {f'along until {former}' if former else 'no longer'}")
    if known["secret"]:
        click.echo(f"secret, shown only this once: {known['secret']}")
    if known["public_key"]:
        click.echo(f"public key: {known['public_key']}")


def _secret_in(source: str) -> str:
    try:
        return (sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"--secret-from {source}: cannot be read: {why}") from None
