"""`relay secrets`: secrets that are encrypted at rest."""

from typing import Final

import click

from relay.cli.api import ApiOptions, api_command
from relay.client import AsyncRelay
from relay.schema.operation import ReencryptionPage

_PAGE: Final = 200
_SHOWN: Final = 20


@click.group()
def secrets() -> None:
    """Re-encrypt secrets with the newest key."""


@secrets.command()
@click.option("--dry-run", is_flag=True, help="Only count them.")
@api_command
def reencrypt(call: ApiOptions, dry_run: bool) -> None:
    """Encrypt all secrets with the first key of RELAY_SECRETS_KEY, so that the others can be removed."""

    async def work(client: AsyncRelay) -> ReencryptionPage:
        found = page = await client.reencrypt(limit=_PAGE, dry_run=dry_run)
        while page["cursor"]:
            page = await client.reencrypt(limit=_PAGE, cursor=page["cursor"], dry_run=dry_run)
            found = _together(found, page)
        return {**found, "cursor": None}

    found = call.run(work)
    call.show(found, lambda found: _print(found, dry_run=dry_run))
    raise SystemExit(1 if found["unreadable"] else 0)


def _together(one: ReencryptionPage, other: ReencryptionPage) -> ReencryptionPage:
    return {
        **one,
        "looked_at": one["looked_at"] + other["looked_at"],
        "outdated": one["outdated"] + other["outdated"],
        "rewritten": one["rewritten"] + other["rewritten"],
        "unreadable": one["unreadable"] + other["unreadable"],
        "leaving": one["leaving"] + other["leaving"],
    }


def _print(found: ReencryptionPage, *, dry_run: bool) -> None:
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
