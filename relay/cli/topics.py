"""`relay topics`: the log's topics, as they should be and as they are."""

import asyncio
from pathlib import Path

import click

from relay.cli.config import config_option, settings_from
from relay.cli.table import output_option, print_json, print_table
from relay.composition import open_log
from relay.config.receivers_file import load_receivers_file
from relay.config.settings import Settings
from relay.domain.topics import Topics, TopicSpec
from relay.log.checks import problem_of
from relay.log.port import TopicState


@click.group()
def topics() -> None:
    """Create the topics, or describe them."""


@topics.command()
@config_option
def apply(config_file: Path | None) -> None:
    """Create the topics that are missing: the fixed ones, and those of the receivers file's receivers."""
    settings = settings_from(config_file)
    specs, groups = wanted(settings)
    created = asyncio.run(_create(settings, specs, groups))
    for name in created:
        click.echo(f"created  {name}")
    click.echo(f"{len(created)} created, {len(specs) - len(created)} were there")


@topics.command()
@config_option
@output_option
def describe(config_file: Path | None, output: str) -> None:
    """Show each topic as it is, and what is off."""
    settings = settings_from(config_file)
    specs, _ = wanted(settings)
    states = asyncio.run(_describe(settings, [spec.name for spec in specs]))
    rows = [_row(spec, states.get(spec.name)) for spec in specs]
    if output == "json":
        print_json([dict(zip(_COLUMNS, row, strict=True)) for row in rows])
    else:
        print_table([column.upper() for column in _COLUMNS], rows)


_COLUMNS = ("topic", "partitions", "cleanup", "retention_s", "replication", "min_insync", "problem")


def wanted(settings: Settings) -> tuple[list[TopicSpec], dict[str, str]]:
    """Specs of all topics that should exist, and the groups that read them."""
    names = Topics(settings.topic_prefix)
    specs, groups = list(names.fixed()), names.fixed_groups()
    if settings.receivers_file.exists():
        for name, entry in load_receivers_file(settings.receivers_file).receivers.items():
            if entry.lane != "shared":
                groups |= names.lane_groups(name)
                specs += names.lane_specs(name, entry.partitions)
    return specs, groups


def _row(spec: TopicSpec, state: TopicState | None) -> tuple[str, ...]:
    if state is None:
        return (spec.name, "-", "-", "-", "-", "-", "missing")
    there = state.spec
    retention = "-" if there.retention_s is None else str(there.retention_s)
    return (
        spec.name,
        str(there.partitions),
        there.cleanup,
        retention,
        str(state.replication or "-"),
        str(state.min_insync or "-"),
        problem_of(spec, state) or "",
    )


async def _create(settings: Settings, specs: list[TopicSpec], groups: dict[str, str]) -> list[str]:
    async with open_log(settings) as log:
        return await log.create(specs, groups)


async def _describe(settings: Settings, names: list[str]) -> dict[str, TopicState]:
    async with open_log(settings) as log:
        return await log.describe(names)
