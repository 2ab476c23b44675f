"""Commands for the entries of receivers and sources over the API: their options, the fields that they read, and the
frames of `patch` and `delete`."""

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from relay.cli.api import ApiOptions, api_command
from relay.cli.options import confirm
from relay.config.strict_yaml import parse_mapping, parse_value
from relay.domain.errors import UserError
from relay.schema.receivers import ReceiverView, RemovalView, SourceRemovalView, SourceView

if TYPE_CHECKING:
    from relay.client import AsyncRelay

V = TypeVar("V", ReceiverView, SourceView)
R = TypeVar("R", RemovalView, SourceRemovalView)

from_option = click.option("--from", "document", metavar="FILE", help="File with fields, as JSON or YAML; - is stdin.")
set_option = click.option("--set", "given", multiple=True, metavar="FIELD=VALUE", help="Set a field; repeatable.")
unset_option = click.option("--unset", multiple=True, metavar="FIELD", help="Reset a field to its default; repeatable.")
match_option = click.option("--if-match", "tag", help="Fail unless this is its current etag.")


def patching(
    group: click.Group,
    argument: str,
    help: str,
    update: "Callable[[AsyncRelay], Callable[..., Awaitable[V]]]",
    describe: Callable[[V], str],
) -> None:
    """Adds `patch` to the group. `update`: the method of the client. `describe`: the changed entry, between "changed; "
    and its etag."""

    @group.command("patch", help=help)
    @click.argument(argument, metavar=argument.upper())
    @set_option
    @unset_option
    @from_option
    @match_option
    @api_command
    def patch(
        call: ApiOptions,
        given: tuple[str, ...],
        unset: tuple[str, ...],
        document: str | None,
        tag: str | None,
        **named: str,
    ) -> None:
        fields, name = fields_of(document, given, unset), named[argument]
        if not fields:
            raise UserError("nothing to change: give --set, --unset or --from")
        known = call.run(lambda client: update(client)(name, fields, etag=tag))
        call.show(known, lambda known: click.echo(f"{name}: changed; {describe(known)}etag {known['etag']}"))
        if not call.is_json:
            print_warnings(cast(Mapping[str, Any], known).get("warnings", ()))


def print_warnings(texts: Iterable[str]) -> None:
    for text in texts:
        click.echo(f"warning: {text}", err=True)


def deleting(
    group: click.Group,
    argument: str,
    help: str,
    leaves: str,
    delete: "Callable[[AsyncRelay], Callable[..., Awaitable[R]]]",
    describe: Callable[[R], tuple[str, str]],
) -> None:
    """Adds `delete` to the group: previews, asks, then removes. `leaves`: the entry's messages or results. `describe`:
    how many of these there are, and what happens to them."""

    @group.command("delete", help=help)
    @click.argument(argument, metavar=argument.upper())
    @click.option("--dry-run", is_flag=True, help=f"Only print what will happen to its {leaves}.")
    @click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
    @match_option
    @api_command
    def command(call: ApiOptions, dry_run: bool, yes: bool, tag: str | None, **named: str) -> None:
        name = named[argument]

        def removed(*, dry_run: bool) -> R:
            return call.run(lambda client: delete(client)(name, etag=tag, dry_run=dry_run))

        known = removed(dry_run=True)
        if not dry_run:
            confirm(f"{name}: {describe(known)[0]}. Remove it?", yes=yes)
            known = removed(dry_run=False)
        call.show(known, lambda known: _print_removal(name, known["removed"], *describe(known)))


def _print_removal(name: str, removed: bool, left: str, then: str) -> None:
    click.echo(f"{name}: {'removed; ' if removed else ''}{left}")
    click.echo(then)


def print_fields(*fields: tuple[str, object]) -> None:
    """A line for each field that has a value, the first of those with the same name."""
    seen = set[str]()
    for name, value in fields:
        if name not in seen and value not in (None, "", [], {}):
            click.echo(f"{name}: {flat(value)}")
        seen.add(name)


def fields_of(document: str | None, given: tuple[str, ...], unset: tuple[str, ...] = ()) -> dict[str, object]:
    """Fields from a JSON or YAML mapping in a file, or on stdin (`-`), and `field=value` of the command line, which
    takes precedence. A value is YAML; `retry.cap=2h` is a field within another. Raises UserError."""
    fields: dict[str, object] = {str(name): value for name, value in _mapping(document).items()}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise UserError(f"--set {text}: write it as field=value, as --set rate_limit=100")
        try:
            found = parse_value(value)
        except UserError as error:
            raise UserError(f"--set {name}=...: {error}") from None
        _put(fields, name, found)
    for name in unset:
        _put(fields, name, None)
    for name, found in fields.items():
        try:
            json.dumps(found, default=str)
        except (TypeError, ValueError):  # for example an alias of the value that contains it
            raise UserError(f"{name}: the value cannot be written as JSON") from None
    return fields


def _mapping(document: str | None) -> dict[object, object]:
    if document is None:
        return {}
    return dict(parse_mapping(text_in(document, "--from"), f"--from {document}"))


def text_in(source: str, option: str) -> str:
    """The text of a file, or of stdin (`-`). Raises UserError."""
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"{option} {source}: cannot be read: {why}") from None


def _put(fields: dict[str, object], name: str, value: object) -> None:
    *outer, last = name.split(".")
    here = fields
    for step in outer:
        inner = here.setdefault(step, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {name}: {step} is not a mapping")
        here = inner
    here[last] = value


def flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={flat(inner)}" for name, inner in value.items() if inner not in (None, [], {}))
    if isinstance(value, list):
        return ", ".join(map(flat, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
