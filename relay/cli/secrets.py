"""`relay secrets`: secrets that are encrypted at rest."""

from pathlib import Path
from typing import Any, Final

import click

from relay.cli.client import Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.table import output_option, print_json

_COUNTED: Final = ("looked_at", "outdated", "rewritten", "leaving")
_SHOWN: Final = 20


@click.group()
def secrets() -> None:
    """Re-encrypt secrets with the newest key."""


@secrets.command()
@click.option("--dry-run", is_flag=True, help="Only count them.")
@api_option
@config_option
@output_option
def reencrypt(dry_run: bool, api: str | None, config_file: Path | None, output: str) -> None:
    """Encrypt all secrets with the first key of RELAY_SECRETS_KEY, so that the others can be removed."""

    async def work(client: Client) -> dict[str, Any]:
        found = page = await client.reencrypt_secrets(dry_run=dry_run)
        while page["cursor"]:
            page = await client.reencrypt_secrets(page["cursor"], dry_run=dry_run)
            found |= {name: found[name] + page[name] for name in (*_COUNTED, "unreadable")}
        return {**found, "cursor": None}

    found = with_client(settings_from(config_file), api, work)
    if output == "json":
        print_json(found)
    else:
        _tell(found, dry_run=dry_run)
    raise SystemExit(1 if found["unreadable"] else 0)


def _tell(found: dict[str, Any], *, dry_run: bool) -> None:
    click.echo(f"{found['looked_at']} records, of which {found['outdated']} have secrets of older keys")
    click.echo("nothing was changed" if dry_run else f"{found['rewritten']} re-encrypted with the key {found['key']}")
    if found["leaving"]:
        click.echo(
            f"{found['leaving']} removed receivers still have some; keep the older keys until `relay receivers apply` "
            "awaits none of them"
        )
    for name in found["unreadable"][:_SHOWN]:
        click.echo(f"cannot be decrypted without its key: {name}; set its secrets again")
    if len(found["unreadable"]) > _SHOWN:
        click.echo(f"and {len(found['unreadable']) - _SHOWN} more")
