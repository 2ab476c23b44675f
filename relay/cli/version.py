"""`relay version`."""

import platform

import click

from relay import __version__
from relay.cli.options import output_option
from relay.cli.table import print_json


def version_text() -> str:
    """The version in one line."""
    return f"relay {__version__} (Python {platform.python_version()})"


@click.command()
@output_option
def version(output: str) -> None:
    """Print the version."""
    if output == "json":
        print_json({"version": __version__, "python": platform.python_version()})
    else:
        click.echo(version_text())
