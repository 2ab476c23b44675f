"""Options that commands share which declare something over the API, and the fields they read."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import yaml

from relay.cli.config import settings_from
from relay.config.strict_yaml import parse_mapping
from relay.domain.errors import UserError

if TYPE_CHECKING:
    from relay.cli.client import Client

PAGE: Final = 500
from_option = click.option("--from", "document", metavar="FILE", help="Fields, as JSON or YAML; - is stdin.")
set_option = click.option("--set", "given", multiple=True, metavar="FIELD=VALUE", help="A field; repeatable.")
unset_option = click.option("--unset", multiple=True, metavar="FIELD", help="Back to its default; repeatable.")
match_option = click.option("--if-match", "tag", help="Only if its etag is this one.")


def asked(
    config_file: Path | None, api: str | None, work: "Callable[[Client], Awaitable[Any]]", **patience: float
) -> Any:
    """The result of `work` with a client of the API. `patience_s`: a request's timeout, if not the usual one."""
    from relay.cli.client import with_client  # commands that only read a file need no HTTP client

    return with_client(settings_from(config_file), api, work, **patience)


async def every_page(ask: Callable[[str | None], Awaitable[Any]]) -> list[Any]:
    """The items of all pages. `ask`: returns the page after a cursor."""
    page = await ask(None)
    found = list(page["items"])
    while page["cursor"] is not None:
        page = await ask(page["cursor"])
        found += page["items"]
    return found


def fields_of(document: str | None, given: tuple[str, ...], unset: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fields from a JSON or YAML mapping in a file, or on stdin (`-`), and `field=value` of the command line, which
    takes precedence. A value is YAML; `retry.cap=2h` is a field within another. Raises UserError."""
    fields: dict[str, Any] = {str(name): value for name, value in _mapping(document).items()}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise UserError(f"--set {text}: write it as field=value, as --set rate_limit=100")
        try:
            _put(fields, name, yaml.safe_load(value))
        except yaml.YAMLError:
            raise UserError(f"--set {name}=...: the value is not YAML; put it in quotes") from None
    for name in unset:
        _put(fields, name, None)
    return fields


def changes_of(document: str | None, given: tuple[str, ...], unset: tuple[str, ...]) -> dict[str, Any]:
    """The fields to change. Raises UserError if there are none."""
    fields = fields_of(document, given, unset)
    if not fields:
        raise UserError("nothing to change: give --set, --unset or --from")
    return fields


def _mapping(document: str | None) -> dict[object, object]:
    if document is None:
        return {}
    try:
        text = sys.stdin.read() if document == "-" else Path(document).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--from {document}: cannot be read: {getattr(error, 'strerror', 'it is not UTF-8')}") from None
    return dict(parse_mapping(text, f"--from {document}"))


def _put(fields: dict[str, Any], name: str, value: object) -> None:
    *outer, last = name.split(".")
    here = fields
    for step in outer:
        inner = here.setdefault(step, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {name}: {step} is no mapping")
        here = inner
    here[last] = value


def remove(
    asking: Callable[[bool], Any], describe: Callable[[Any], str], name: str, *, dry_run: bool, yes: bool
) -> dict[str, Any]:
    """Preview, confirm unless `yes`, then remove. `asking`: returns the API's response to a removal, which may be a
    dry run. `describe`: describes it for people."""
    known = asking(True)
    if not dry_run:
        if not yes:
            confirm(f"{name}: {describe(known)}. Remove it?")
        known = asking(False)
    return dict(known)


def confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise UserError(f"{question} Say so with --yes")
    if not click.confirm(question):
        raise click.Abort


def flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={flat(inner)}" for name, inner in value.items() if inner not in (None, [], {}))
    if isinstance(value, list):
        return ", ".join(map(flat, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
