"""Prints lines as they arrive: in a terminal cut at its width, in colour and with links; in a pipe whole and plain."""

from collections.abc import Iterator
from typing import Final

import click
from rich.console import Console
from rich.text import Text

INDENT: Final = 13
"""Columns before the details of an event: the time, and its arrow."""


class Screen:
    """Writes to stdout. `columns`: longer lines are folded there and none is cut, in a pipe neither."""

    def __init__(self, columns: int | None = None) -> None:
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._columns = columns

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    def show(self, line: Text) -> None:
        for each in [line] if self._columns is None else self._folded(line, self._columns):
            if self._console.is_terminal:
                self._console.print(each, no_wrap=True, overflow="ellipsis", crop=True)
            else:
                click.echo(each.plain)

    def _folded(self, line: Text, columns: int) -> Iterator[Text]:
        """What follows the first line is indented as details are."""
        first, *rest = line.wrap(self._console, columns, no_wrap=False, overflow="fold")
        first.rstrip()
        yield first
        if rest:
            behind = line[len(first.plain) :]
            behind = behind[len(behind.plain) - len(behind.plain.lstrip()) :]
            for each in behind.wrap(self._console, columns - INDENT, no_wrap=False, overflow="fold"):
                each.rstrip()
                yield Text(" " * INDENT).append_text(each)
