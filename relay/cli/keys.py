"""`relay keys`: the keys of the API."""

import json
from pathlib import Path
from typing import Any, Final

import click

from relay.cli.client import Client, with_client
from relay.cli.config import api_option, config_option, settings_from
from relay.cli.entry_options import every_page
from relay.cli.table import output_option, print_json, print_table

_COLUMNS: Final = ("ID", "NAME", "SCOPES", "STATUS", "CREATED", "BY", "EXPIRES", "LAST USED", "OLD SECRET UNTIL")
_PAGE: Final = 1000


@click.group()
def keys() -> None:
    """Create, list, rotate and revoke keys of the API."""


@keys.command()
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    help="Its rights: ingest:SOURCE, read:SOURCE (a trailing * stands for anything), receiver:NAME, owner:ID,"
    " metrics, admin. May be given more than once.",
)
@click.option("--name", default="", help="Its purpose, for people.")
@click.option("--expires-in", help="How long it is valid, such as 30d. Default: for ever.")
@api_option
@config_option
@output_option
def create(
    scopes: tuple[str, ...], name: str, expires_in: str | None, api: str | None, config_file: Path | None, output: str
) -> None:
    """Create a key, and show it, only this once."""
    wanted = {"scopes": list(scopes), "name": name} | ({"expires_in": expires_in} if expires_in else {})
    _show_made(_call(config_file, api, "POST", "", wanted), output)


@keys.command("list")
@api_option
@config_option
@output_option
def list_(api: str | None, config_file: Path | None, output: str) -> None:
    """List all keys, newest first."""

    async def work(client: Client) -> list[Any]:
        async def page(cursor: str | None) -> Any:
            behind = [("cursor", cursor)] if cursor else []
            return await client.keys("GET", params=[("limit", str(_PAGE)), *behind])

        return await every_page(page)

    items = with_client(settings_from(config_file), api, work)
    if output == "json":
        print_json(items)
    else:
        print_table(_COLUMNS, [_row(item) for item in items])


@keys.command()
@click.argument("id")
@api_option
@config_option
@output_option
def revoke(id: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Reject the key from now on."""
    answer = _call(config_file, api, "DELETE", id)
    if output == "json":
        print_json(answer)
    else:
        click.echo(f"{answer['id']} is revoked: within two seconds no process accepts it")


@keys.command()
@click.argument("id")
@click.option("--overlap", default="1d", show_default=True, help="How long the old secret stays valid.")
@api_option
@config_option
@output_option
def rotate(id: str, overlap: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Give the key a new secret, and show it, only this once."""
    _show_made(_call(config_file, api, "POST", f"{id}/rotate", {"overlap": overlap}), output)


def _call(config_file: Path | None, api: str | None, method: str, path: str, said: Any = None) -> Any:
    body = None if said is None else json.dumps(said).encode()

    async def work(client: Client) -> Any:
        return await client.keys(method, path, body)

    return with_client(settings_from(config_file), api, work)


def _show_made(made: Any, output: str) -> None:
    if output == "json":
        print_json(made)
        return
    click.echo(made["key"])
    for name, value in _facts(made):
        click.echo(f"  {name:<18}{value}", err=True)
    click.echo("  It is not shown again. Commands take it from RELAY_API_KEY.", err=True)


def _facts(made: Any) -> list[tuple[str, str]]:
    old = [("old secret until", made["old_secret_until"])] if made["old_secret_until"] else []
    expires = made["expires_at"] or "never"
    return [("id", made["id"]), ("scopes", ", ".join(made["scopes"])), ("expires", expires), *old]


def _row(item: Any) -> tuple[str, ...]:
    return (
        item["id"],
        item["name"] or "-",
        ", ".join(item["scopes"]),
        item["status"],
        item["created_at"] or "-",
        item["created_by"],
        item["expires_at"] or "never",
        item["last_used_at"] or "-",
        item["old_secret_until"] or "-",
    )
