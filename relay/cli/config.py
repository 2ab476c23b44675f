"""`relay config`: the effective settings and their origins, a check of them, and the schema of receivers.yaml; `relay
presets`: what its entries may name in `preset`."""

import os
from collections.abc import Mapping
from pathlib import Path

import click

from relay.cli.options import CommandGroup, config_option, output_option, settings_from
from relay.cli.startup import refusals_at_start, roles_of
from relay.cli.table import print_json, print_table, show_as
from relay.config.own_address import AnsweringReceiver, AnswerUrls, answer_secrets, findings, own_url
from relay.config.plan import ROLES
from relay.config.presets import PRESET_KINDS, PresetKind, all_presets, find_preset
from relay.config.problems import raise_all
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ReceiversFile, load_receivers_file, receivers_schema
from relay.config.references import usable_variables
from relay.config.setting_layers import origins_of
from relay.config.settings import Settings
from relay.delivery.egress import blocked_endpoint
from relay.domain.topics import Topics


def print_refused(file: ReceiversFile, settings: Settings) -> None:
    """Print the entries that a relay with this environment would reject, and why."""
    for what, why in refusals(file, settings).items():
        click.echo(f"cannot be used with this environment: {what}: {why.removeprefix(f'{file.origin}: {what}.')}")


def verdict_on(file: ReceiversFile, settings: Settings) -> str:
    """One line: whether all entries of a well-formed file can be used with this environment."""
    counts = f"receivers: {len(file.receivers)}, sources: {len(file.sources)}"
    refused = len(refusals(file, settings))
    if not refused:
        return f"{file.origin}: ok, {counts}"
    return f"{file.origin}: {counts}; {refused} of these cannot be used with this environment"


def notes_on(receivers: Mapping[str, ReceiverEntry], settings: Settings) -> list[str]:
    """The problems that `relay run` would have with answer URLs, and URLs to which it would send nothing."""
    base = settings.public_url or own_url(settings.api_host, settings.api_port)
    answering = {
        name: AnsweringReceiver(one.post_endpoint, bool(one.status_endpoint or one.status_steps), one.payload == "thin")
        for name, one in receivers.items()
    }
    found = findings(settings, AnswerUrls(answer_secrets(settings), base), answering)
    blocked = ((name, blocked_endpoint(settings, one)) for name, one in receivers.items())
    return [*map(str, found), *(f"{name}: {why}" for name, why in blocked if why is not None)]


def refusals(file: ReceiversFile, settings: Settings) -> dict[str, str]:
    """As `ReceiversFile.refusals`, with the environment of this command."""
    return file.refusals(usable_variables(os.environ, settings.secrets_from))


@click.group(cls=CommandGroup)
def config() -> None:
    """Show and check the settings."""


@config.command()
@config_option
@output_option
def show(config_file: Path | None, output: str) -> None:
    """Show every setting, its value and its origin. Secrets are masked."""
    origins = origins_of(settings_from(config_file))
    found = [origin._asdict() for origin in origins]
    show_as(found, output, lambda _: print_table(("SETTING", "VALUE", "FROM"), origins))


@config.command()
@config_option
@click.option("--roles", help=f"Roles of the `relay run` to check, comma-separated: {', '.join(ROLES)}. Default: all.")
@output_option
def check(config_file: Path | None, roles: str | None, output: str) -> None:
    """Check the settings and the receivers file, as `relay run` does before it connects."""
    wanted = roles_of(roles)
    settings = settings_from(config_file)
    origins = origins_of(settings)
    given = sum(origin.source != "default" for origin in origins)
    is_default = any(origin.name == "receivers_file" and origin.source == "default" for origin in origins)
    is_there = not is_default or settings.receivers_file.exists()
    file = load_receivers_file(settings.receivers_file) if is_there else None
    raise_all(refusals_at_start(settings, wanted))
    # `relay receivers check` names the receivers that need one
    notes = notes_on({}, settings) if settings.answer_secret else []
    if output == "json":
        refused = refusals(file, settings) if file else {}
        counts = {"receivers": len(file.receivers), "sources": len(file.sources)} if file else {}
        known = {"file": str(file.origin) if file else None, **counts, "refused": refused, "notes": notes}
        print_json({"given": given, "defaults": len(origins) - given, **known})
        return
    click.echo(f"settings: ok, {given} set, {len(origins) - given} have their defaults")
    if file is None:
        click.echo(f"{settings.receivers_file} does not exist, so no receivers are declared in a file")
    else:
        click.echo(verdict_on(file, settings))
        print_refused(file, settings)
    for note in notes:
        click.echo(f"note: {note}")


@config.command()
@config_option
def asyncapi(config_file: Path | None) -> None:
    """Print the AsyncAPI 3.0 document of the topics, as /asyncapi.json has it."""
    from relay.api.asyncapi import asyncapi as document  # its imports take time, which few commands need

    print_json(document(Topics(settings_from(config_file).topic_prefix)))


@config.command()
def openapi() -> None:
    """Print the routes of the API, as /openapi.json has them: OpenAPI 3.1."""
    from relay.api.openapi.document import document
    from relay.api.routes import ROUTES

    print_json(document(ROUTES.values()))


@config.command()
def schema() -> None:
    """Print the JSON Schema of receivers.yaml."""
    print_json(receivers_schema())


@click.group(cls=CommandGroup)
def presets() -> None:
    """List and show presets: the part of an entry in receivers.yaml that is the same for all users of a system, such as
    a CI. An entry names one in `preset`, and its own fields override those of the preset."""


@presets.command("list")
@output_option
def list_presets(output: str) -> None:
    """List all presets."""
    found = [{"name": each.id, "for": each.kind, "about": each.about} for each in all_presets()]
    columns = ("NAME", "FOR", "ABOUT")
    show_as(found, output, lambda items: print_table(columns, [tuple(each.values()) for each in items]))


@presets.command("show")
@click.argument("name")
@click.option(
    "--for",
    "kind",
    type=click.Choice(PRESET_KINDS),
    help="Of a preset for both, the one to show as JSON: receiver or source.",
)
@output_option
def show_preset(name: str, kind: PresetKind | None, output: str) -> None:
    """Show the fields of the preset NAME, such as circleci, or circleci@1 for a certain version."""
    preset = find_preset(name, kind)
    found = {"name": preset.id, "for": preset.kind, "about": preset.about, "entry": preset.entry}
    show_as(found, output, lambda _: click.echo(preset.text, nl=False))
