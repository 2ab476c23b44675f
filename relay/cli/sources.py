"""`relay sources`: sources declared, listed, changed and removed over the API."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay.cli.config import api_option, config_option
from relay.cli.entry_options import (
    PAGE,
    asked,
    changes_of,
    every_page,
    fields_of,
    flat,
    from_option,
    match_option,
    remove,
    set_option,
    unset_option,
)
from relay.cli.table import output_option, print_json, print_table
from relay.domain.errors import UserError

if TYPE_CHECKING:
    from relay.cli.client import Client


@click.group()
def sources() -> None:
    """Declare, list, change and remove sources over the API. Sources of receivers.yaml are changed there."""


@sources.command(name="list")
@click.option("--declared-by", type=click.Choice(["file", "api"]), help="Only those from there.")
@api_option
@config_option
@output_option
def list_(declared_by: str | None, api: str | None, config_file: Path | None, output: str) -> None:
    """List all sources, and how results return to them."""
    narrowed = [("limit", str(PAGE))] + ([("declared_by", declared_by)] if declared_by else [])

    async def work(client: "Client") -> list[Any]:
        return await every_page(lambda cursor: client.sources(narrowed, cursor))

    items = asked(config_file, api, work)
    if output == "json":
        print_json(items)
        return
    print_table(("SOURCE", "DECLARED BY", "CALLBACK", "ANSWERS", "INBOUND", "REFUSED"), [_row(item) for item in items])


@sources.command()
@click.argument("source_id")
@api_option
@config_option
@output_option
def show(source_id: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Show the entry of SOURCE_ID. Secrets are masked."""

    async def work(client: "Client") -> Any:
        return await client.source(source_id)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
        return
    about = [("source_id", source_id), ("declared by", known["declared_by"]), ("refused", known["refused"])]
    for field, value in (*about, ("etag", known["etag"]), *(known["settings"] or {}).items()):
        if value not in (None, "", [], {}):
            click.echo(f"{field}: {flat(value)}")


@sources.command()
@click.argument("source_id")
@click.argument("callback", required=False)
@set_option
@from_option
@api_option
@config_option
@output_option
def create(
    source_id: str,
    callback: str | None,
    given: tuple[str, ...],
    document: str | None,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Declare SOURCE_ID, whose results are POSTed to the URL CALLBACK. The fields are those of receivers.yaml; a
    callback without a secret gets one, which is shown once. Give secrets with --from, as command lines can be seen."""
    fields = fields_of(document, given) | {"source_id": source_id}
    if callback is not None:
        more = fields.get("callback", {})
        if not isinstance(more, dict):
            raise UserError(f"CALLBACK is a URL, and the field callback is {more!r}: give only one of them")
        fields["callback"] = {**more, "url": callback}

    async def work(client: "Client") -> Any:
        return await client.declare_source(fields)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
        return
    click.echo(f"{source_id}: declared; etag {known['etag']}")
    if known["secret"]:
        click.echo(f"secret of its callback, shown only this once: {known['secret']}")


@sources.command()
@click.argument("source_id")
@set_option
@unset_option
@from_option
@match_option
@api_option
@config_option
@output_option
def patch(
    source_id: str,
    given: tuple[str, ...],
    unset: tuple[str, ...],
    document: str | None,
    tag: str | None,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Change fields of SOURCE_ID, which was declared over the API; the others stay unchanged."""
    fields = changes_of(document, given, unset)

    async def work(client: "Client") -> Any:
        return await client.change_source(source_id, fields, tag)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
    else:
        click.echo(f"{source_id}: changed; etag {known['etag']}")


@sources.command()
@click.argument("source_id")
@click.option("--dry-run", is_flag=True, help="Only print what will happen to its results.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@match_option
@api_option
@config_option
@output_option
def delete(
    source_id: str, dry_run: bool, yes: bool, tag: str | None, api: str | None, config_file: Path | None, output: str
) -> None:
    """Remove the entry of SOURCE_ID from the API. Its results are no longer POSTed."""

    def asking(dry_run: bool) -> Any:
        return asked(config_file, api, lambda client: client.remove_source(source_id, tag, dry_run=dry_run))

    known = remove(asking, _results, source_id, dry_run=dry_run, yes=yes)
    if output == "json":
        print_json(known)
        return
    click.echo(f"{source_id}: {'removed; ' if known['removed'] else ''}{_results(known)}")
    click.echo(known["results"]["then"])


def _row(item: Any) -> tuple[str, ...]:
    cells = (item["declared_by"], item["callback"], item["answers"], item["inbound"], item["refused"])
    return (item["source_id"], *(each or "-" for each in cells))


def _results(known: Any) -> str:
    return f"{known['results']['parked']['retries']} results are parked for its callback"
