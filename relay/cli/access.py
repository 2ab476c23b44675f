"""`relay keys`, `portal`, `audit`, `erase` and `secrets`: the keys of the API, links into the portal, who changed what,
which payloads are erased, and the key that secrets are encrypted with."""

import json
from typing import Final, cast

import click

from relay.cli.api import PAGE, ApiOptions, api_command
from relay.cli.options import CommandGroup, FiniteRange, WholeRange, confirm, cursor_option
from relay.cli.table import cells
from relay.client import AsyncRelay
from relay.domain.audit import AuditLine
from relay.domain.errors import UserError
from relay.schema.access import KeyView, NewKey, NewLink
from relay.schema.operation import ErasureView, NewErasureView, ReencryptionPage
from relay.telemetry.redaction import escape_control

_COLUMNS: Final = ("ID", "NAME", "SCOPES", "STATUS", "CREATED", "BY", "EXPIRES", "LAST USED", "OLD SECRET UNTIL")
_PAGE: Final = 1000
_RECORDS: Final = 200
_MOST_NAMED: Final = 20


@click.group(cls=CommandGroup)
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
    call.show_list(lambda client: client.keys.list(limit=_PAGE), _COLUMNS, _row)


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
        *cells(item, "id", "name"),
        ", ".join(item["scopes"]),
        *cells(item, "status", "created_at", "created_by"),
        item["expires_at"] or "never",
        *cells(item, "last_used_at", "old_secret_until"),
    )


@click.group(cls=CommandGroup)
def portal() -> None:
    """Create links to the portal of an owner, and print its texts."""


@portal.command()
@click.argument("owner")
@click.option(
    "--hours",
    type=FiniteRange(0, 168, min_open=True),
    default=24,
    show_default=True,
    help="Hours for which the link is valid, at most 168.",
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
@click.option("--limit", type=WholeRange(1, 1000), default=50, show_default=True, help="Maximum number of entries.")
@cursor_option
@api_command
def audit(call: ApiOptions, limit: int, cursor: str | None) -> None:
    """Show changes and rejected requests with their callers, newest first."""
    page = call.run(lambda client: client.audit(limit=limit, cursor=cursor))
    call.show_page(page, ("AT", "WHO", "FROM", "WHAT", "WHOM", "OUTCOME", "FACTS"), _line)


def _line(item: AuditLine) -> tuple[str, ...]:
    facts = ", ".join(f"{name}: {_fact(value)}" for name, value in item.facts.items())
    name = f" ({item.who_name})" if item.who_name else ""
    cells = (item.at, item.who + name, item.remote or "-", item.what, item.whom or "-", item.outcome, facts or "-")
    return tuple(map(escape_control, cells))


def _fact(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


@click.command()
@click.argument("message_id", required=False)
@click.option("--source", help="Source of MESSAGE_ID; without MESSAGE_ID, all messages of this source.")
@click.option("--receiver", help="All deliveries to this receiver.")
@click.option("--list", "list_", is_flag=True, help="Only list the erasures in force.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@api_command
def erase(
    call: ApiOptions, message_id: str | None, source: str | None, receiver: str | None, list_: bool, yes: bool
) -> None:
    """Erase the payloads of messages that were received so far. Unfinished deliveries end as discarded.

    \b
    relay erase --source github my-first
    relay erase --source github
    relay erase --receiver ci
    """
    if list_:
        columns = ("MADE", "ID", "OF", "BY")
        call.show_list(lambda client: client.erasures(limit=PAGE), columns, _erasure)
        return
    if (source is None) == (receiver is None) or (receiver is not None and message_id is not None):
        raise UserError("give --source, or --source and MESSAGE_ID, or --receiver")
    what = (
        f"message {message_id} of {source}"
        if message_id
        else f"{'source' if source else 'receiver'} {source or receiver}"
    )
    confirm(f"Erase the payloads of {what}? This cannot be undone.", yes=yes)
    made = call.run(lambda client: client.erase(source_id=source, message_id=message_id, receiver=receiver))
    call.show(made, _print_erased)


def _print_erased(made: NewErasureView) -> None:
    found = made["in_history"]
    where = "the history deletes them within two hours" if found is None else f"{found} deleted from the history"
    click.echo(f"{made['id']}: payloads of {_of(made)} are erased; {where}")
    if made["cancels"] is not None:
        click.echo(f"  {made['cancels'].rpartition('/')[2]}: the job that cancels what was not sent yet")
    for each in made["remains"]:
        until = each["until"] or "they are sent or discarded, and the topic is compacted"
        click.echo(f"  records remain on {each['topic']} until {until}")


def _erasure(erasure: ErasureView) -> tuple[str, ...]:
    return erasure["made_at"] or "-", erasure["id"], _of(erasure), erasure["by"]


def _of(erasure: ErasureView | NewErasureView) -> str:
    if erasure["receiver"] is not None:
        return f"receiver {erasure['receiver']}"
    message = "" if erasure["message_id"] is None else f"/{erasure['message_id']}"
    return f"source {erasure['source_id']}{message}"


@click.group(cls=CommandGroup)
def secrets() -> None:
    """Re-encrypt secrets with the newest key."""


@secrets.command()
@click.option("--dry-run", is_flag=True, help="Only count them.")
@api_command
def reencrypt(call: ApiOptions, dry_run: bool) -> None:
    """Encrypt all secrets with the first key of RELAY_SECRETS_KEY, so that the others can be removed."""

    async def work(client: AsyncRelay) -> ReencryptionPage:
        found = page = await client.reencrypt(limit=_RECORDS, dry_run=dry_run)
        while page["cursor"]:
            page = await client.reencrypt(limit=_RECORDS, cursor=page["cursor"], dry_run=dry_run)
            found = _together(found, page)
        return {**found, "cursor": None}

    found = call.run(work)
    call.show(found, lambda found: _print_reencrypted(found, dry_run=dry_run))
    raise SystemExit(1 if found["unreadable"] else 0)


def _together(one: ReencryptionPage, other: ReencryptionPage) -> ReencryptionPage:
    names: Final = ("looked_at", "outdated", "rewritten", "unreadable", "leaving")
    return cast(ReencryptionPage, {**one, **{name: one[name] + other[name] for name in names}})  # type: ignore[operator]


def _print_reencrypted(found: ReencryptionPage, *, dry_run: bool) -> None:
    click.echo(f"{found['looked_at']} records, of which {found['outdated']} have secrets of older keys")
    click.echo("nothing was changed" if dry_run else f"{found['rewritten']} re-encrypted with the key {found['key']}")
    if found["leaving"]:
        click.echo(
            f"{found['leaving']} removed receivers still have some; keep the older keys until `relay receivers apply` "
            "awaits none of them"
        )
    for name in found["unreadable"][:_MOST_NAMED]:
        click.echo(f"cannot be decrypted without its key: {name}; set its secrets again")
    if len(found["unreadable"]) > _MOST_NAMED:
        click.echo(f"and {len(found['unreadable']) - _MOST_NAMED} more")
