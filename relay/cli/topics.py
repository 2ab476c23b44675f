"""`relay topics`: the log's topics, required and actual."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from relay.checks.topics import (
    LaneNeeds,
    UnusedTopic,
    expected_lanes,
    expected_topics,
    needs_of_entry,
    too_long_waits,
    unused_topics,
)
from relay.cli.options import CommandGroup, config_option, output_option, settings_from
from relay.cli.stores import REPEAT_S, wait_for_cluster
from relay.cli.table import print_json, print_table
from relay.config.receivers_file import load_receivers_file
from relay.config.settings import Settings
from relay.domain.topics import Topics, TopicSpec
from relay.log.checks import Expected, Finding, Grade, backlog_findings, findings, in_lines
from relay.log.port import TopicState
from relay.run.composition import open_log


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create the topics, or describe them."""


@topics.command()
@config_option
@output_option
def apply(config_file: Path | None, output: str) -> None:
    """Create the topics that are missing: the fixed ones, and those of the receivers file's receivers."""
    settings = settings_from(config_file)
    wanted = _wanted(settings)
    specs = [each.spec for each in wanted.expected]
    groups = wanted.groups | Topics(settings.topic_prefix).informational_groups()
    created = asyncio.run(_create(settings, specs, groups))
    if output == "json":
        print_json({"created": list(created), "there": len(specs) - len(created)})
        return
    for name in created:
        click.echo(f"created  {name}")
    click.echo(f"{len(created)} created, {len(specs) - len(created)} existed")


@topics.command()
@config_option
@output_option
def describe(config_file: Path | None, output: str) -> None:
    """Show each topic with its problems. Exits with 1 if the relay would not start, or cannot continue.

    Includes topics of receivers that were removed or moved to the shared lane, and their unread records.
    """
    settings = settings_from(config_file)
    wanted = _wanted(settings)
    states, found, left = asyncio.run(_look(settings, wanted))
    if output == "json":
        there = [_as_json(each.spec, states.get(each.spec.name), found) for each in wanted.expected]
        print_json([*there, *({**_as_json(each.state.spec, each.state, []), "left_over": each.note} for each in left)])
    else:
        _print(wanted.expected, states, found)
        for each in left:
            click.echo(f"unused: {each.topic}: {each.note}")
    if any(finding.grade is not Grade.WARN for finding in found):
        sys.exit(1)


_COLUMNS: Final = ("topic", "partitions", "cleanup", "retention_s", "replication", "min_insync")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The required topics. `groups`: topic -> the group that reads it. `needs`: by receiver of the file."""

    expected: list[Expected]
    groups: dict[str, str]
    needs: dict[str, LaneNeeds]


def _wanted(settings: Settings) -> _Wanted:
    topics, needs = Topics(settings.topic_prefix), dict[str, LaneNeeds]()
    if settings.receivers_file.exists():
        entries = load_receivers_file(settings.receivers_file).receivers
        needs = {name: needs_of_entry(name, entry) for name, entry in entries.items()}
    groups = topics.groups(each.lane for each in needs.values())
    return _Wanted(
        [*expected_topics(topics, settings), *expected_lanes(topics, settings, needs.values())], groups, needs
    )


def _values(spec: TopicSpec, state: TopicState | None) -> tuple[object, ...]:
    """By column; None: not known, or without a limit."""
    if state is None:
        return (spec.name, *[None] * (len(_COLUMNS) - 1))
    there, copies = state.spec, (state.replication or None, state.min_insync or None)
    return (spec.name, there.partitions, there.cleanup, there.retention_s, *copies)


def _as_json(spec: TopicSpec, state: TopicState | None, found: list[Finding]) -> dict[str, object]:
    problems = [{"grade": each.grade.value, "problem": each.problem} for each in found if each.topic == spec.name]
    return {**dict(zip(_COLUMNS, _values(spec, state), strict=True)), "problems": problems}


def _print(expected: list[Expected], states: Mapping[str, TopicState], found: list[Finding]) -> None:
    """The topics with the numbers of their problems; below, each problem once: many topics may have the same."""
    problems = list(in_lines(found).items())
    rows = []
    for spec in (each.spec for each in expected):
        numbers = [str(number) for number, (_, names) in enumerate(problems, 1) if spec.name in names]
        missing = ["missing"] if spec.name not in states else []
        cells = ["-" if value is None else str(value) for value in _values(spec, states.get(spec.name))]
        rows.append((*cells, ", ".join(missing or numbers)))
    print_table([*(column.upper() for column in _COLUMNS), "PROBLEM"], rows)
    grades = {finding.problem: finding.grade for finding in found}
    for number, (problem, _) in enumerate(problems, 1):
        click.echo(f"{number}. {_MEANINGS[grades[problem]]}: {problem}")


_MEANINGS: Final = {Grade.REFUSE: "the relay does not start", Grade.ALARM: "needs action", Grade.WARN: "risk"}


async def _create(settings: Settings, specs: list[TopicSpec], groups: dict[str, str]) -> list[str]:
    """The names of the topics that were missing: a call that failed half way may have created some."""
    names = [spec.name for spec in specs]
    async with open_log(settings, repeat_s=REPEAT_S) as log:
        there = await wait_for_cluster(lambda: log.describe(names), settings.kafka_wait)
        await wait_for_cluster(lambda: log.create(specs, groups), settings.kafka_wait)
    return [name for name in names if name not in there]


async def _look(
    settings: Settings, wanted: _Wanted
) -> tuple[Mapping[str, TopicState], list[Finding], list[UnusedTopic]]:
    """The topics, their problems, and the orphaned ones."""
    async with open_log(settings) as log:
        there = await log.describe([each.spec.name for each in wanted.expected])
        backlogs = await log.backlogs(wanted.groups)
        left = await unused_topics(log, Topics(settings.topic_prefix))
    waits = too_long_waits(Topics(settings.topic_prefix), wanted.needs, there)
    return there, [*findings(wanted.expected, there), *waits, *backlog_findings(backlogs)], left
