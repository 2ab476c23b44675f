"""`relay config`: the settings in force and where they came from, a check of them, and the schema of receivers.yaml."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from relay.cli.table import output_option, print_json, print_table
from relay.config.own_address import check_exposure, check_key
from relay.config.receivers_file import ReceiversFile, load_receivers_file, receivers_schema
from relay.config.references import usable_variables
from relay.config.settings import CONFIG_FILE, Settings, load_settings, sources_of
from relay.domain.errors import UserError

config_option = click.option(
    "--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="YAML file with settings."
)

api_option = click.option("--api", help="URL of the relay's API. Default: RELAY_API_URL, or this machine's.")


def settings_from(config_file: Path | None) -> Settings:
    """The settings of this process. Raises UserError."""
    return load_settings({CONFIG_FILE: config_file}, os.environ)


def tell_refused(file: ReceiversFile, settings: Settings) -> None:
    """Say on stdout which entries a relay with this environment would refuse, and why."""
    for what, why in refusals(file, settings).items():
        click.echo(f"refused with this environment: {what}: {why.removeprefix(f'{file.origin}: {what}.')}")


def refusals(file: ReceiversFile, settings: Settings) -> dict[str, str]:
    """As `ReceiversFile.refusals`, with the environment of this command."""
    return file.refusals(usable_variables(os.environ, settings.secrets_from))


@click.group()
def config() -> None:
    """Look at the settings."""


@config.command()
@config_option
@output_option
def show(config_file: Path | None, output: str) -> None:
    """Show every setting, its value, and where it came from. Secrets are masked."""
    origins = sources_of({CONFIG_FILE: config_file}, os.environ)
    if output == "json":
        print_json([origin._asdict() for origin in origins])
    else:
        print_table(("SETTING", "VALUE", "FROM"), origins)


@config.command()
@config_option
@output_option
def check(config_file: Path | None, output: str) -> None:
    """Check the settings and the receivers file."""
    from relay.way_out import egress_proxy_of  # costs the HTTP client's import, which the other commands do without

    origins = sources_of({CONFIG_FILE: config_file}, os.environ)
    settings = settings_from(config_file)
    egress_proxy_of(settings)
    given = sum(origin.source != "default" for origin in origins)
    is_default = any(origin.name == "receivers_file" and origin.source == "default" for origin in origins)
    is_there = not is_default or settings.receivers_file.exists()
    file = load_receivers_file(settings.receivers_file) if is_there else None
    notes = list(_exposure(settings))
    if output == "json":
        refused = refusals(file, settings) if file else {}
        counts = {"receivers": len(file.receivers), "sources": len(file.sources)} if file else {}
        known = {"file": str(file.origin) if file else None, **counts, "refused": refused, "notes": notes}
        print_json({"given": given, "defaults": len(origins) - given, **known})
        return
    click.echo(f"settings: ok, {given} given, {len(origins) - given} left at their defaults")
    for note in notes:
        click.echo(f"note: {note}")
    if file is None:
        click.echo(f"{settings.receivers_file}: not there, so no receivers are declared in a file")
        return
    click.echo(f"{file.origin}: ok, receivers: {len(file.receivers)}, sources: {len(file.sources)}")
    tell_refused(file, settings)


def _exposure(settings: Settings) -> Iterator[str]:
    """What `relay run` refuses to serve the API with; workers do not mind."""
    for look in (check_exposure, check_key):
        try:
            look(settings)
        except UserError as error:
            yield f"`relay run` does not start with this: {error}"


@config.command()
def schema() -> None:
    """Print the JSON Schema of receivers.yaml."""
    print_json(receivers_schema())
