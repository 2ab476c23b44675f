"""Rows for people, JSON for programs: the two forms of `-o`."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from relay.telemetry.redaction import escape_control, escape_in_json

T = TypeVar("T")

PIPED_WIDTH: Final = 10_000
"""A file or a pipe has no width: nothing may be cut or wrapped there."""
_BETWEEN: Final = 2
_DETAIL_CHARS: Final = 400
_READABLE: Final = 14
"""A terminal with fewer characters than that for each column would show them as towers of a few letters."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write an aligned table to stdout, without frames. On a terminal, long cells are wrapped; where it is too narrow
    for so many columns, each row is a paragraph that names its cells. What could steer the terminal is escaped."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, emoji=False, width=PIPED_WIDTH)
    found = [tuple(map(escape_control, row)) for row in rows]
    if not found:
        click.echo("none", err=True)  # a header alone looks as if something were missing
        if console.is_terminal:
            return
    if console.width < min(_width(columns, found), _READABLE * len(columns)):
        for row in found:
            for number, line in enumerate(_paragraph(columns, row, console.width)):
                console.print(Padding(line, (0, 0, 0, _BETWEEN if number else 0)), overflow="fold")
    else:
        with console.capture() as drawn:
            console.print(_table(columns, found))
        click.echo("\n".join(line.rstrip() for line in drawn.get().splitlines()), color=True)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold", show_lines=False)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*row)
    return table


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The table's width if nothing is wrapped."""
    cells = zip(columns, *rows, strict=True)
    return sum(max(map(cell_len, column)) + _BETWEEN for column in cells) - _BETWEEN


def _paragraph(columns: Sequence[str], row: Sequence[str], width: int) -> list[Text]:
    """The row's cells with their names, as many in a line as there is room for when all but the first are indented."""
    lines: list[Text] = []
    for name, value in zip(columns, row, strict=True):
        cell = Text.assemble((name, "bold"), " ", value)
        if lines and 2 * _BETWEEN + lines[-1].cell_len + cell.cell_len <= width:
            lines[-1].append(" " * _BETWEEN).append_text(cell)
        else:
            lines.append(cell)
    return lines


def cells(item: Mapping[str, object], *names: str) -> tuple[str, ...]:
    """These values of an item, with a dash for each that is missing."""
    return tuple("-" if item[name] in (None, "") else str(item[name]) for name in names)


def at_most(milliseconds: float | None) -> str:
    """The upper end of a bucket of durations."""
    return "-" if milliseconds is None else f"<= {milliseconds:g} ms"


def print_json(value: object) -> None:
    """Write indented JSON to stdout; what could steer a terminal is escaped, as JSON escapes it."""
    click.echo(escape_in_json(json.dumps(value, indent=2, ensure_ascii=False, default=msgspec.to_builtins)))


def show_as(value: T, output: str, describe: Callable[[T], object]) -> None:
    """Print a value as JSON or, by `describe`, for people: what `-o` asks for."""
    print_json(value) if output == "json" else describe(value)


def print_text(text: str) -> None:
    """Write what others wrote: as it is into a file or a pipe; on a terminal what could steer that is escaped."""
    if sys.stdout.isatty():
        text = "\n".join(escape_control(line.expandtabs()) for line in text.split("\n"))
    click.echo(text)


def print_more(cursor: str | None) -> None:
    """Say how to get the next page of a list, if there is one."""
    if cursor:
        click.echo(f"more with --cursor {cursor}")


def shortened(text: str) -> str:
    """The text in one line that fits into a cell."""
    line = " ".join(text.split())
    return line if len(line) <= _DETAIL_CHARS else f"{line[:_DETAIL_CHARS]}..."


_UNITS: Final = (
    (("min", 60), ("s", 1)),
    (("h", 3_600), ("min", 60)),
    (("d", 86_400), ("h", 3_600)),
)


def span(seconds: float) -> str:
    """A duration for people: `12 ms`, `1.2 s`, `2 min 3 s`, `5 h 1 min`, `2 d 3 h`."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    large, small = next((pair for pair in _UNITS if whole < 60 * pair[0][1]), _UNITS[-1])
    return f"{whole // large[1]} {large[0]} {whole % large[1] // small[1]} {small[0]}"
