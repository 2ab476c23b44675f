"""`relay version`."""

import platform

import click

from relay import __version__


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"relay {__version__} (Python {platform.python_version()})")
