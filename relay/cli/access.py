"""`relay keys`, `relay portal` and `relay audit`: the keys of the API, links into the portal, and who changed what."""

import json
from typing import Final

import click

from relay.cli.api import ApiOptions, api_command
from relay.cli.options import cursor_option
from relay.cli.table import print_table
from relay.domain.audit import AuditLine
from relay.schema.keys import KeyView, NewKey
from relay.schema.operation import AuditPage
from relay.schema.sessions import NewLink
from relay.telemetry.redaction import escape_control

_COLUMNS: Final = ("ID", "NAME", "SCOPES", "STATUS", "CREATED", "BY", "EXPIRES", "LAST USED", "OLD SECRET UNTIL")
_AUDIT_COLUMNS: Final = ("AT", "WHO", "FROM", "WHAT", "WHOM", "OUTCOME", "FACTS")
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
    help="Scope: ingest:SOURCE, read:SOURCE (a trailing * stands for anything), receiver:NAME, owner:ID,"
    " metrics, admin; repeatable.",
)
@click.option("--name", default="", help="What the key is for.")
@click.option("--expires-in", help="How long the key is valid, such as 30d. Default: for ever.")
@api_command
def create(call: ApiOptions, scopes: tuple[str, ...], name: str, expires_in: str | None) -> None:
    """Create a key. It is shown only this once."""
    call.show(call.run(lambda client: client.keys.create(scopes, name=name, expires_in=expires_in)), _print_made)


@keys.command("list")
@api_command
def list_(call: ApiOptions) -> None:
    """List all keys, newest first."""
    found = call.every(lambda client: client.keys.list(limit=_PAGE))
    call.show(found, lambda items: print_table(_COLUMNS, map(_row, items)))


@keys.command()
@click.argument("id")
@api_command
def revoke(call: ApiOptions, id: str) -> None:
    """Revoke the key ID: every process rejects it within two seconds."""
    revoked = call.run(lambda client: client.keys.revoke(id))
    call.show(revoked, lambda key: click.echo(f"{key['id']} is revoked: every process rejects it within two seconds"))


@keys.command()
@click.argument("id")
@click.option("--overlap", default="1d", show_default=True, help="How long the old secret stays valid.")
@api_command
def rotate(call: ApiOptions, id: str, overlap: str) -> None:
    """Give the key ID a new secret. It is shown only this once."""
    call.show(call.run(lambda client: client.keys.rotate(id, overlap=overlap)), _print_made)


def _print_made(made: NewKey) -> None:
    click.echo(made["key"])
    for name, value in _facts(made):
        click.echo(f"  {name:<18}{value}", err=True)
    click.echo("  It is not shown again. Commands read it from RELAY_API_KEY.", err=True)


def _facts(made: NewKey) -> list[tuple[str, str]]:
    old = [("old secret until", made["old_secret_until"])] if made["old_secret_until"] else []
    expires = made["expires_at"] or "never"
    return [("id", made["id"]), ("scopes", ", ".join(made["scopes"])), ("expires", expires), *old]


def _row(item: KeyView) -> tuple[str, ...]:
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


@click.group()
def portal() -> None:
    """Create links to the portal of an owner, and print its texts."""


@portal.command()
@click.argument("owner")
@click.option(
    "--hours", type=float, default=24, show_default=True, help="Hours for which the link is valid, at most 168."
)
@click.option("--receiver", "receivers", multiple=True, help="Only this receiver of OWNER; repeatable.")
@api_command
def link(call: ApiOptions, owner: str, hours: float, receivers: tuple[str, ...]) -> None:
    """Create a link to the portal, where OWNER sees and changes its receivers."""
    made = call.run(lambda client: client.portal_link(owner, hours=hours, receivers=receivers or None))
    call.show(made, lambda link: _print_link(owner, link))


@portal.command()
def strings() -> None:
    """Print the texts of the portal as JSON. RELAY_PORTAL_STRINGS names a file that replaces some."""
    from relay.pages.portal_strings import texts  # here, because Jinja takes long to import

    click.echo(json.dumps({text: text for text in texts()}, indent=2, ensure_ascii=False))


def _print_link(owner: str, made: NewLink) -> None:
    click.echo(made["url"])
    shown = ", ".join(made["receivers"]) if made["receivers"] else "all of theirs"
    click.echo(f"  receivers of {owner!r}: {shown}; until {made['expires_at']}", err=True)


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of entries.")
@cursor_option
@api_command
def audit(call: ApiOptions, limit: int, cursor: str | None) -> None:
    """Show changes and rejected requests with their callers, newest first."""
    call.show(call.run(lambda client: client.audit(limit=limit, cursor=cursor)), _print_audit)


def _print_audit(page: AuditPage) -> None:
    print_table(_AUDIT_COLUMNS, map(_line, page["items"]))
    if page["cursor"]:
        click.echo(f"more with --cursor {page['cursor']}")


def _line(item: AuditLine) -> tuple[str, ...]:
    facts = ", ".join(f"{name}: {_fact(value)}" for name, value in item.facts.items())
    name = f" ({item.who_name})" if item.who_name else ""
    cells = (item.at, item.who + name, item.remote or "-", item.what, item.whom or "-", item.outcome, facts or "-")
    return tuple(map(escape_control, cells))


def _fact(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
