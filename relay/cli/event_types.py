"""`relay events`: applies, lists, shows and deletes the event types of the catalogue over the API."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from relay.cli.api import PAGE, ApiOptions, api_command
from relay.cli.options import FILE, ListingGroup, confirm
from relay.cli.table import print_json
from relay.config.problems import raise_all, unknown
from relay.config.strict_yaml import read_mapping
from relay.domain.control_key import encode_value
from relay.domain.errors import UserError
from relay.domain.event_type import EventTypeEntry, SchemaError, check_event_type, check_type_name
from relay.schema.messages import EventTypeView

if TYPE_CHECKING:
    from relay.client import AsyncRelay

_ROOT: Final = "event_types"
_FIELDS: Final = EventTypeEntry.__struct_fields__


@click.group(cls=ListingGroup)
def events() -> None:
    """Apply, list, show and delete the event types of the catalogue. Without COMMAND: `list`."""


@events.command()
@click.argument("file", type=FILE)
@click.option("--prune", is_flag=True, help="Delete the event types that the file does not have.")
@click.option("--dry-run", is_flag=True, help="Only check the file, and show what would change.")
@api_command
def apply(call: ApiOptions, file: Path, prune: bool, dry_run: bool) -> None:
    """Declare the event types of the YAML FILE: under event_types, each with description, deprecated and versions."""
    wanted = load_event_types(file)
    changes = call.run(lambda client: _apply(client, wanted, prune=prune, dry_run=dry_run))
    if call.is_json:
        print_json({"applied": not dry_run, **changes})
        return
    for what, names in changes.items():
        for name in names:
            click.echo(f"{what}: {name}")
    if not any(changes.values()):
        click.echo("nothing to change")
    if dry_run:
        click.echo("not applied: dry run")


async def _apply(
    client: "AsyncRelay", wanted: dict[str, EventTypeEntry], *, prune: bool, dry_run: bool
) -> dict[str, list[str]]:
    known = {each["type"]: each async for each in client.event_types.list(limit=PAGE)}
    entries = {name: msgspec.json.decode(encode_value(entry)) for name, entry in wanted.items()}
    added = [name for name in entries if name not in known]
    changed = [name for name, entry in entries.items() if name in known and known[name] != {"type": name, **entry}]
    removed = sorted(known.keys() - entries.keys()) if prune else []
    if not dry_run:
        for name in (*added, *changed):
            await client.event_types.put(name, **entries[name])
        for name in removed:
            await client.event_types.delete(name)
    return {"added": added, "changed": changed, "removed": removed}


def load_event_types(file: Path) -> dict[str, EventTypeEntry]:
    """The event types of a file by name. Raises UserError that names the place."""
    document = read_mapping(file)
    types = document.get(_ROOT) or {}
    if document.keys() - {_ROOT} or not isinstance(types, dict):
        raise UserError(f"{file}: write the event types under {_ROOT}, by name, and nothing else")
    return {name: _entry(f"{file}: {_ROOT}.{name}", name, raw) for name, raw in types.items()}


def _entry(place: str, name: str, raw: object) -> EventTypeEntry:
    if isinstance(raw, dict):
        raise_all(f"{place}.{field}: {unknown('field', str(field), _FIELDS)}" for field in raw if field not in _FIELDS)
    try:
        check_type_name(name)
        entry = msgspec.convert({} if raw is None else raw, EventTypeEntry)
        check_event_type(entry)
    except SchemaError as error:
        raise UserError(f"{place}{error.pointer}: {error.detail}") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{place}: {error}") from None
    return entry


@events.command(name="list")
@api_command
def list_(call: ApiOptions) -> None:
    """List the event types."""
    columns = ("TYPE", "VERSIONS", "DEPRECATED", "DESCRIPTION")
    call.show_list(lambda client: client.event_types.list(limit=PAGE), columns, _row)


def _row(item: EventTypeView) -> tuple[str, ...]:
    versions = ", ".join(str(each["version"]) for each in item["versions"]) or "-"
    return item["type"], versions, "yes" if item["deprecated"] else "no", item["description"].partition("\n")[0]


@events.command()
@click.argument("type")
@api_command
def show(call: ApiOptions, type: str) -> None:
    """Show TYPE with its schemas and examples, as JSON."""
    print_json(call.run(lambda client: client.event_types.get(type)))


@events.command()
@click.argument("type")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@api_command
def delete(call: ApiOptions, type: str, yes: bool) -> None:
    """Delete TYPE. Its messages are no longer checked."""
    confirm(f"Delete the event type {type}?", yes=yes)
    deleted = call.run(lambda client: client.event_types.delete(type))
    call.show(deleted, lambda found: click.echo(f"{found['type']}: deleted"))
