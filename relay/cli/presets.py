"""`relay presets`: lists and shows the presets that entries of receivers.yaml may name."""

import click

from relay.cli.options import CommandGroup, output_option
from relay.cli.table import print_json, print_table
from relay.config.presets import all_presets, find_preset


@click.group(cls=CommandGroup)
def presets() -> None:
    """List and show presets: the part of an entry in receivers.yaml that is the same for all users of a system, such as
    a CI. An entry names one in `preset`, and its own fields override those of the preset."""


@presets.command("list")
@output_option
def list_(output: str) -> None:
    """List all presets."""
    found = all_presets()
    if output == "json":
        print_json([{"name": each.id, "for": each.kind, "about": each.about} for each in found])
        return
    print_table(("NAME", "FOR", "ABOUT"), [(each.id, each.kind, each.about) for each in found])


@presets.command()
@click.argument("name")
@output_option
def show(name: str, output: str) -> None:
    """Show the fields of the preset NAME, such as circleci, or circleci@1 for a certain version."""
    preset = find_preset(name)
    if output == "json":
        print_json({"name": preset.id, "for": preset.kind, "about": preset.about, "entry": preset.entry})
        return
    click.echo(preset.text, nl=False)
