"""Rows for people, JSON for programs: the two forms of `-o`."""

import json
from collections.abc import Iterable, Sequence
from typing import Final

import click
from rich.console import Console
from rich.table import Table

output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form of output."
)
_PIPED_WIDTH: Final = 10_000  # a file or a pipe has no width: nothing may be cut or wrapped there


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write an aligned table to stdout, without frames; on a terminal, long cells are wrapped."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold", show_lines=False)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, emoji=False, width=_PIPED_WIDTH)
    console.print(table)


def print_json(value: object) -> None:
    """Write indented JSON to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
