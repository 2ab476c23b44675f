"""`relay sources`: sources declared, listed, changed and removed over the API."""

from typing import Literal

import click

from relay.cli.api import PAGE, ApiOptions, api_command
from relay.cli.entries import deleting, fields_of, from_option, patching, print_fields, set_option
from relay.cli.options import CommandGroup
from relay.cli.table import cells
from relay.domain.errors import UserError
from relay.domain.identity import PROBE
from relay.schema.receivers import NewSourceView, SourceItem, SourceRemovalView, SourceView

_COLUMNS = ("SOURCE", "DECLARED BY", "CALLBACK", "ANSWERS", "INBOUND", "REFUSED")


@click.group(cls=CommandGroup)
def sources() -> None:
    """Declare, list, change and remove sources over the API. Sources of receivers.yaml are changed there."""


@sources.command(name="list")
@click.option("--declared-by", type=click.Choice(["file", "api"]), help="Only sources declared there.")
@api_command
def list_(call: ApiOptions, declared_by: Literal["file", "api"] | None) -> None:
    """List all sources, and how results return to them."""
    call.show_list(
        lambda client: client.sources.list(declared_by=declared_by, limit=PAGE),
        _COLUMNS,
        _row,
        hides=lambda item: item["source_id"] == PROBE,
    )


@sources.command()
@click.argument("source_id")
@api_command
def show(call: ApiOptions, source_id: str) -> None:
    """Show the entry of SOURCE_ID. Secrets are masked."""
    call.show(call.run(lambda client: client.sources.get(source_id)), _print)


def _print(known: SourceView) -> None:
    about = [("source_id", known["source_id"]), ("declared by", known["declared_by"]), ("refused", known["refused"])]
    print_fields(*about, ("etag", known["etag"]), *(known["settings"] or {}).items())


@sources.command()
@click.argument("source_id")
@click.argument("callback", required=False)
@set_option
@from_option
@api_command
def create(
    call: ApiOptions, source_id: str, callback: str | None, given: tuple[str, ...], document: str | None
) -> None:
    """Declare SOURCE_ID, whose results are POSTed to the URL CALLBACK. The fields are those of receivers.yaml; a
    callback without a secret gets one, which is shown once. Give secrets with --from: other users can see
    command lines."""
    fields = {name: value for name, value in fields_of(document, given).items() if name != "source_id"}
    if callback is not None:
        more = fields.get("callback", {})
        if not isinstance(more, dict):
            raise UserError(f"CALLBACK is a URL, and the field callback is {more!r}: give only one of them")
        fields["callback"] = {**more, "url": callback}
    call.show(call.run(lambda client: client.sources.create(source_id, **fields)), _print_declared)


def _print_declared(known: NewSourceView) -> None:
    click.echo(f"{known['source_id']}: declared; etag {known['etag']}")
    if known["secret"]:
        click.echo(f"secret of its callback, shown only this once: {known['secret']}")


def _row(item: SourceItem) -> tuple[str, ...]:
    return cells(item, "source_id", "declared_by", "callback", "answers", "inbound", "refused")


def _results(known: SourceRemovalView) -> tuple[str, str]:
    return f"{known['results']['parked']['retries']} results are parked for its callback", known["results"]["then"]


patching(
    sources,
    "source_id",
    "Change fields of SOURCE_ID, which was declared over the API; the others stay unchanged.",
    lambda client: client.sources.update,
    lambda _known: "",
)
deleting(
    sources,
    "source_id",
    "Remove the entry of SOURCE_ID from the API. Its results are no longer POSTed.",
    "results",
    lambda client: client.sources.delete,
    _results,
)
