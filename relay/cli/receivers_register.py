"""`relay receivers create|show|patch|delete`, and the list of all that are registered: receivers over the API."""

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

if TYPE_CHECKING:
    from relay.cli.client import Client


@click.command()
@click.argument("name")
@click.argument("post_endpoint", required=False)
@click.option("--owner", help="Id of its owner.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@set_option
@from_option
@api_option
@config_option
@output_option
def create(
    name: str,
    post_endpoint: str | None,
    owner: str | None,
    labels: tuple[str, ...],
    given: tuple[str, ...],
    document: str | None,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Register NAME with the URL POST_ENDPOINT. The fields are those of receivers.yaml; without a secret it gets
    one, which is shown once. Give secrets with --from, as command lines can be seen."""
    fields = fields_of(document, given) | {"name": name}
    if post_endpoint is not None:
        fields["post_endpoint"] = post_endpoint
    if owner is not None:
        fields["owner"] = owner
    for label in labels:
        label_name, _, value = label.partition("=")
        fields.setdefault("labels", {})[label_name] = value

    async def work(client: "Client") -> Any:
        return await client.register(fields)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
        return
    click.echo(f"{name}: registered, in {_lane(known)}")
    if known["secret"]:
        click.echo(f"secret, shown only this once: {known['secret']}")


@click.command()
@click.argument("name")
@api_option
@config_option
@output_option
def show(name: str, api: str | None, config_file: Path | None, output: str) -> None:
    """Show the owner, effective settings and health of NAME. Secrets are masked."""

    async def work(client: "Client") -> Any:
        return await client.endpoint(name)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
        return
    labels = ", ".join(f"{label}={value}" for label, value in known["labels"].items())
    about = [("name", name), ("declared by", known["declared_by"]), ("owner", known["owner"]), ("labels", labels)]
    proved = verified_in_words(known["verification"]) if known["verification"] else None
    about += [("condition", known["condition"]), ("verification", proved)]
    shown = [*about, ("etag", known["etag"]), *(known["settings"] or {}).items()]
    seen: set[str] = set()
    for field, value in shown:
        if field not in seen and value not in (None, "", [], {}):
            click.echo(f"{field}: {flat(value)}")
        seen.add(field)


@click.command()
@click.argument("name")
@set_option
@unset_option
@from_option
@match_option
@api_option
@config_option
@output_option
def patch(
    name: str,
    given: tuple[str, ...],
    unset: tuple[str, ...],
    document: str | None,
    tag: str | None,
    api: str | None,
    config_file: Path | None,
    output: str,
) -> None:
    """Change fields of NAME, which was registered over the API; the others stay unchanged."""
    fields = changes_of(document, given, unset)

    async def work(client: "Client") -> Any:
        return await client.change_receiver(name, fields, tag)

    known = asked(config_file, api, work)
    if output == "json":
        print_json(known)
    else:
        click.echo(f"{name}: changed; in {_lane(known)}; etag {known['etag']}")


@click.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only print what will happen to its messages.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@match_option
@api_option
@config_option
@output_option
def delete(
    name: str, dry_run: bool, yes: bool, tag: str | None, api: str | None, config_file: Path | None, output: str
) -> None:
    """Remove NAME, which was registered over the API. Messages that it has accepted are finished first."""

    def asking(dry_run: bool) -> Any:
        return asked(config_file, api, lambda client: client.remove_receiver(name, tag, dry_run=dry_run))

    known = remove(asking, _messages, name, dry_run=dry_run, yes=yes)
    if output == "json":
        print_json(known)
        return
    click.echo(f"{name}: {'removed; ' if known['removed'] else ''}{_messages(known)}")
    click.echo(known["messages"]["then"])


def list_registered(
    config_file: Path | None,
    api: str | None,
    output: str,
    narrowed: list[tuple[str, str]],
) -> None:
    """All receivers that the API lists, narrowed by its parameters."""

    async def work(client: "Client") -> list[Any]:
        return await every_page(lambda cursor: client.registered([*narrowed, ("limit", str(PAGE))], cursor))

    items = asked(config_file, api, work)
    if output == "json":
        print_json(items)
        return
    columns = ("NAME", "CONDITION", "DECLARED BY", "OWNER", "LABELS", "LANE", "POST_ENDPOINT")
    print_table(columns, [_row(item) for item in items])


def _row(item: Any) -> tuple[str, ...]:
    labels = ",".join(f"{name}={value}" for name, value in item["labels"].items())
    cells = (item["declared_by"], item["owner"], labels, item["lane"], item["post_endpoint"])
    return (item["name"], item["condition"], *(each or "-" for each in cells))


def _messages(known: Any) -> str:
    messages = known["messages"]
    lane, parked = messages["in_lane"], messages["parked"]
    where = "its partition of the shared lane, with its neighbours'" if lane["lane"] == "shared" else "its lane"
    return f"{lane['unfinished']} unfinished in {where}, {parked['retries'] + parked['polls']} parked"


def verified_in_words(seen: dict[str, Any]) -> str:
    """The verification status of a receiver."""
    match seen["state"]:
        case "verified":
            rate = f", for {seen['allowed_rate']} requests a minute" if seen["allowed_rate"] else ""
            return f"verified by {seen['kind']} at {seen['verified_at']}{rate}"
        case "failed":
            again = f"retried at {seen['next_try_at']}" if seen["next_try_at"] else "not retried automatically"
            return f"not verified by {seen['kind']}: {seen['detail']}; {again}"
        case "pending":
            return f"not verified by {seen['kind']} yet"
        case _:
            return "not required"


def _lane(known: Any) -> str:
    return "the shared lane" if known["settings"]["lane"] == "shared" else "a lane of its own"
